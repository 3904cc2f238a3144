"""An action on each of many files: sequential on a disk, concurrent on an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tpudata.storage.limits import request_limits
from tpudata.storage.select import is_remote

T = TypeVar("T")
_AT_ONCE = 32


def for_each(folder: str, action: Callable[[T], None], items: Iterable[T]) -> None:
    """Call `action` with each item, in any order; the error of the first item that fails is raised.

    Args:
        folder: folder of the files.
        action: handles one file; called by several threads on an object store.
        items: arguments of `action`.
    """
    if not is_remote(folder):
        for element in items:
            action(element)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, request_limits().read_threads), thread_name_prefix="tpudata-each") as pool:
        for _ in pool.map(action, items):
            pass

"""Small things done to many files: one after the other on a disk, many at once on an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tpudata.storage.limits import request_limits
from tpudata.storage.select import is_remote

T = TypeVar("T")
_AT_ONCE = 32


def for_each(folder: str, action: Callable[[T], None], items: Iterable[T]) -> None:
    """Call `action` with each of some items, in no order that holds; what it raises first, by their order, is raised.

    Args:
        folder: where the files are.
        action: does something to one file; on an object store it is called by several threads.
        items: what it is called with.
    """
    if not is_remote(folder):
        for item in items:
            action(item)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, request_limits().read_threads), thread_name_prefix="tpudata-each") as pool:
        for _ in pool.map(action, items):
            pass

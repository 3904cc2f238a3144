"""One action on each of many files: sequential on a disk, concurrent on an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tpudata.storage.limits import request_limits
from tpudata.storage.select import is_remote

T = TypeVar("T")
# Enough to hide the latency of requests for the small files next to shards.
_MAX_THREADS = 32


def for_each(folder: str, action: Callable[[T], None], items: Iterable[T]) -> None:
    """Call `action` with each item, concurrently on an object store; raise the error of the first item that fails.

    Args:
        folder: folder of the files; the calls are concurrent if it is on an object store.
        action: handles one file; called by several threads on an object store.
        items: arguments of `action`.
    """
    if not is_remote(folder):
        for item in items:
            action(item)
        return
    thread_count = min(_MAX_THREADS, request_limits().read_threads)
    with ThreadPoolExecutor(thread_count, thread_name_prefix="tpudata-each") as pool:
        # Taking the results raises the errors.
        for _ in pool.map(action, items):
            pass

"""Reading ahead from an object store, where requests are slow one by one."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Content = TypeVar("_Content")
MAX_AHEAD_BYTES = 1 << 26


def read_ahead(
    items: Iterable[_Item],
    read: Callable[[_Item], _Content],
    size_of: Callable[[_Item], int],
    thread_count: int,
    max_ahead_bytes: int = MAX_AHEAD_BYTES,
) -> Iterator[tuple[_Item, _Content]]:
    """Yield items, in order, with the results of `read`, which runs in threads.

    Args:
        items: items, taken as they are needed.
        read: function that reads the content of an item.
        size_of: function that returns the bytes of an item's content.
        thread_count: number of threads, and maximum number of items that are read ahead.
        max_ahead_bytes: maximum number of bytes that are read ahead, except for a single item that is larger.
    """
    pending: collections.deque[tuple[_Item, Future[_Content]]] = collections.deque()
    pending_bytes = 0
    with ThreadPoolExecutor(thread_count, thread_name_prefix="tpudata-read") as pool:
        try:
            for next_item in items:
                while pending and (
                    len(pending) >= thread_count or pending_bytes + size_of(next_item) > max_ahead_bytes
                ):
                    requested, future = pending.popleft()
                    pending_bytes -= size_of(requested)
                    yield requested, future.result()
                pending.append((next_item, pool.submit(read, next_item)))
                pending_bytes += size_of(next_item)
            while pending:
                requested, future = pending.popleft()
                yield requested, future.result()
        finally:
            # If the caller stops early, or an item fails, reads that have not begun are not needed.
            pool.shutdown(wait=False, cancel_futures=True)

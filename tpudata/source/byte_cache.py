"""A cache of values, bounded by their bytes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """The most recently used values, up to a number of bytes; safe to share between threads and to use after a fork.

    A value larger than the bound is returned but not kept.

    Args:
        max_bytes: largest total size of the values, in bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._reset()

    def get(self, key: K, make: Callable[[], V], count_bytes: Callable[[V], int]) -> V:
        """Return the value of a key; `make` makes it if it is not cached. Two threads may both make it.

        Args:
            key: identity of the value: a later call with an equal key gets the cached value.
            make: makes the value; called without the lock.
            count_bytes: returns the size of the value.
        """
        if self._owner_pid != os.getpid():
            # A lock that another thread held at the fork is never released in the child, which makes a new one.
            self._reset()
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        size = count_bytes(value)
        with self._lock:
            # Another thread may have made it in the meantime; a value that is larger than the cache is not kept.
            if key not in self._values and size <= self._max_bytes:
                self._values[key] = value
                self._sizes[key] = size
                self._total_bytes += size
                while self._total_bytes > self._max_bytes:
                    oldest_key, _ = self._values.popitem(last=False)
                    self._total_bytes -= self._sizes.pop(oldest_key)
        return value

    def _reset(self) -> None:
        """Begin with no values, in a new cache or in a forked process."""
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        # The least recently used value comes first.
        self._values: OrderedDict[K, V] = OrderedDict()
        self._sizes: dict[K, int] = {}
        self._total_bytes = 0

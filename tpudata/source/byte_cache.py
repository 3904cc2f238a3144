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
        limit: largest total size of the values, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._reset()

    def get(self, key: K, make: Callable[[], V], size: Callable[[V], int]) -> V:
        """Return the value of `key`, made by `make` if it is not cached. Two threads may both make it."""
        if self._owner != os.getpid():
            # A lock that another thread held at the fork is never released in the child.
            self._reset()
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        count = size(value)
        with self._lock:
            if key not in self._values and count <= self._most:
                self._values[key] = value, count
                self._bytes += count
                while self._bytes > self._most:
                    self._bytes -= self._values.popitem(last=False)[1][1]
        return value

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

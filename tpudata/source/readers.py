"""Threads that read from a store."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
# Maximum number of requests in flight; a store that answers 429 gets fewer, see `tpudata.storage.gcs.pace`.
MAX_READERS = 64


class Readers:
    """Pool of threads that call functions; safe to share between threads, and to use after a fork.

    Threads are started as calls need them. They end, after the calls that have begun, when this object is dropped or closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        # The process that the pool's threads run in.
        self._owner_pid = os.getpid()

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """Call a function in a thread, and return a future of its result; calls begin in the order of submission."""
        return self._open_pool().submit(_call, function, arguments)

    def close(self) -> None:
        """Cancel the calls that have not begun."""
        # After a fork, the threads are the parent's.
        if self._pool is not None and self._owner_pid == os.getpid():
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _open_pool(self) -> ThreadPoolExecutor:
        """Return the pool of this process, after starting it at the first call."""
        if self._owner_pid != os.getpid():
            # The threads stayed in the parent, and perhaps one of them held the lock.
            self._lock = threading.Lock()
            self._pool = None
            self._owner_pid = os.getpid()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_READERS, thread_name_prefix="tpudata-source")
                # The threads end when this object is dropped without `close`.
                weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            return self._pool


def _call(function: Callable[..., T], arguments: tuple[object, ...]) -> T:
    """Return the result of a call; RuntimeError, without the call, if the program is ending."""
    if not threading.main_thread().is_alive():
        # At its end the interpreter waits for the threads, although nobody takes their results.
        raise RuntimeError("the program ends")
    return function(*arguments)

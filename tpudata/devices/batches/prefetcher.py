"""A thread that reads items and places them on devices before they are requested.

The thread makes, uses and deletes the iterator over the data: TensorFlow's deletion may wait for up to a minute for the thread that
tunes the input. The thread is a daemon, so that a slow read does not keep the interpreter from ending; but C++ aborts the process
if its code calls an interpreter that has ended. So the interpreter asks the thread to end before, and waits for a moment.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Generic, TypeVar

_Host = TypeVar("_Host")
_Placed = TypeVar("_Placed")
# Reading a step takes milliseconds, or more on a busy machine.
_SECONDS_AT_EXIT = 2.0


class _End:
    """Mark of the last entry of the ready items: there is no more, or an error ended the reading."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Shared:
    """State of a prefetcher and its thread, which must not keep the prefetcher alive.

    Args:
        ahead: number of placed items that may wait.
        cancel: function that makes a running read end early.
    """

    def __init__(self, ahead: int, cancel: Callable[[], None]) -> None:
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # An entry for each item that may be placed: a Semaphore takes ten times as long.
        self.room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(ahead):
            self.room.put(None)
        self.closed = threading.Event()
        self.ended = threading.Event()
        self._cancel = cancel

    def close(self) -> None:
        """Ask the thread to end, and let go of the items that wait."""
        if self.closed.is_set():
            return
        self.closed.set()
        self.room.put(None)
        self._cancel()
        with contextlib.suppress(queue.Empty):
            while True:
                self.ready.get_nowait()
        self.ready.put(_End())  # For another thread that waits for an item.

    def close_at_exit(self) -> None:
        """Ask the thread to end, and wait for it."""
        self.close()
        self.ended.wait(_SECONDS_AT_EXIT)


class Prefetcher(Generic[_Host, _Placed]):
    """Iterator over items that a thread reads and places on devices ahead of their use.

    `ahead` placed items wait at most, and one that is read but has no place yet.

    Args:
        read: function that the thread calls for the iterator over items on the host.
        place: function that places an item on the devices.
        ahead: number of placed items that may wait; at least 1.
        name: name of the thread.
        cancel: function that makes a running read end early; called once, from any thread.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[_Host]],
        place: Callable[[_Host], _Placed],
        *,
        ahead: int,
        name: str,
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self._shared = _Shared(ahead, cancel)
        self._is_over = False
        # Called first at exit, before jax and TensorFlow end, which were imported earlier.
        atexit.register(self._shared.close_at_exit)
        weakref.finalize(self, self._shared.close)
        threading.Thread(target=_work, args=(read, place, self._shared), name=name, daemon=True).start()

    def __iter__(self) -> Prefetcher[_Host, _Placed]:
        return self

    def __next__(self) -> _Placed:
        """Return the next item; wait for it if necessary, which signals interrupt.

        Raises:
            StopIteration: there are no more items, or the prefetcher is closed.
            Exception: the error that ended the reading, unchanged, after the items before it.
        """
        if self._is_over:
            raise StopIteration
        item = self._shared.ready.get()
        if isinstance(item, _End):
            self._is_over = True
            try:
                raise StopIteration if item.error is None else item.error
            finally:
                del item  # Or the error would be in a circle with this frame.
        self._shared.room.put(None)
        placed: _Placed = item
        return placed

    def close(self) -> None:
        """End the thread as soon as it has read its item; safe at any time, and more than once."""
        self._is_over = True
        self._shared.close()


def _work(read: Callable[[], Iterator[Any]], place: Callable[[Any], Any], shared: _Shared) -> None:
    end = _End()
    try:
        _place_all(read, place, shared)
    except BaseException as error:
        release_frames(error)
        end = _End(error)
    finally:
        if not shared.closed.is_set():
            shared.ready.put(end)
        shared.ended.set()
        atexit.unregister(shared.close_at_exit)


def _place_all(read: Callable[[], Iterator[Any]], place: Callable[[Any], Any], shared: _Shared) -> None:
    for item in read():
        shared.room.get()
        if shared.closed.is_set():
            return
        placed = place(item)
        if shared.closed.is_set():
            return
        shared.ready.put(placed)
        # While this thread reads the next item, the user alone holds this one.
        del item, placed


def release_frames(error: BaseException) -> None:
    """Let go of the values in the frames that an error keeps alive: the iterator is to be deleted in the thread that made it.

    TensorFlow drops frames from the traceback of its errors, but not from that of the errors before them.
    """
    chain: BaseException | None = error
    while chain is not None:
        for frame, _ in traceback.walk_tb(chain.__traceback__):
            caller: FrameType | None = frame
            with contextlib.suppress(RuntimeError):  # A frame that still runs, as its callers do.
                while caller is not None:
                    caller.clear()
                    caller = caller.f_back
        if chain is not error:
            chain.__traceback__ = None
        chain = chain.__context__

"""A thread that reads items and places them on devices before they are requested.

The thread makes, uses and deletes the iterator over the data: TensorFlow's deletion may wait for up to a minute for the thread that
tunes the input. The thread is a daemon, so that a slow read does not keep the interpreter from ending; but C++ aborts the process
if its code calls an interpreter that has ended, so an exit handler asks the thread to end and waits up to 2 s.
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
from typing import Generic, TypeVar

_Host = TypeVar("_Host")
_Placed = TypeVar("_Placed")
# Reading a step takes milliseconds, or more on a busy machine.
_WAIT_SECONDS_AT_EXIT = 2.0


class _End:
    """Last entry of the queue of ready items: the data has ended, or an error ended the reading."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Shared(Generic[_Placed]):
    """State of a prefetcher and its thread, which must not keep the prefetcher alive.

    Attributes:
        ready: placed items, and the end.
        room: an entry for each further item that may be placed.
        is_closed: set once the thread has to end.
        has_ended: set by the thread at its end.

    Args:
        ahead: number of placed items that may wait.
        cancel: function that makes a running read end early.
    """

    def __init__(self, ahead: int, cancel: Callable[[], None]) -> None:
        self.ready: queue.SimpleQueue[_Placed | _End] = queue.SimpleQueue()
        # A queue, since a Semaphore takes ten times as long.
        self.room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(ahead):
            self.room.put(None)
        self.is_closed = threading.Event()
        self.has_ended = threading.Event()
        self._cancel = cancel

    def close(self) -> None:
        """Ask the thread to end, and drop the waiting items."""
        if self.is_closed.is_set():
            return
        self.is_closed.set()
        self.room.put(None)  # Wakes the thread if it waits for room.
        self._cancel()
        with contextlib.suppress(queue.Empty):
            while True:
                self.ready.get_nowait()
        self.ready.put(_End())  # Wakes a thread that waits for an item.

    def close_at_exit(self) -> None:
        """Ask the thread to end, and wait at most 2 seconds for its end."""
        self.close()
        self.has_ended.wait(_WAIT_SECONDS_AT_EXIT)


class Prefetcher(Generic[_Host, _Placed]):
    """Iterator over items that a thread reads and places on devices ahead of their use.

    At most `ahead` placed items wait, and one item that is read but not yet placed.

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
        self._shared: _Shared[_Placed] = _Shared(ahead, cancel)
        self._is_over = False
        # At exit this runs before the hooks of jax and TensorFlow, which were registered earlier.
        atexit.register(self._shared.close_at_exit)
        weakref.finalize(self, self._shared.close)
        threading.Thread(target=_run_thread, args=(read, place, self._shared), name=name, daemon=True).start()

    def __iter__(self) -> Prefetcher[_Host, _Placed]:
        return self

    def __next__(self) -> _Placed:
        """Return the next item; wait for it if necessary. Signals interrupt the wait.

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
                del item  # Otherwise the error and this frame would keep each other alive.
        self._shared.room.put(None)  # The thread may place one more item.
        return item

    def close(self) -> None:
        """End the thread as soon as it has read its current item; safe at any time, and more than once."""
        self._is_over = True
        self._shared.close()


def _run_thread(
    read: Callable[[], Iterator[_Host]], place: Callable[[_Host], _Placed], shared: _Shared[_Placed]
) -> None:
    """Put all placed items into the queue, and then the end of the data or the error, unless the prefetcher was closed before."""
    end = _End()
    try:
        _place_all(read, place, shared)
    except BaseException as error:
        release_frames(error)
        end = _End(error)
    finally:
        if not shared.is_closed.is_set():
            shared.ready.put(end)
        shared.has_ended.set()
        atexit.unregister(shared.close_at_exit)


def _place_all(
    read: Callable[[], Iterator[_Host]], place: Callable[[_Host], _Placed], shared: _Shared[_Placed]
) -> None:
    """Read and place items until the data ends or the prefetcher is closed."""
    for item in read():
        shared.room.get()  # Waits until one more item may be placed.
        if shared.is_closed.is_set():
            return
        placed = place(item)
        if shared.is_closed.is_set():
            return
        shared.ready.put(placed)
        # Drop the references, so that the user can free the item while this thread reads the next.
        del item, placed


def release_frames(error: BaseException) -> None:
    """Clear the frames that an error keeps alive, so that the iterator is deleted in the thread that made it.

    TensorFlow drops frames from the traceback of the error that it raises, but not from the tracebacks of errors in its context.
    """
    chain: BaseException | None = error
    while chain is not None:
        for frame, _ in traceback.walk_tb(chain.__traceback__):
            caller: FrameType | None = frame
            with contextlib.suppress(RuntimeError):  # The frame still runs, and so do its callers.
                # The frame's callers may be among the frames that TensorFlow dropped.
                while caller is not None:
                    caller.clear()
                    caller = caller.f_back
        # The error is raised later, with its traceback.
        if chain is not error:
            chain.__traceback__ = None
        chain = chain.__context__

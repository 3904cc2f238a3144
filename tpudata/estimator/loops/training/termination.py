"""SIGTERM during training: the current loop is finished and saved, and the process ends with a separate exit code.

The exit code distinguishes this end from a failure and from a killed process. A handler that the program has set is not changed; it
can end training by a hook's `request_stop`.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

# EX_TEMPFAIL of sysexits.h: start again later.
EXIT_CODE = 75
_KILLED = 128 + signal.SIGTERM


class Termination:
    """State of a requested termination.

    Attributes:
        requested: whether SIGTERM has come.
    """

    def __init__(self) -> None:
        self.requested = False
        self._at_once = False

    @contextlib.contextmanager
    def nothing_to_lose(self) -> Iterator[None]:
        """Let a request inside the context end the process at once, as all trained values are saved."""
        self._at_once = True
        try:
            self._end_if_requested()
            yield
        finally:
            self._at_once = False

    def _end_if_requested(self) -> None:
        if self.requested and self._at_once:
            raise SystemExit(EXIT_CODE)

    def _receive(self, number: int, frame: Any) -> None:
        del number, frame
        if self.requested:
            os._exit(_KILLED)
        self.requested = True
        self._end_if_requested()


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[Termination]:
    """Let SIGTERM request the end of the training in this context, and a second SIGTERM end the process at once.

    If the program has set a handler, or this is not its main thread, nothing changes.

    Raises:
        SystemExit: with EXIT_CODE, at the end of the context, after a request.
    """
    termination = Termination()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield termination
        return
    signal.signal(signal.SIGTERM, termination._receive)
    try:
        with _ended_by_a_second():
            yield termination
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if termination.requested:
        raise SystemExit(EXIT_CODE)


@contextlib.contextmanager
def _ended_by_a_second() -> Iterator[None]:
    """Let the second SIGTERM end the process even if the main thread waits for the device and runs no handler."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_watch, args=(reader,), name="tpudata-sigterm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _watch(reader: int) -> None:
    """Count the signals, for each of which Python writes a byte with its number."""
    received = 0
    while byte := os.read(reader, 1):
        received += byte[0] == signal.SIGTERM
        if received == 2:
            os._exit(_KILLED)

"""SIGTERM during training: the current loop is finished and saved, and the process ends with a separate exit code.

The exit code distinguishes this end from a failure and from a killed process. A handler of the program is not replaced; it can end
training by a hook's `request_stop`.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from tpudata.console.signals import TERMINATED, end_on_second_sigterm

# EX_TEMPFAIL of sysexits.h: start again later.
EXIT_CODE = 75


class Termination:
    """State of a requested termination.

    Attributes:
        is_requested: whether SIGTERM has come.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._exits_immediately = False

    @contextlib.contextmanager
    def exit_immediately(self) -> Iterator[None]:
        """End the process immediately on a request that came before the context or comes inside it.

        Callers use it while all trained values are saved.

        Raises:
            SystemExit: with EXIT_CODE, after a request.
        """
        self._exits_immediately = True
        try:
            self._end_if_requested()
            yield
        finally:
            self._exits_immediately = False

    def _end_if_requested(self) -> None:
        """Raise SystemExit if an end is requested and allowed immediately."""
        if self.is_requested and self._exits_immediately:
            raise SystemExit(EXIT_CODE)

    def receive(self, signal_number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM; the second one ends the process immediately."""
        del signal_number, frame
        if self.is_requested:
            os._exit(TERMINATED)
        self.is_requested = True
        self._end_if_requested()


@contextlib.contextmanager
def handle_sigterm() -> Iterator[Termination]:
    """Let SIGTERM request the end of the training in this context, and a second SIGTERM end the process immediately.

    If the program has set a handler, or this is not its main thread, nothing changes.

    Raises:
        SystemExit: with EXIT_CODE, after a request: at the end of the context, or inside `Termination.exit_immediately`.
    """
    termination = Termination()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield termination
        return
    signal.signal(signal.SIGTERM, termination.receive)
    try:
        with end_on_second_sigterm():
            yield termination
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if termination.is_requested:
        raise SystemExit(EXIT_CODE)

"""SIGTERM and Ctrl-C in a running command: they end waits, and let work that must not be interrupted finish."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tpudata.console.interrupts import INTERRUPTED, MESSAGE, may_replace_handler, owns_process

# Exit code that a shell reports for a program that SIGTERM ended.
TERMINATED = 143
# Seconds for the program to end by itself, once the other processes are stopped.
_GRACE_SECONDS = 4.0
# Seconds for removing temporary files. `leave` waits as long for other processes to stop.
_TIDY_SECONDS = 3.0


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, raised like Ctrl-C's KeyboardInterrupt."""


def describe_interrupt(error: KeyboardInterrupt) -> tuple[int, str]:
    """Return the exit code and the message for an interrupt."""
    if isinstance(error, Terminated):
        return TERMINATED, "tpudata: ended by SIGTERM"
    return INTERRUPTED, MESSAGE


@contextlib.contextmanager
def interruptible(stop: Callable[[], None], tidy: Callable[[], None]) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the context's body soon, even while it waits.

    Both raise in the main thread. If this process runs one of tpudata's commands, a second signal is ignored, and the process is
    ended by force if a thread or a library still keeps it waiting a few seconds later. Outside the main thread, and for a signal
    whose handler the program has set, nothing changes.

    Args:
        stop: ends other processes that work for this one; called immediately, in another thread.
        tidy: removes temporary files; called in another thread, and only if the process is ended by force.

    Raises:
        Terminated: SIGTERM came.
        KeyboardInterrupt: Ctrl-C came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = _Interrupts(stop, tidy)
    # The handlers that are replaced, by signal. A handler that the program has set stays.
    replaced_handlers: dict[signal.Signals, Any] = {}
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        replaced_handlers[signal.SIGTERM] = signal.SIG_DFL
    if may_replace_handler(sigint_handler := signal.getsignal(signal.SIGINT)):
        replaced_handlers[signal.SIGINT] = sigint_handler
    for number in replaced_handlers:
        signal.signal(number, interrupts.receive)
    try:
        yield
    except BaseException as error:
        # No signal came, or the error is the exception of the signal itself.
        if interrupts.received in (None, error):
            raise
        # Frameworks wrap an interrupt that meets a running step, and fail because of a worker that it ended.
        raise interrupts.received from error
    finally:
        interrupts.leave()
        # Do not interrupt a process that is ending.
        is_ending = interrupts.owns_process and interrupts.received is not None
        for number, handler in replaced_handlers.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM after the body, which starts processes: a half-started process would end with a traceback.

    Signals are also blocked, which the processes inherit; outside the main thread, they are only blocked. Blocking alone is not
    enough: another thread receives a signal that the main thread blocks, and the main thread handles it.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    outer_mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    received_numbers: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        # A handler that is not Python's cannot be restored.
        handlers = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
        for number in handlers:
            signal.signal(number, lambda number, _: received_numbers.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, outer_mask)
        for received_number in received_numbers:
            signal.raise_signal(received_number)


@contextlib.contextmanager
def end_on_second_sigterm() -> Iterator[None]:
    """Let the second SIGTERM end the process even if the main thread waits for a device and runs no handler.

    Python writes the number of each signal to the wakeup descriptor immediately, before the main thread handles it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outer_descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_end_at_second_sigterm, args=(reader,), name="tpudata-sigterm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(outer_descriptor)
        # This ends the thread, which then reads the end of the file.
        os.close(writer)
        thread.join()
        os.close(reader)


class _Interrupts:
    """Handler of `interruptible`, and the thread that acts on signals: a handler may run while the main thread holds any lock.

    Args:
        stop: ends other processes that work for this one; called immediately, in the thread that acts on signals.
        tidy: removes temporary files; called in another thread, and only if the process is ended by force.

    Attributes:
        received: exception of the first signal, or None.
        owns_process: whether this process runs one of tpudata's commands.
    """

    def __init__(self, stop: Callable[[], None], tidy: Callable[[], None]) -> None:
        self.received: KeyboardInterrupt | None = None
        self.owns_process = owns_process()
        self._stop, self._tidy = stop, tidy
        self._body_has_ended = False
        self._has_stopped = threading.Event()
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="tpudata-interrupts", daemon=True)
        self._thread.start()

    def receive(self, signal_number: int, frame: FrameType | None) -> None:
        """Handle a signal: raise the first one in the main thread; ignore later ones in a process of a command.

        In other processes, each later signal raises KeyboardInterrupt.
        """
        del frame
        if self.received is None:
            self.received = Terminated() if signal_number == signal.SIGTERM else KeyboardInterrupt()
            # Wakes `_watch`.
            os.write(self._writer, b"!")
            raise self.received
        if not self.owns_process:
            raise KeyboardInterrupt

    def leave(self) -> None:
        """Mark the context's body as ended; after a signal, wait up to 3 s until other processes are stopped."""
        self._body_has_ended = True
        if self.received is not None:
            # The thread continues, since this process may have to be ended by force.
            self._has_stopped.wait(_TIDY_SECONDS)
        else:
            os.close(self._writer)
            self._thread.join()
            os.close(self._reader)

    def _watch(self) -> None:
        """After the first signal, stop other processes, and end this one by force if it does not end in time."""
        # The pipe ends without a byte if the body ended without a signal, see `leave`.
        if not os.read(self._reader, 1):
            return
        assert self.received is not None
        self._stop()
        self._has_stopped.set()
        if not self.owns_process:
            return
        time.sleep(_GRACE_SECONDS)
        code, message = describe_interrupt(self.received)
        # A body that has ended has removed its files, and `run_command` reports the signal.
        if not self._body_has_ended:
            tidying = threading.Thread(target=self._tidy, daemon=True)
            tidying.start()
            tidying.join(_TIDY_SECONDS)
            with contextlib.suppress(OSError):
                os.write(2, f"{message}\n".encode())
        os._exit(code)


def _end_at_second_sigterm(reader: int) -> None:
    """End the process at the second SIGTERM.

    Args:
        reader: descriptor of the pipe that Python writes the number of each signal to, as a byte.
    """
    sigterm_count = 0
    while byte := os.read(reader, 1):
        if byte[0] == signal.SIGTERM:
            sigterm_count += 1
        if sigterm_count == 2:
            os._exit(TERMINATED)

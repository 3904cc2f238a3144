"""Ctrl-C in a process that only runs a command: exit code 130, and one line or silence instead of a traceback.

While the process loads or exits, Ctrl-C ends it immediately: there is nothing to clean up, and an exception could strike during any
import. While the command works, the first one raises KeyboardInterrupt, and a second one ends the process immediately. Only the
entry points of commands call these functions; they change nothing if Ctrl-C is ignored or handled by somebody else.

This module is the first that a command imports, so it imports little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

# Exit code that a shell reports for a program that SIGINT ended.
INTERRUPTED = 130
MESSAGE = "tpudata: interrupted"
# Whether tpudata owns this process: `run_command` runs its command line, or it ends with the process that started it.
_is_owned = False


def owns_process() -> bool:
    """Return whether this process only runs one of tpudata's commands, or a part of one, and ends with it."""
    return _is_owned


def set_owns_process(*, is_owned: bool) -> None:
    """Set whether this process only runs one of tpudata's commands, or a part of one."""
    global _is_owned
    _is_owned = is_owned


def end_on_interrupt() -> None:
    """Let Ctrl-C end this process immediately from now on, unless the program handles it. Commands call this first."""
    if may_replace_handler(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, _end)


@contextlib.contextmanager
def interruptible_work() -> Iterator[None]:
    """Let the first Ctrl-C in the body raise KeyboardInterrupt, and a second one end the process."""
    with _handle_with(_raise_once):
        outer_hook = sys.unraisablehook

        def end_or_pass_on(unraisable: sys.UnraisableHookArgs) -> None:
            # An interrupt that is raised in a finalizer would be lost, since finalizers swallow exceptions.
            if issubclass(unraisable.exc_type, KeyboardInterrupt):
                _end()
            outer_hook(unraisable)

        sys.unraisablehook = end_or_pass_on
        try:
            yield
        finally:
            sys.unraisablehook = outer_hook


@contextlib.contextmanager
def interruptible_loading() -> Iterator[None]:
    """Let Ctrl-C end the process immediately in the body, which imports large libraries, if `interruptible_work` is active."""
    if signal.getsignal(signal.SIGINT) is not _raise_once:
        yield
        return
    with _handle_with(_end):
        yield


def may_replace_handler(handler: object) -> bool:
    """Return whether a handler of SIGINT is Python's default, or one that this module sets before the first Ctrl-C."""
    return handler in (signal.default_int_handler, _end, _raise_once)


def was_interrupted() -> bool:
    """Return whether Ctrl-C came in the body of `interruptible_work`, even if it became another exception."""
    return signal.getsignal(signal.SIGINT) is _end_silently


@contextlib.contextmanager
def _handle_with(handler: signal.Handlers | object) -> Iterator[None]:
    """Handle SIGINT with `handler` while the context lasts, unless another program's is installed, or Ctrl-C has come."""
    outer_handler = signal.getsignal(signal.SIGINT)
    if not may_replace_handler(outer_handler):
        yield
        return
    signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        # After an interrupt the handler is `_end_silently`, which is kept: the outer one would answer a second Ctrl-C with a
        # traceback.
        if may_replace_handler(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, outer_handler)


def _raise_once(signal_number: int, frame: FrameType | None) -> None:
    """Handle the first Ctrl-C: raise KeyboardInterrupt, and let the next one end the process."""
    del signal_number, frame
    signal.signal(signal.SIGINT, _end_silently)
    raise KeyboardInterrupt


def _end(signal_number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """Handle Ctrl-C: report it in one line, and end the process immediately, without Python's cleanup."""
    del signal_number, frame
    # The interrupted code may hold the lock of `sys.stderr`, so the message goes to its descriptor, which may be closed.
    with contextlib.suppress(OSError):
        os.write(2, f"{MESSAGE}\n".encode())
    os._exit(INTERRUPTED)


def _end_silently(signal_number: int, frame: FrameType | None) -> None:
    """Handle a second Ctrl-C: end the process immediately, without a message, since the first one is being handled."""
    del signal_number, frame
    os._exit(INTERRUPTED)

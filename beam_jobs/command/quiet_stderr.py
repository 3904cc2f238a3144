"""Hiding the tracebacks that Beam's workers and threads print on a command's standard error, since the command shows the error."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

from tpudata.console.interrupts import owns_process

_BEGIN = "Traceback (most recent call last):"
_BEAM_WORKER_PATH = "apache_beam/runners/worker/"
# Threads that read from a worker, or wait for a job, fail when it ends.
_BEAM_THREAD_PATH = "apache_beam/runners/"


class _WithoutTracebacks:
    """A stream that drops Beam's tracebacks; each traceback comes in one write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._has_dropped_traceback = False

    def write(self, text: str) -> int:
        """Write a string, unless it is a traceback of a worker or the line break after one; return the string's length."""
        is_traceback = text.startswith(_BEGIN) and _BEAM_WORKER_PATH in text
        # `print` writes the line break after a traceback separately.
        is_its_line_break = self._has_dropped_traceback and text == "\n"
        self._has_dropped_traceback = is_traceback
        return len(text) if is_traceback or is_its_line_break else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def hide_worker_tracebacks() -> Iterator[None]:
    """Suppress tracebacks of Beam's workers and threads in this process; only for commands, since other programs may need them.

    After an error, if the command owns its process, they stay suppressed to the end of the process: steps that still run fail when
    their engine and files disappear.
    """
    stream = sys.stderr
    own_stderr = _separate_stderr(stream)
    earlier_hook = threading.excepthook
    logger = logging.getLogger("apache_beam")
    level = logger.level

    def report_other_threads(failure: threading.ExceptHookArgs) -> None:
        if not any(_BEAM_THREAD_PATH in frame.filename for frame in traceback.extract_tb(failure.exc_traceback)):
            earlier_hook(failure)

    has_failed = True
    sys.stderr, threading.excepthook = _WithoutTracebacks(own_stderr), report_other_threads
    logger.setLevel(logging.CRITICAL)
    try:
        yield
        has_failed = False
    finally:
        if not (has_failed and owns_process()):
            sys.stderr, threading.excepthook = stream, earlier_hook
            logger.setLevel(level)
            if own_stderr is not stream:
                own_stderr.close()


def _separate_stderr(stream: TextIO) -> TextIO:
    """Return a command's stderr with a separate descriptor; in other processes the stream itself.

    Code that silences libraries in C redirects descriptor 2; the command's own lines must not be lost with theirs.
    """
    if not owns_process() or stream is not sys.__stderr__:
        return stream
    # Buffered by lines, as Python's stderr.
    return os.fdopen(os.dup(stream.fileno()), "w", buffering=1, encoding=stream.encoding, errors=stream.errors)

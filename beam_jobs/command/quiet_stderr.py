"""Standard error of a command without the tracebacks that Beam's workers and threads print: the error itself is shown once."""

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
# Threads that read from a worker or wait for a job fail once it has ended.
_THREADS_OF_BEAM = "apache_beam/runners/"


class _WithoutTracebacks:
    """A stream without Beam's tracebacks, each of which is one write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._skips_end = False

    def write(self, text: str) -> int:
        if text.startswith(_BEGIN) and _BEAM_WORKER_PATH in text:
            self._skips_end = True
            return len(text)
        # The line break, which print writes separately.
        skipped, self._skips_end = self._skips_end and text == "\n", False
        return len(text) if skipped else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def hide_worker_tracebacks() -> Iterator[None]:
    """Suppress tracebacks of Beam's workers and threads in this process; only for commands, which own their process.

    After an error this lasts to the end of the process: running steps fail when their engine and files disappear.
    """
    stream, hook, logger = sys.stderr, threading.excepthook, logging.getLogger("apache_beam")
    own_stderr = _separate_stderr(stream)
    level = logger.level

    def pass_on(failed: threading.ExceptHookArgs) -> None:
        if not any(_THREADS_OF_BEAM in frame.filename for frame in traceback.extract_tb(failed.exc_traceback)):
            hook(failed)

    has_failed = True
    sys.stderr, threading.excepthook = _WithoutTracebacks(own_stderr), pass_on
    logger.setLevel(logging.CRITICAL)
    try:
        yield
        has_failed = False
    finally:
        if not (has_failed and owns_process()):
            sys.stderr, threading.excepthook = stream, hook
            logger.setLevel(level)
            if own_stderr is not stream:
                own_stderr.close()


def _separate_stderr(stream: TextIO) -> TextIO:
    """Return stderr with a separate descriptor, so that lines of libraries in C can be dropped without ours; only in a command."""
    if not owns_process() or stream is not sys.__stderr__:
        return stream
    return os.fdopen(os.dup(stream.fileno()), "w", 1, encoding=stream.encoding, errors=stream.errors)

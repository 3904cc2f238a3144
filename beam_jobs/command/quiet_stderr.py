"""Standard error of a command, without the tracebacks that Beam's workers print of an error that is shown anyway."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_BEGIN = "Traceback (most recent call last):"
_OF_BEAM = "apache_beam/runners/worker/"


class _WithoutTracebacks:
    """A stream that passes everything on but Beam's tracebacks, each of which comes in one piece."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._skips_end = False

    def write(self, text: str) -> int:
        if text.startswith(_BEGIN) and _OF_BEAM in text:
            self._skips_end = True
            return len(text)
        # The end of the line, which print writes separately.
        skipped, self._skips_end = self._skips_end and text == "\n", False
        return len(text) if skipped else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def without_worker_tracebacks() -> Iterator[None]:
    """Keep Beam's workers in this process (LOOPBACK) from printing tracebacks; for commands, whose process is theirs."""
    stream = sys.stderr
    sys.stderr = _WithoutTracebacks(stream)
    try:
        yield
    finally:
        sys.stderr = stream

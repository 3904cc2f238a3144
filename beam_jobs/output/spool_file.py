"""Temporary files of the output folder, for the bytes of records without an address."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import BinaryIO

from tpudata.storage import storage_for


class SpoolFile:
    """A file that is made with the first bytes, and appears under its name when it is finished.

    A context: it is finished if the context ends, and discarded if it ends with an error.

    Args:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._size = 0

    def write(self, data: bytes) -> int:
        """Write some bytes; return the place of the first of them in the file."""
        if data and self._file is None:
            self._file = self._stack.enter_context(storage_for(self.path).create(self.path))
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                # The file's context calls it an error of writing.
                self._stack.__exit__(type(error), error, error.__traceback__)
                raise
        begin, self._size = self._size, self._size + len(data)
        return begin

    def finish(self) -> None:
        """Give the file its name."""
        self._stack.close()

    def discard(self) -> None:
        """Remove the file."""
        # The file's context calls any OSError an error of writing, so it gets none of the caller's errors.
        with contextlib.suppress(_DiscardedError):
            self._stack.__exit__(_DiscardedError, _DiscardedError(), None)

    def __enter__(self) -> SpoolFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.discard()


class _DiscardedError(Exception):
    """Ends the context of a file that is not to appear."""

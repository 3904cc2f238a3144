"""Temporary files in the output folder, for records that cannot be read again from the input, such as examples of a pipeline."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import BinaryIO

from tpudata.storage import storage_for


class SpoolFile:
    """A file that is created with its first bytes, and appears under its name when it is finished.

    A context manager: the end of the context finishes the file, or discards it after an error.

    Args:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._size = 0

    def write(self, data: bytes) -> int:
        """Append bytes; return the offset of the first of them in the file."""
        if data and self._file is None:
            self._file = self._stack.enter_context(storage_for(self.path).create(self.path))
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                # The file's context discards the file, and raises a StorageError in place of this error.
                self._stack.__exit__(type(error), error, error.__traceback__)
                raise
        offset = self._size
        self._size += len(data)
        return offset

    def finish(self) -> None:
        """Give the file its name."""
        self._stack.close()

    def discard(self) -> None:
        """Remove the file."""
        # The file's context takes any OSError for an error of writing, so it gets this error in place of the caller's.
        with contextlib.suppress(_DiscardedError):
            self._stack.__exit__(_DiscardedError, _DiscardedError(), None)

    def __enter__(self) -> SpoolFile:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.discard()


class _DiscardedError(Exception):
    """Ends the context of a file so that the file does not appear."""

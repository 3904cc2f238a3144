"""Writing large files past the system's page cache.

A conversion writes more than memory holds and reads none of it again. To copy it into the page cache takes the system a quarter of
all the time that converting a photograph takes, and pushes out what others want to find there. So bytes are gathered in a buffer
that begins on a page boundary, and full buffers go to the disk from there (O_DIRECT of Linux; see open(2)). What is smaller than
a buffer, the end of a file, and files of a system or a file system that does not offer this take the usual way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
from typing import Any

# Each write waits for the disk, so few and large ones keep it busy; a multiple of what any disk wants writes to be.
BUFFER_BYTES = 1 << 22
_DIRECT = getattr(os, "O_DIRECT", 0)


def new_buffer(size: int = BUFFER_BYTES) -> mmap.mmap:
    """Return a buffer for UncachedFile: `size` bytes of memory, a multiple of a page, of which none is taken until it is used."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A write past the page cache looks at every page. Linux may be built without large ones, and says so.
        with contextlib.suppress(OSError):
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


class UncachedFile(io.RawIOBase):
    """A new file, opened for writing.

    Args:
        path: the file; FileExistsError if it exists.
        buffer: of `new_buffer`; another file may have it when this one is closed.
    """

    def __init__(self, path: str | os.PathLike[str], buffer: mmap.mmap) -> None:
        super().__init__()
        # Python closes also what could not be opened.
        self._descriptor = -1
        # Bytes in the buffer, and in the file.
        self._filled = self._written = 0
        self._direct = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._buffer = buffer
        self._buffer.seek(0)
        self._size = len(buffer)

    def fileno(self) -> int:
        """Return the file's descriptor; what is in the buffer is not in the file before `flush`."""
        return self._descriptor

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self._written + self._filled

    def write(self, data: Any, /) -> int:
        """Write all of `data`, any bytes-like object; return its length in bytes.

        Raises:
            ValueError: the file is closed.
            TypeError: `data` is no bytes-like object, or its bytes do not lie one after the other (C order).
            OSError: of the disk. How much of `data` is in the file then is not known.
        """
        if type(data) is bytes and self._filled + len(data) < self._size:
            self._buffer.write(data)
            self._filled += len(data)
            return len(data)
        if self.closed:
            raise ValueError("write to closed file")
        with memoryview(data) as given:
            # An array of several dimensions and no values cannot be cast.
            return self._write_view(given.cast("B")) if given.nbytes else 0

    def _write_view(self, data: memoryview) -> int:
        with data:
            start = 0
            while start < len(data):
                end = min(start + self._size - self._filled, len(data))
                self._buffer.write(data[start:end])
                self._filled += end - start
                start = end
                if self._filled == self._size:
                    self._write_buffer(direct=True)
            return len(data)

    def flush(self) -> None:
        """Write what is in the buffer. What follows is not aligned any more, and goes through the page cache."""
        if not self.closed and self._filled:
            self._write_buffer(direct=False)

    def close(self) -> None:
        """Write the rest, and close the file; the file is closed even if writing fails."""
        if self.closed:
            return
        # No write takes the short way any more: the buffer may be another file's.
        self._size = 0
        try:
            super().close()
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)

    def discard(self) -> None:
        """Close the file without writing the rest, for a file that is given up."""
        self._filled = 0
        self.close()

    def _write_buffer(self, direct: bool) -> None:
        if direct != self._direct:
            self._switch(direct)
        with memoryview(self._buffer) as whole, whole[: self._filled] as view:
            start = 0
            while start < len(view):
                try:
                    start += os.write(self._descriptor, view[start:])
                except OSError as error:
                    # Not aligned as this file system wants it, or after a write that was cut short.
                    if error.errno != errno.EINVAL or not self._direct:
                        raise
                    self._switch(False)
        self._buffer.seek(0)
        self._written += self._filled
        self._filled = 0

    def _switch(self, direct: bool) -> None:
        """Set whether writes go past the page cache; where the file system rejects that, they do not."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (_DIRECT if direct else 0))
        except OSError:
            direct = False
        self._direct = direct

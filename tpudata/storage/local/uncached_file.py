"""Writing of large files past the system's page cache.

A conversion may write more than fits in memory, and reads nothing of it again. Copying it into the page cache takes a quarter of
the time of converting a photograph, and evicts the data of other programs. So bytes are collected in a buffer on a page boundary,
and full buffers go from there to the disk (O_DIRECT of Linux; see open(2)). Less than a full buffer, the end of a file, and files
of systems without this feature are written through the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
from typing import Any

# Each write waits for the disk, so large ones keep it busy; a multiple of the alignment of any disk.
BUFFER_BYTES = 1 << 22
_DIRECT = getattr(os, "O_DIRECT", 0)


def new_buffer(size: int = BUFFER_BYTES) -> mmap.mmap:
    """Return a buffer for UncachedFile: `size` bytes, a multiple of a page, whose memory is allocated when it is used."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Huge pages, since O_DIRECT handles each page. Linux may be built without them.
        with contextlib.suppress(OSError):
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


class UncachedFile(io.RawIOBase):
    """A new file, opened for writing.

    Args:
        path: path of the file; FileExistsError if it exists.
        buffer: a buffer of `new_buffer`; another file may use it after this one is closed.
    """

    def __init__(self, path: str | os.PathLike[str], buffer: mmap.mmap) -> None:
        super().__init__()
        # The finalizer calls `close`, also if opening fails.
        self._descriptor = -1
        # Number of bytes in the buffer, and in the file.
        self._filled_bytes = self._written_bytes = 0
        # Whether writes bypass the page cache.
        self._is_direct = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._buffer = buffer
        self._buffer.seek(0)
        self._buffer_size = len(buffer)

    def fileno(self) -> int:
        """Return the file's descriptor; call `flush` first, since bytes may still be in the buffer."""
        return self._descriptor

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._written_bytes + self._filled_bytes

    def write(self, data: Any, /) -> int:
        """Write all of `data`, a bytes-like object of any kind; return its length in bytes.

        Raises:
            ValueError: the file is closed.
            TypeError: `data` is not a bytes-like object, or not contiguous (C order).
            OSError: an error of the disk, after an unknown part of `data` was written.
        """
        # The fast path for small pieces. A closed file never takes it, since its `_buffer_size` is 0.
        if type(data) is bytes and self._filled_bytes + len(data) < self._buffer_size:
            self._buffer.write(data)
            self._filled_bytes += len(data)
            return len(data)
        if self.closed:
            raise ValueError("write to closed file")
        with memoryview(data) as view:
            # An empty array of several dimensions cannot be cast.
            return self._write_view(view.cast("B")) if view.nbytes else 0

    def _write_view(self, data: memoryview) -> int:
        """Copy data to the buffer, which is written whenever it is full; release the view, and return its length in bytes."""
        with data:
            start = 0
            while start < len(data):
                end = min(start + self._buffer_size - self._filled_bytes, len(data))
                self._buffer.write(data[start:end])
                self._filled_bytes += end - start
                start = end
                if self._filled_bytes == self._buffer_size:
                    self._write_buffer(is_direct=True)
            return len(data)

    def flush(self) -> None:
        """Write the buffer. Later data goes through the page cache if it is no longer aligned in the file."""
        if not self.closed and self._filled_bytes:
            self._write_buffer(is_direct=False)

    def close(self) -> None:
        """Write the rest, and close the file; the file is closed even if writing fails."""
        if self.closed:
            return
        # A later `write` must reach its check for a closed file: another file may use the buffer by then.
        self._buffer_size = 0
        try:
            super().close()  # It calls flush.
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)

    def discard(self) -> None:
        """Close the file without writing the rest, to abandon it."""
        self._filled_bytes = 0
        self.close()

    def _write_buffer(self, *, is_direct: bool) -> None:
        """Write the buffer, past the page cache if `is_direct`."""
        if is_direct != self._is_direct:
            self._set_direct(is_direct)
        with memoryview(self._buffer) as buffer_view, buffer_view[: self._filled_bytes] as view:
            start = 0
            while start < len(view):
                try:
                    start += os.write(self._descriptor, view[start:])
                except OSError as error:
                    # The bytes are not aligned for this file system, perhaps after an incomplete write.
                    if error.errno != errno.EINVAL or not self._is_direct:
                        raise
                    self._set_direct(is_direct=False)
        self._buffer.seek(0)
        self._written_bytes += self._filled_bytes
        self._filled_bytes = 0

    def _set_direct(self, is_direct: bool) -> None:
        """Set whether writes bypass the page cache; if the file system rejects that, they do not."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (_DIRECT if is_direct else 0))
        except OSError:
            is_direct = False
        self._is_direct = is_direct

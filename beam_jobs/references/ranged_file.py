"""A file as a seekable stream of ranged reads, which skips bytes without reading them."""

from __future__ import annotations

import io

from tpudata.errors import SourceError
from tpudata.storage import storage_for

# One read gets a tar header and the small file after it; a larger buffer would read bytes that are then skipped.
_BUFFER_BYTES = 1 << 13


class _RangedFile(io.RawIOBase):
    """Unbuffered file of ranged reads; see `open_ranged`."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self._path = path
        self._size = size
        self._position = 0
        self._storage = storage_for(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position without reading, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read bytes from the position on into a buffer; return their number, 0 at the end of the file."""
        length = max(0, min(len(buffer), self._size - self._position))
        data = self._storage.read_range(self._path, self._position, length) if length else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def file_size(path: str) -> int:
    """Return the size of a file; raise SourceError if it is missing or a folder."""
    entry = storage_for(path).stat(path)
    if entry is None or entry.is_folder:
        raise SourceError(
            f"{path} does not exist, or is a folder (expected a file). Restore it, or remove it from the input."
        )
    return entry.size


def open_ranged(path: str, size: int, buffer_bytes: int = _BUFFER_BYTES) -> io.BufferedReader:
    """Open a file of `size` bytes for seeking: a seek reads nothing, and a read of up to `buffer_bytes` is one ranged read.

    `Storage.open` is for reading from start to end, without seeking.
    """
    return io.BufferedReader(_RangedFile(path, size), buffer_bytes)

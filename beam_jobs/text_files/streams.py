"""The bytes of a file in chunks: from an offset on, or unpacked from start to end."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from typing import Any

from beam_jobs.compression.decompressors import DECOMPRESSION_ERRORS, decompress, is_too_large
from tpudata.errors import CorruptionError, SourceError
from tpudata.storage import storage_for

CHUNK_BYTES = 1 << 22
# Bytes after a range are read in small steps, since the last record of the range ends soon.
_AFTER_BYTES = 1 << 16
_PACKED_BYTES = 1 << 16


def plain_chunks(path: str, start: int, stop: int) -> Iterator[bytes]:
    """Yield a file from byte `start` to its end: in chunks of 4 MB up to `stop`, and in small ones after it.

    Raises:
        SourceError: the file ends before `stop`, so it is shorter than when it was listed.
    """
    storage = storage_for(path)
    while True:
        length = min(CHUNK_BYTES, stop - start) if start < stop else _AFTER_BYTES
        chunk = storage.read_range(path, start, length)
        if chunk:
            yield chunk
        if len(chunk) < length:
            size = start + len(chunk)
            if size < stop:
                raise SourceError(
                    f"{path} was cut during the run (got {size} bytes, expected {stop} at least). Run again when it is complete."
                )
            return
        start += length


def decompressed_chunks(path: str, compression: str) -> Iterator[bytes]:
    """Yield the content of a compressed file from start to end; it may consist of several streams.

    Args:
        path: path of the file.
        compression: `"gzip"`, `"bzip2"`, `"zstd"` or `"xz"`.

    Raises:
        CorruptionError: the file is cut or damaged; its offset counts unpacked bytes.
    """
    offset = size = 0
    held: list[bytes] = []
    with storage_for(path).open(path) as file:
        packed = iter(functools.partial(file.read, _PACKED_BYTES), b"")
        try:
            for piece in decompress(packed, compression):
                held.append(piece)
                size += len(piece)
                if size >= CHUNK_BYTES:
                    yield b"".join(held)
                    offset, held, size = offset + size, [], 0
        except DECOMPRESSION_ERRORS as error:
            what = "needs too much memory to be unpacked" if is_too_large(error) else "is cut or damaged"
            raise CorruptionError(
                path, offset, f"the {compression} stream {what}: {error} (the offset counts unpacked bytes)"
            ) from None
    if size:
        yield b"".join(held)


class DecompressedFile(io.RawIOBase):
    """Decompressed content of a file, read from start to end; it seeks forward only.

    Args:
        path: path of the file.
        compression: name of the compression, as for `decompressed_chunks`, whose errors reading raises.
    """

    def __init__(self, path: str, compression: str) -> None:
        super().__init__()
        self._chunks = decompressed_chunks(path, compression)
        self._held = b""
        self._place = self._offset = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True; `seek` only moves forward."""
        return True

    def tell(self) -> int:
        """Return the offset in the unpacked content."""
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to an offset from the start."""
        if whence != io.SEEK_SET or offset < self._offset:
            raise io.UnsupportedOperation(f"seek({offset}, {whence}) in a compressed file at {self._offset}")
        while self._offset < offset and self._take(offset - self._offset):
            pass
        return self._offset

    def readinto(self, buffer: Any) -> int:
        """Read available bytes into the buffer, and return their number; 0 at the end."""
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _take(self, length: int) -> bytes:
        """Return at least one byte, or none at the end."""
        while self._place == len(self._held):
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._held, self._place = chunk, 0
        data = self._held[self._place : self._place + length]
        self._place += len(data)
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._chunks.close()  # type: ignore[attr-defined]
        super().close()

"""Compressed files, decompressed from start to end in pieces of bounded size."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from beam_jobs.compression.decompressors import DECOMPRESSION_ERRORS, decompress, needs_too_much_memory
from beam_jobs.file_kinds import find_compression
from tpudata.errors import CorruptionError
from tpudata.storage import storage_for

CHUNK_BYTES = 1 << 22
_READ_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20
# Number of first bytes that identify the compression.
_MAGIC_BYTES = 16
# Ends of the names of compressed files.
_SUFFIXES = (".gz", ".bz2", ".zst", ".xz")


def read_compression(path: str) -> str:
    """Return the compression of a file, from its first bytes: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string."""
    return find_compression(storage_for(path).read_range(path, 0, _MAGIC_BYTES))


def read_head(path: str, length: int) -> bytes:
    """Return the first bytes of a file, decompressed if it is compressed."""
    # The read covers at least the bytes that identify a compression.
    head = storage_for(path).read_range(path, 0, max(length, _MAGIC_BYTES))
    compression = find_compression(head)
    if not compression:
        return head[:length]
    with open_decompressed(path, compression) as file:
        return file.read(length)


def strip_compression(name: str) -> str:
    """Return a compressed file's name without the compression's suffix: `a.tar` for `a.tar.gz`."""
    suffix = next(filter(name.endswith, _SUFFIXES), "")
    return name.removesuffix(suffix)


@contextlib.contextmanager
def open_decompressed(path: str, compression: str) -> Iterator[BinaryIO]:
    """Yield a compressed file that is decompressed as it is read; it seeks forward only.

    Args:
        path: path of the file.
        compression: `"gzip"`, `"bzip2"`, `"zstd"` or `"xz"`.

    Raises:
        CorruptionError: from any read inside the context: the file is truncated or damaged. Its offset counts decompressed bytes.
    """
    with contextlib.closing(_DecompressedFile(path, compression)) as raw:
        yield cast(BinaryIO, io.BufferedReader(raw, _BUFFER_BYTES))


def decompress_file(path: str, compression: str) -> Iterator[bytes]:
    """Yield the content of a compressed file, which may have several streams, in chunks of 4 to 12 MiB; the last may be smaller.

    Args:
        path: path of the file.
        compression: `"gzip"`, `"bzip2"`, `"zstd"` or `"xz"`.

    Raises:
        CorruptionError: the file is truncated or damaged; its offset counts decompressed bytes.
    """
    # Offset in the content, and the pieces that follow it with their size.
    offset = 0
    pieces: list[bytes] = []
    size = 0
    with storage_for(path).open(path) as file:
        compressed_chunks = iter(functools.partial(file.read, _READ_BYTES), b"")
        try:
            for piece in decompress(compressed_chunks, compression):
                pieces.append(piece)
                size += len(piece)
                if size >= CHUNK_BYTES:
                    yield b"".join(pieces)
                    offset += size
                    pieces = []
                    size = 0
        except DECOMPRESSION_ERRORS as error:
            problem = "needs too much memory to be unpacked" if needs_too_much_memory(error) else "is cut or damaged"
            raise CorruptionError(
                path, offset, f"the {compression} stream {problem}: {error} (the offset counts unpacked bytes)"
            ) from None
    if size:
        yield b"".join(pieces)


class _DecompressedFile(io.RawIOBase):
    """Decompressed content of a file, read from start to end; it seeks forward only.

    Args:
        path: path of the file.
        compression: name of a compression that `decompress_file` takes; reads raise the errors of that function.
    """

    def __init__(self, path: str, compression: str) -> None:
        super().__init__()
        self._chunks = decompress_file(path, compression)
        self._chunk = b""
        # Positions in the chunk, and in the whole content.
        self._position = self._offset = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True; `seek` only moves forward."""
        return True

    def tell(self) -> int:
        """Return the offset in the decompressed content."""
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to an offset from the start, or to the end if that comes first; return the offset that is reached."""
        if whence != io.SEEK_SET or offset < self._offset:
            raise io.UnsupportedOperation(f"seek({offset}, {whence}) in a compressed file at {self._offset}")
        while self._offset < offset:
            if not self._take(offset - self._offset):
                break
        return self._offset

    def readinto(self, buffer: Any) -> int:
        """Read available bytes into the buffer, and return their number; 0 at the end."""
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _take(self, length: int) -> bytes:
        """Move past the next bytes and return them, at least one and at most `length`; empty at the end."""
        while self._position == len(self._chunk):
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._chunk, self._position = chunk, 0
        data = self._chunk[self._position : self._position + length]
        self._position += len(data)
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        # Ends `decompress_file`, which closes the compressed file.
        self._chunks.close()  # type: ignore[attr-defined]
        super().close()

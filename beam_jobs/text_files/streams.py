"""The bytes of a file in chunks: from an offset on, or unpacked from start to end.

Streams are unpacked one after the other with the decompressors of zlib, bz2 and zstandard, not with these packages' file objects:
`bz2.BZ2File` ignores a damaged second stream, and zstandard's `stream_reader` ends without an error in a cut frame.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import zstandard

from tpudata.errors import CorruptionError, SourceError
from tpudata.storage import storage_for

CHUNK_BYTES = 1 << 22
# Bytes after a range are read in small steps, since the last record of the range ends soon.
_AFTER_BYTES = 1 << 16
# Few enough that their unpacked bytes stay few: a zstd block of 4 bytes may unpack to 128 kB.
_PACKED_BYTES = 1 << 11
GZIP, BZIP2, ZSTD, XZ = "gzip", "bzip2", "zstd", "xz"
# Suffixes of compressed files, after the name of the content.
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst", ".xz")


def find_compression(head: bytes) -> str:
    """Return the compression of a file, by its first 16 bytes: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string."""
    if head.startswith(b"\x1f\x8b"):
        return GZIP
    # Text may begin with BZh; the magic of a block, or of the end of an empty stream, follows in bzip2.
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):
        return BZIP2
    if head.startswith(b"\xfd7zXZ\0"):
        return XZ
    # A frame, or a skippable one.
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return ZSTD
    return ""


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
    offset = 0
    with storage_for(path).open(path) as file:
        try:
            for chunk in _decompressed(file, compression):
                offset += len(chunk)
                yield chunk
        except (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, EOFError) as error:
            raise CorruptionError(
                path, offset, f"the {compression} stream is cut or damaged: {error} (the offset counts unpacked bytes)"
            ) from None


def _decompressed(file: BinaryIO, compression: str) -> Iterator[bytes]:
    decompressor: Any = None
    held: list[bytes] = []
    size = 0
    while data := file.read(_PACKED_BYTES):
        # Zeros may follow a gzip stream, as on tapes, and in multiples of four an xz stream.
        while data := data.lstrip(b"\0") if decompressor is None and compression in (GZIP, XZ) else data:
            decompressor = decompressor or _decompressor(compression)
            piece = decompressor.decompress(data)
            held.append(piece)
            size += len(piece)
            data, decompressor = (decompressor.unused_data, None) if decompressor.eof else (b"", decompressor)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)
    if decompressor is not None:
        raise EOFError("it ends too soon")


def _decompressor(compression: str) -> Any:
    if compression == GZIP:
        return zlib.decompressobj(zlib.MAX_WBITS | 16)
    if compression == XZ:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ)
    return bz2.BZ2Decompressor() if compression == BZIP2 else zstandard.ZstdDecompressor().decompressobj()


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

"""Shards that are compressed with gzip, and that can be entered at every block all the same.

The file is one gzip member (RFC 1952), which any reader of gzip reads from its start:

    bytes    what
    10       header, always the same: no name and no time
    ...      one deflate stream (RFC 1951) of all records
    8        CRC-32 and length of what was compressed, as gzip has them

Behind each block of records the stream is flushed in full: what follows does not refer to what came before, and begins on a byte.
So `zlib.decompressobj(-15)` unpacks any run of blocks from its bytes alone. The index says where each block begins.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import BinaryIO

import google_crc32c

from tpudata.errors import UsageError

GZIP = "gzip"
# The fastest: JPEGs and pixels come out as large at any level; English text a sixth larger than at level 6, in a fifth of its
# time.
_LEVEL = 1
# Magic, deflate, no flags, no time, "fastest", unknown system: the same bytes wherever a worker runs.
HEADER = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"
_TRAILER = struct.Struct("<II")
# The stream ends with an empty block of two bytes.
ENDING_BYTES = 2 + _TRAILER.size


class GzipBlockWriter:
    """Writes such a file.

    Args:
        file: opened for writing, at its start.

    Attributes:
        offsets: byte offset in the file at which each block begins, and where the last finished one ends.
        size: bytes written to the file.
        crc32c: CRC-32C of the file's bytes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.size = self.crc32c = 0
        self._file = file
        self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._unpacked_size = self._unpacked_crc = 0
        self._write(HEADER)
        self.offsets = [self.size]

    def write(self, pieces: Iterable[bytes]) -> None:
        """Compresses what belongs to the current block."""
        for piece in pieces:
            self._unpacked_size += len(piece)
            self._unpacked_crc = zlib.crc32(piece, self._unpacked_crc)
            self._write(self._packer.compress(piece))

    def end_block(self) -> None:
        """Ends the current block."""
        self._write(self._packer.flush(zlib.Z_FULL_FLUSH))
        self.offsets.append(self.size)

    def finish(self) -> None:
        """Ends the stream, behind a finished block."""
        self._write(self._packer.flush() + _TRAILER.pack(self._unpacked_crc, self._unpacked_size & 0xFFFFFFFF))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)


def check_compression(compression: str | None) -> None:
    """Raises UsageError unless shards may be compressed so."""
    if compression not in (None, GZIP):
        raise UsageError(f"compression={compression!r}: allowed are None and {GZIP!r}.")


def unpack_blocks(data: bytes, size: int) -> bytes:
    """Unpacks one block, or several that stand one behind the other.

    Args:
        data: their bytes in the file.
        size: number of bytes that they unpack to.

    Raises:
        ValueError: they do not; says why.
    """
    try:
        # One byte more than is due shows that there is too much, without unpacking all of it.
        unpacked = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(unpacked) != size:
        raise ValueError(f"{'more than ' if len(unpacked) > size else ''}{min(len(unpacked), size)} of {size} bytes")
    return unpacked

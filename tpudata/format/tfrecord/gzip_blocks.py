"""Shards compressed with gzip that can still be read from any block.

Each block of records is a separate gzip member (RFC 1952), with nothing between or around the members, so any reader of gzip reads
the file from its start. A member:

    bytes    what
    10       header, always the same: no name and no time
    ...      a deflate stream (RFC 1951) of the block's records
    4        CRC-32 of the block's records, uint32 little-endian
    4        their size in bytes modulo 2**32, uint32 little-endian

The index contains the offset of each block: the bytes of any run of blocks are a gzip file, with checksums.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import BinaryIO

import google_crc32c

from tpudata.errors import UsageError

GZIP = "gzip"
# Deflate compresses at most 258 bytes into 2 bits.
MAX_RATIO = 1032
# The fastest level: JPEGs and pixels have the same size at any level; English text is a sixth larger than at level 6, in a fifth
# of the time.
_LEVEL = 1
# Added to zlib's window bits: one member of gzip.
_GZIP_MEMBER = 16
# Magic, deflate, no flags, no time, "fastest", unknown system: the same bytes on any machine.
HEADER = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"
_TRAILER = struct.Struct("<II")


class GzipBlockWriter:
    """Writer of a file of gzip blocks.

    Args:
        file: file opened for writing, at its start.

    Attributes:
        offsets: byte offset in the file at which each block begins, and the end of the last finished one.
        size: bytes written to the file.
        crc32c: CRC-32C of the file's bytes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.size = self.crc32c = 0
        self.offsets = [0]
        self._file = file
        self._compressor = _make_compressor()
        self._unpacked_size = self._unpacked_crc = 0

    def write(self, pieces: Iterable[bytes]) -> None:
        """Append data to the current block."""
        # With an empty first piece, the next piece would begin the block again.
        for piece in filter(None, pieces):
            if not self._unpacked_size:
                self._write(HEADER)
            self._unpacked_size += len(piece)
            self._unpacked_crc = zlib.crc32(piece, self._unpacked_crc)
            self._write(self._compressor.compress(piece))

    def end_block(self) -> None:
        """End the current block, which must not be empty."""
        self._write(self._compressor.flush() + _TRAILER.pack(self._unpacked_crc, self._unpacked_size & 0xFFFFFFFF))
        self.offsets.append(self.size)
        self._compressor = _make_compressor()
        self._unpacked_size = self._unpacked_crc = 0

    def _write(self, data: bytes) -> None:
        """Write compressed bytes to the file, and add them to its size and checksum."""
        self._file.write(data)
        self.size += len(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)


def _make_compressor() -> zlib._Compress:
    """Return a compressor of one block, without gzip's header and trailer."""
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)


def measure_compressed_size(pieces: Iterable[bytes]) -> int:
    """Return the number of bytes that a block of these pieces takes in a file."""
    compressor = _make_compressor()
    deflated_size = sum(len(compressor.compress(piece)) for piece in pieces) + len(compressor.flush())
    return len(HEADER) + deflated_size + _TRAILER.size


def check_compression(compression: str | None) -> None:
    """Raise UsageError unless this compression is known."""
    if compression not in (None, GZIP):
        raise UsageError(f"compression: unknown value (got {compression!r}, expected None or {GZIP!r}).")


def unpack_blocks(data: bytes, size: int) -> bytes:
    """Unpack one block, or several consecutive ones.

    Args:
        data: bytes of the blocks in the file.
        size: number of bytes that they unpack to.

    Raises:
        ValueError: the number of unpacked bytes or a checksum is wrong.
    """
    blocks = []
    missing_bytes = size
    while data:
        decompressor = zlib.decompressobj(zlib.MAX_WBITS | _GZIP_MEMBER)
        try:
            # Reading one more byte than expected detects trailing data without unpacking all of it.
            block = decompressor.decompress(data, missing_bytes + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if len(block) > missing_bytes:
            raise ValueError(f"more than {size} bytes")
        if not decompressor.eof:
            raise ValueError(f"{size - missing_bytes + len(block)} of {size} bytes")
        blocks.append(block)
        missing_bytes -= len(block)
        data = decompressor.unused_data
    if missing_bytes:
        raise ValueError(f"{size - missing_bytes} of {size} bytes")
    return b"".join(blocks)

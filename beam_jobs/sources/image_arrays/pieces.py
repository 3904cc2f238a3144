"""Reading numbers in order from a part of a file, which may be compressed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from beam_jobs.compression.decompressors import DECOMPRESSION_ERRORS
from tpudata.errors import CorruptionError
from tpudata.storage import storage_for

_PIECE_BYTES = 1 << 20


class PieceReader:
    """Reader of bytes that come in pieces.

    Args:
        pieces: bytes in pieces of any size; iterating may raise DECOMPRESSION_ERRORS.
        path: path of the file, for messages.
        offset: offset of the first piece in the file, for messages.
    """

    def __init__(self, pieces: Iterator[bytes], path: str, offset: int) -> None:
        self._pieces = pieces
        self._path = path
        self._offset = offset
        # Bytes of the last piece that are not taken yet.
        self._unread = memoryview(b"")

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; CorruptionError if there are fewer, or compressed data is damaged."""
        parts = []
        missing_bytes = size
        while missing_bytes:
            if not len(self._unread):
                self._unread = memoryview(self._read_next())
            part = self._unread[:missing_bytes]
            self._unread = self._unread[len(part) :]
            parts.append(part)
            missing_bytes -= len(part)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def _read_next(self) -> bytes:
        """Return the next piece; CorruptionError if there is none, or it is damaged."""
        try:
            piece = next(self._pieces, None)
        except DECOMPRESSION_ERRORS as error:
            raise self.make_error(f"cut or damaged: {error}") from None
        if piece is None:
            raise self.make_error("it ends before the last number that its header counts")
        return piece

    def make_error(self, reason: str) -> CorruptionError:
        """Return the error of damaged bytes, at the offset of the first piece."""
        return CorruptionError(self._path, self._offset, reason)


def read_pieces(path: str, start: int, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of a file from `start` in pieces; fewer if the file is truncated."""
    end = start + size
    while start < end:
        piece = storage_for(path).read_range(path, start, min(_PIECE_BYTES, end - start))
        if not piece:
            return
        yield piece
        start += len(piece)


def read_numbers(reader: PieceReader, number_format: str, count: int) -> Iterator[Any]:
    """Yield the next `count` numbers of a reader.

    Args:
        reader: reader positioned at the first number.
        number_format: format of one number with its byte order, in the notation of `struct`.
        count: how many numbers to read; CorruptionError if the reader has fewer.
    """
    number_bytes = struct.calcsize(number_format)
    # Read in batches, since a header may claim billions of numbers.
    batch_size = 1 << 16
    for first in range(0, count, batch_size):
        yield from (
            number
            for (number,) in struct.iter_unpack(
                number_format, reader.take(number_bytes * min(batch_size, count - first))
            )
        )

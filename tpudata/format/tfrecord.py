"""TFRecord framing: how records stand in a file, with their checksums.

A TFRecord file is its records one after the other, each:

    bytes    what
    8        length of the data, uint64 little-endian
    4        masked CRC-32C of these 8 bytes, uint32 little-endian
    length   the data
    4        masked CRC-32C of the data, uint32 little-endian

where masked(c) = ((c >> 15 | c << 17) + 0xa282ead8) mod 2**32. Source: TensorFlow, `tensorflow/core/lib/io/record_writer.h`.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

from tpudata.errors import CorruptionError
from tpudata.format.crc32c import crc32c_of_rest
from tpudata.storage import storage_for

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_MASK_DELTA = 0xA282EAD8
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")
# Below this length it is cheaper to copy a record into its frame than to write three pieces.
_COPY_BELOW = 1 << 14


def masked_crc32c(data: bytes) -> int:
    """The masked CRC-32C that TFRecord stores, as an unsigned 32-bit integer."""
    return _masked(google_crc32c.value(data))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Written:
    """What a RecordWriter has written.

    Attributes:
        offsets: byte offset of every record's header, and last the size of the file.
        block_crc32c: CRC-32C of the file's bytes of each block of `block_records` records; the last may be shorter.
        block_records: records per block.
        crc32c: CRC-32C of all bytes.
    """

    offsets: list[int]
    block_crc32c: list[int]
    block_records: int
    crc32c: int


class RecordWriter:
    """Writes records to an open file and remembers what its index needs: offsets and checksums.

    Args:
        file: opened for writing, at its start.
        block_records: how many records share a checksum in the index.
    """

    def __init__(self, file: BinaryIO, block_records: int) -> None:
        self._file = file
        self._block_records = block_records
        self._offsets = [0]
        self._crc = 0
        # The running checksum at the end of each whole block. A block's own follows from two of them, see `written`: it would
        # cost a second pass over every byte otherwise.
        self._block_ends: list[int] = []

    def write(self, *parts: bytes) -> None:
        """Appends one record, given whole or in parts of its data."""
        size = data_crc = 0
        for part in parts:
            size += len(part)
            data_crc = google_crc32c.extend(data_crc, part)
        length = _LENGTH.pack(size)
        framed = (length, _CRC.pack(masked_crc32c(length)), *parts, _CRC.pack(_masked(data_crc)))
        for piece in (b"".join(framed),) if size < _COPY_BELOW else framed:
            self._file.write(piece)
            self._crc = google_crc32c.extend(self._crc, piece)
        self._offsets.append(self._offsets[-1] + size + FRAME_BYTES)
        if (len(self._offsets) - 1) % self._block_records == 0:
            self._block_ends.append(self._crc)

    def written(self) -> Written:
        """What has been written so far."""
        partial = (len(self._offsets) - 1) % self._block_records != 0
        ends = [*self._block_ends, self._crc] if partial else self._block_ends
        starts = [*self._offsets[:: self._block_records][: len(ends)], self._offsets[-1]]
        blocks = [
            crc32c_of_rest(whole, beginning, end - start)
            for whole, beginning, (start, end) in zip(ends, [0, *ends], itertools.pairwise(starts), strict=False)
        ]
        return Written(list(self._offsets), blocks, self._block_records, self._crc)


def read_records(path: str) -> Iterator[tuple[int, bytes]]:
    """Yields (byte offset, data) of every record of an uncompressed TFRecord file, each checksum checked.

    Raises:
        CorruptionError: a checksum does not fit or the file ends inside a record.
        StorageError: the file cannot be read.
    """
    storage = storage_for(path)
    entry = storage.stat(path)
    size = entry.size if entry else 0
    offset = 0
    with storage.open(path) as file:
        while header := file.read(HEADER_BYTES):
            if len(header) < HEADER_BYTES:
                raise CorruptionError(
                    path, offset, f"the file ends inside a record's header ({len(header)} of {HEADER_BYTES} bytes)"
                )
            length, crc = _HEADER.unpack(header)
            if masked_crc32c(header[: _LENGTH.size]) != crc:
                raise CorruptionError(path, offset, "the checksum of a record's length does not fit")
            if length > size - offset - FRAME_BYTES:
                raise CorruptionError(path, offset, f"the file ends inside a record of {length} bytes")
            data = file.read(length)
            footer = file.read(FOOTER_BYTES)
            if len(data) + len(footer) < length + FOOTER_BYTES:
                raise CorruptionError(path, offset, f"the file ends inside a record of {length} bytes")
            if masked_crc32c(data) != _CRC.unpack(footer)[0]:
                raise CorruptionError(path, offset, f"the checksum of a record of {length} bytes does not fit")
            yield offset, data
            offset += length + FRAME_BYTES

"""Scan for the record offsets of a TFRecord file without an index, in one pass.

It reads the headers and compares their checksums; small records are read whole. The offsets take 8 bytes per record.
"""

from __future__ import annotations

import zlib
from array import array
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError
from tpudata.format.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, unpack_header
from tpudata.storage import Entry, LocalStorage, storage_for

Offsets: TypeAlias = "npt.NDArray[np.int64]"

GZIP_MAGIC = b"\x1f\x8b\x08"
# Bytes that are read with one read.
READ_BYTES = 4 << 20
# Files of larger records are read header by header: in the time of a request, a local disk reads 16 kB, and an object store some
# MB.
_LARGE_BYTES = 16 << 10
_LARGE_REMOTE_BYTES = 4 << 20
# Minimum number of records in the rest of a piece for which numpy compares headers: for fewer, a loop takes no longer.
_MIN_RUN = 8


def is_zlib(data: bytes) -> bool:
    """Return whether the first bytes of a file begin TFRecords compressed with ZLIB, as TensorFlow can write them."""
    # A header of two bytes: 0x78, deflate with a window of 32 KiB, and a byte that makes the two a multiple of 31 (RFC 1950).
    if data[:1] != b"\x78" or int.from_bytes(data[:2], "big") % 31:
        return False
    try:
        header = zlib.decompressobj().decompress(data, HEADER_BYTES)
    except zlib.error:
        return False
    return is_header(header)


def is_header(data: bytes) -> bool:
    """Return whether bytes are the header of a record: a length and its checksum."""
    return len(data) == HEADER_BYTES and unpack_header(data) is not None


def frame_offsets(file: Entry, *, read_bytes: int = READ_BYTES, large_bytes: int | None = None) -> Offsets:
    """Return the offset of each record of a TFRecord file, and the end of the last one: int64 [records + 1].

    Args:
        file: the TFRecord file, as it was listed.
        read_bytes: bytes of a read.
        large_bytes: smallest mean size of records, in bytes, with which only headers are read; None for the default of the storage.

    Raises:
        CorruptionError: the checksum of a record's length is wrong, the file ends inside a record, or the file is compressed.
    """
    offsets = array("q")
    offsets.append(scan_frames(file, offsets, read_bytes=read_bytes, large_bytes=large_bytes))
    return np.frombuffer(offsets, np.int64)


def scan_frames(
    file: Entry, offsets: array[int], *, read_bytes: int = READ_BYTES, large_bytes: int | None = None
) -> int:
    """Append the offset of each record of a TFRecord file to `offsets`, of type "q", and return the end of the last one.

    Args:
        file: the TFRecord file, as it was listed.
        offsets: an empty array, to which the offsets are appended.
        read_bytes: bytes of a read.
        large_bytes: smallest mean size of records, in bytes, with which only headers are read; None for the default of the storage.

    Raises:
        CorruptionError: the checksum of a record's length is wrong, the file ends inside a record, or the file is compressed;
            `offsets` then has the records before the damage, which begins at the error's `offset`.
    """
    offset = 0
    storage = storage_for(file.path)
    if large_bytes is None:
        large_bytes = _LARGE_BYTES if isinstance(storage, LocalStorage) else _LARGE_REMOTE_BYTES
    while offset < file.size:
        # Only the headers of large records are read, which saves the time for their data.
        has_large_records = bool(offsets) and offset // len(offsets) >= large_bytes
        size = HEADER_BYTES if has_large_records else read_bytes
        data = storage.read_range(file.path, offset, min(size, file.size - offset))
        if len(data) < HEADER_BYTES:
            raise CorruptionError(
                file.path, offset, f"the file ends inside a record's header ({len(data)} of {HEADER_BYTES} bytes)"
            )
        offset = _walk_headers(data, offset, file, offsets)
    return offset


def _walk_headers(data: bytes, piece_offset: int, file: Entry, offsets: array[int]) -> int:
    """Append the offsets of the records whose headers are in a piece of a file; return the offset of the last record's end.

    Args:
        data: the piece.
        piece_offset: offset of the piece in the file.
        file: the whole file, as it was listed.
        offsets: array to which the offsets in the file are appended.

    Raises:
        CorruptionError: the checksum of a record's length is wrong, the file ends inside a record, or the file is compressed.
    """
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = data[position : position + HEADER_BYTES]
        length = unpack_header(header)
        record_offset = piece_offset + position
        if length is None:
            if record_offset == 0 and header.startswith(GZIP_MAGIC):
                reason = "the file is compressed, so its records cannot be located. Unpack it with gunzip."
                raise CorruptionError(file.path, 0, reason)
            if record_offset == 0 and is_zlib(data):
                reason = "the file is compressed with ZLIB, so its records cannot be located. Write it again without compression."
                raise CorruptionError(file.path, 0, reason)
            reason = (
                "the checksum of a record's length does not match, so the next record cannot be located. Restore the file, or"
                " omit it; tpudata.format.read_records yields the records before it."
            )
            raise CorruptionError(file.path, record_offset, reason)
        size = length + FRAME_BYTES
        if size > file.size - record_offset:
            raise CorruptionError(file.path, record_offset, f"the file ends inside a record of {length} bytes")
        count = 1
        # Many files have records of one size; numpy compares their headers faster than this loop.
        if data[position + size : position + size + HEADER_BYTES] == header:
            count += _count_equal_records(data, position + size, size, header)
        offsets.extend(range(record_offset, record_offset + size * count, size))
        position += size * count
    return piece_offset + position


def _count_equal_records(data: bytes, position: int, frame_bytes: int, header: bytes) -> int:
    """Return the number of consecutive whole records from `position` on with this header; 0 if too few remain to compare.

    Args:
        data: a piece of a file.
        position: offset in `data` of the first of these records.
        frame_bytes: bytes of each of these records, with its header and footer.
        header: the header.
    """
    max_count = (len(data) - position) // frame_bytes
    if max_count < _MIN_RUN:
        return 0
    frames = np.frombuffer(data, np.uint8, count=max_count * frame_bytes, offset=position).reshape(
        max_count, frame_bytes
    )
    is_equal = (frames[:, :HEADER_BYTES] == np.frombuffer(header, np.uint8)).all(axis=1)
    return max_count if is_equal.all() else int(is_equal.argmin())

"""Where records begin in files that have no index: one pass over what must be read for it, and no more.

Of TFRecords that are the headers, whose checksums are checked; where records are small, whole files are read. Of lines it is every
byte. The result is 8 bytes per record.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.console.tables import counted
from tpudata.errors import CorruptionError
from tpudata.format.tfrecord import FRAME_BYTES, HEADER_BYTES, masked_crc32c
from tpudata.storage import Entry, LocalStorage, storage_for

Offsets: TypeAlias = "npt.NDArray[np.int64]"

GZIP_MAGIC = b"\x1f\x8b\x08"
_HEADER = struct.Struct("<QI")
# Read at one time.
_READ_BYTES = 4 << 20
# A file of records larger than this is read header by header: what a request costs, a local disk reads 16 kB in, and an object
# store some MB.
_LARGE_BYTES = 16 << 10
_LARGE_REMOTE_BYTES = 4 << 20
# Fewer records of one length are walked through one by one.
_LEAST_RUN = 8


def frame_offsets(file: Entry) -> Offsets:
    """Where the records of a TFRecord file begin, and the end of the last one: int64 [records + 1].

    Raises:
        CorruptionError: the checksum of a record's length does not fit, the file ends inside a record, or it is compressed.
    """
    starts: list[int] = []
    offset = 0
    storage = storage_for(file.path)
    large = _LARGE_BYTES if isinstance(storage, LocalStorage) else _LARGE_REMOTE_BYTES
    while offset < file.size:
        is_large = bool(starts) and offset // len(starts) >= large
        length = HEADER_BYTES if is_large else _READ_BYTES
        data = storage.read_range(file.path, offset, min(length, file.size - offset))
        if len(data) < HEADER_BYTES:
            raise CorruptionError(
                file.path, offset, f"the file ends inside a record's header ({len(data)} of {HEADER_BYTES} bytes)"
            )
        offset = _walk(data, offset, file, starts)
    return np.array([*starts, offset], np.int64)


def _walk(data: bytes, offset: int, file: Entry, starts: list[int]) -> int:
    """Note where the records of a piece of a file begin; return where the last one ends. The piece begins with a header."""
    place = 0
    while place + HEADER_BYTES <= len(data):
        header = data[place : place + HEADER_BYTES]
        length, crc = _HEADER.unpack(header)
        begin = offset + place
        if masked_crc32c(header[:8]) != crc:
            if begin == 0 and header.startswith(GZIP_MAGIC):
                reason = "the file is compressed, and nothing says where its records begin. Unpack it with gunzip."
                raise CorruptionError(file.path, 0, reason)
            reason = (
                "the checksum of a record's length does not fit: nothing says where the next record begins, so none after it can be"
                " read. Restore the file, or omit it; tpudata.format.read_records yields the records before it."
            )
            raise CorruptionError(file.path, begin, reason)
        size = length + FRAME_BYTES
        if size > file.size - begin:
            raise CorruptionError(file.path, begin, f"the file ends inside a record of {length} bytes")
        count = 1
        if data[place + size : place + size + HEADER_BYTES] == header:
            count += _run(data, place + size, size, header)
        starts.extend(range(begin, begin + size * count, size))
        place += size * count
    return offset + place


def _run(data: bytes, place: int, size: int, header: bytes) -> int:
    """How many whole records from a place on have the same header, so the same size."""
    most = (len(data) - place) // size
    if most < _LEAST_RUN:
        return 0
    frames = np.frombuffer(data, np.uint8, most * size, place).reshape(most, size)
    same = (frames[:, :HEADER_BYTES] == np.frombuffer(header, np.uint8)).all(axis=1)
    return most if same.all() else int(same.argmin())


def line_offsets(file: Entry, skip_lines: int) -> Offsets:
    """Where the lines of a text file begin, without the first ones, and the end of the last one: int64 [lines + 1].

    Raises:
        CorruptionError: the file is compressed, or shorter than it was when it was listed.
    """
    parts = [np.zeros(1, np.int64)]
    offset = 0
    while offset < file.size:
        data = storage_for(file.path).read_range(file.path, offset, min(_READ_BYTES, file.size - offset))
        if not data:
            raise CorruptionError(file.path, offset, f"the file ends here, and had {file.size} bytes before")
        if offset == 0 and data.startswith(GZIP_MAGIC):
            raise CorruptionError(file.path, 0, "the file is compressed, and has no lines. Unpack it with gunzip.")
        parts.append(offset + 1 + np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")))
        offset += len(data)
    offsets = np.concatenate(parts)
    if offsets[-1] < file.size:
        offsets = np.append(offsets, file.size)
    return offsets[min(skip_lines, len(offsets) - 1) :]


def fixed_offsets(file: Entry, record_bytes: int, header_bytes: int, footer_bytes: int) -> Offsets:
    """Where the records of one length begin in a file, and the end of the last one: int64 [records + 1].

    Raises:
        CorruptionError: what is between header and footer is not a number of whole records.
    """
    body = file.size - header_bytes - footer_bytes
    records, over = divmod(body, record_bytes)
    if body < 0 or over:
        raise CorruptionError(
            file.path,
            max(0, file.size - footer_bytes - over if body >= 0 else file.size),
            f"the file has {file.size} bytes: {header_bytes} of header, {footer_bytes} of footer and"
            f" {counted(max(0, records), 'record')} of {record_bytes} leave {over if body >= 0 else body}."
            " Name the right sizes, or unpack a file that is compressed.",
        )
    return header_bytes + record_bytes * np.arange(records + 1)

"""Scan for the record offsets of a TFRecord file without an index: one pass that reads no more than it needs.

That is the headers, whose checksums are compared; small records are read whole. The result is 8 bytes per record.
"""

from __future__ import annotations

import struct
from array import array
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError
from tpudata.format.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, masked_crc32c
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
    """Return where the records of a TFRecord file begin, and the end of the last one: int64 [records + 1].

    Raises:
        CorruptionError: the checksum of a record's length does not fit, the file ends inside a record, or it is compressed.
    """
    starts = array("q")
    starts.append(scan_frames(file, starts))
    return np.frombuffer(starts, np.int64)


def scan_frames(file: Entry, starts: array[int]) -> int:
    """Append where each record of a TFRecord file begins to `starts`, of type "q", and return the end of the last one.

    Raises:
        CorruptionError: as of `frame_offsets`; `starts` then has the records before the damage, which begins at `offset`.
    """
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
    return offset


def _walk(data: bytes, offset: int, file: Entry, starts: array[int]) -> int:
    """Note where records begin whose headers are in a piece of a file, which begins with one; return where the last one ends."""
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
                " read. Restore the file, or leave it out; tpudata.format.read_records yields the records before it."
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
    """Return how many whole records from a place on have the same header, so the same size."""
    most = (len(data) - place) // size
    if most < _LEAST_RUN:
        return 0
    frames = np.frombuffer(data, np.uint8, most * size, place).reshape(most, size)
    same = (frames[:, :HEADER_BYTES] == np.frombuffer(header, np.uint8)).all(axis=1)
    return most if same.all() else int(same.argmin())

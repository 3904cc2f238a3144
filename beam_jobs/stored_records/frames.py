"""Frames of records in a TFRecord file: reading them, and verifying their checksums."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tpudata.errors import BadRecordError, CorruptionError, DatasetError
from tpudata.format import ShardIndex
from tpudata.format.shards.indexed_records import read_indexed
from tpudata.format.tfrecord.framing import FRAME_BYTES, pack_frame, unpack_frame
from tpudata.storage import storage_for

# Bytes of one read; a larger record is read by itself.
_READ_BYTES = 4 << 20


def remove_frame(frame: bytes, path: str, offset: int) -> bytes:
    """Return the data of a frame, after verifying its length and checksums.

    Args:
        frame: bytes of the frame.
        path: path of the file of records, for messages.
        offset: byte offset of the frame in the file, for messages.

    Raises:
        BadRecordError: the frame is truncated, or its length or a checksum is wrong.
    """
    if len(frame) < FRAME_BYTES:
        raise BadRecordError(path, f"no whole record (got {len(frame)} bytes, expected {FRAME_BYTES} or more)", offset)
    try:
        return unpack_frame(frame, path, offset)
    except CorruptionError as error:
        fix = "restore the file, or pass --on-bad-record=skip to omit the record"
        raise BadRecordError(path, f"{error.reason}; {fix}", offset) from None


def read_frames(path: str, offsets: npt.NDArray[np.int64], first_record: int, stop_record: int) -> Iterator[bytes]:
    """Yield the frames of the records first_record, ..., stop_record - 1 of an uncompressed file; they are not verified.

    Args:
        path: path of the file.
        offsets: int64 [records + 1], byte offset of each frame, and the end of the last one.
        first_record: index of the first record.
        stop_record: index of the record after the last one.

    Raises:
        StorageError: the file cannot be read.
    """
    while first_record < stop_record:
        start = int(offsets[first_record])
        # A block has as many whole frames as one read may have, and at least one.
        block_stop = max(
            first_record + 1, min(stop_record, int(np.searchsorted(offsets, start + _READ_BYTES, side="right")) - 1)
        )
        # The caller that removes a frame verifies its checksums.
        data = storage_for(path).read_range(path, start, int(offsets[block_stop]) - start, is_checked=True)
        for record_index in range(first_record, block_stop):
            yield data[int(offsets[record_index]) - start : int(offsets[record_index + 1]) - start]
        first_record = block_stop


def read_compressed_frames(
    path: str, index: ShardIndex, first_record: int, stop_record: int
) -> Iterator[bytes | DatasetError]:
    """Yield the frame of each record first_record, ..., stop_record - 1 of a compressed shard, or the error of reading it.

    If a block is damaged, the error stands for each of its records from the damage on.

    Args:
        path: path of the shard.
        index: index of the shard.
        first_record: index of the first record.
        stop_record: index of the record after the last one.

    Raises:
        StorageError: the file cannot be read.
    """
    while first_record < stop_record:
        block_stop = min((first_record // index.block_records + 1) * index.block_records, stop_record)
        record_index = first_record
        try:
            for _, data in read_indexed(path, index, first_record, block_stop):
                yield pack_frame(data)
                record_index += 1
        except CorruptionError as error:
            yield from itertools.repeat(error, block_stop - record_index)
        first_record = block_stop

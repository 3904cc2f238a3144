"""Frames of records, one behind the other as in their shard: unpacked, checked, and whole ones put in place of damaged ones.

What a frame looks like stands in `tpudata.format.tfrecord`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Collection, Iterator
from typing import TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError
from tpudata.format import ShardIndex
from tpudata.format.gzip_blocks import unpack_blocks
from tpudata.format.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, UNPACKED, masked_crc32c
from tpudata.storage import storage_for

# (number in the piece, error) of damaged records.
Defects: TypeAlias = "list[tuple[int, CorruptionError]]"
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


def unpacked_frames(path: str, index: ShardIndex, begin: int, end: int, *, is_checked: bool) -> tuple[bytes, Defects]:
    """Return the frames of the records [begin, end) of a compressed shard; those of blocks that do not unpack are zeros and named.

    Pass `is_checked` if `damaged_frames` gets them.
    """
    per_block = index.block_records
    blocks = range(begin // per_block, -(-end // per_block))
    place, stop = packed_range(index, begin, end)
    packed = storage_for(path).read_range(path, place, stop - place, is_checked=is_checked)
    parts, lost = [], []
    for block in blocks:
        (start, end_of_block), (first, last) = index.file_range(block), index.block_range(block)
        try:
            parts.append(unpack_blocks(packed[start - place : end_of_block - place], last - first))
        except ValueError as error:
            parts.append(bytes(last - first))
            for record in range(max(begin, block * per_block), min(end, (block + 1) * per_block)):
                reason = f"the block of the record does not unpack: {error}{UNPACKED}"
                lost.append((record - begin, CorruptionError(path, int(index.offsets[record]), reason)))
    skipped = int(index.offsets[begin]) - index.block_range(blocks[0])[0]
    size = int(index.offsets[end] - index.offsets[begin])
    return b"".join(parts)[skipped : skipped + size], lost


def packed_range(index: ShardIndex, begin: int, end: int) -> tuple[int, int]:
    """[start, stop) in the file of the blocks that hold the records [begin, end) of a compressed shard."""
    first, last = begin // index.block_records, (end - 1) // index.block_records
    return index.file_range(first)[0], index.file_range(last)[1]


def damaged_frames(
    data: bytes, bounds: npt.NDArray[np.int64], index: ShardIndex, begin: int, path: str, known: Collection[int]
) -> Iterator[tuple[int, CorruptionError]]:
    """Yields (number in the piece, error) of each damaged record of a piece that starts with the shard's record `begin`.

    The records `known` are damaged already, and not looked at again.
    """
    count, per_block, offset = len(bounds) - 1, index.block_records, int(index.offsets[begin])
    # The checksum takes bytes or a read-only array, of which a part is no copy.
    view = np.frombuffer(data, np.uint8)
    if begin % per_block == 0 and ((begin + count) % per_block == 0 or begin + count == index.records):
        ends = [*bounds[:-1:per_block].tolist(), int(bounds[-1])]
        found_crcs = [google_crc32c.value(view[a:b]) for a, b in itertools.pairwise(ends)]
        if found_crcs == index.block_crc32c[begin // per_block :][: len(found_crcs)].tolist():
            return  # Whole blocks, and all as they were written.
    start = 0
    while start < count:
        block = (begin + start) // per_block
        stop = min(count, (block + 1) * per_block - begin)
        # A whole block, of which the index has a checksum.
        is_whole = begin + start == block * per_block and begin + stop in ((block + 1) * per_block, index.records)
        is_whole = is_whole and block < index.blocks
        if is_whole and google_crc32c.value(view[bounds[start] : bounds[stop]]) == index.block_crc32c[block]:
            start = stop
            continue
        found = False
        for number in range(start, stop):
            reason = None if number in known else _defect(data[bounds[number] : bounds[number + 1]])
            found = found or number in known or reason is not None
            if reason is not None:
                if index.compression is not None:
                    reason += UNPACKED
                yield number, CorruptionError(path, offset + int(bounds[number]), reason)
        if is_whole and not found:
            raise CorruptionError(
                path,
                offset + int(bounds[start]),
                f"{bounds[stop] - bounds[start]} bytes of whole records are not those that were written, by the index's checksums."
                " Convert the dataset again.",
            )
        start = stop


def _defect(frame: bytes) -> str | None:
    """What is wrong with the frame of a record, in words, or None."""
    length, crc = _HEADER.unpack_from(frame)
    if masked_crc32c(frame[:8]) != crc:
        return "the checksum of a record's length does not fit"
    if length != len(frame) - FRAME_BYTES:
        return f"a record of {length} bytes, by the index it has {len(frame) - FRAME_BYTES}. Convert the dataset again."
    if masked_crc32c(frame[HEADER_BYTES:-FOOTER_BYTES]) != _FOOTER.unpack(frame[-FOOTER_BYTES:])[0]:
        return f"the checksum of a record of {length} bytes does not fit"
    return None


def mended_frames(
    data: bytes, bounds: npt.NDArray[np.int64], damaged: set[int], whole: bytes
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The frames with a whole one in place of each damaged one."""
    frames = [data[a:b] for a, b in itertools.pairwise(bounds.tolist())]
    for number in damaged:
        frames[number] = whole
    return b"".join(frames), np.cumsum([0, *map(len, frames)])

"""Chunks: runs of neighbouring records of a shard, which one request reads and which are checked together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
import numpy as np

from tpudata.errors import CorruptionError
from tpudata.format import ShardIndex
from tpudata.format.shards.indexed_records import read_blocks
from tpudata.format.tfrecord.framing import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    LENGTH_BYTES,
    check_frame,
    find_damage,
)
from tpudata.storage import is_remote, storage_for

# At 50 ms a request and 25 MB/s, latency is an eighth of its time; its CPU, some 1 ms, is a tenth of that of its bytes.
CHUNK_BYTES = 8 << 20


class Record(NamedTuple):
    """One serialized record and its place.

    Attributes:
        data: the record.
        path: the shard.
        offset: byte offset of its frame in the shard, before compression.
    """

    data: bytes
    path: str
    offset: int


class Chunk(NamedTuple):
    """Neighbouring records of a shard.

    Attributes:
        shard: index of the shard in `ShardRecords.shards`.
        first: index of the first record in the shard.
        stop: index of the record after the last one.
    """

    shard: int
    first: int
    stop: int


class LoadedChunk:
    """Records of a chunk in memory.

    Args:
        path: path of the shard.
        index: index of the shard.
        chunk: the chunk.
        data: bytes of the records with their frames, unpacked; more may surround them.
        begin: byte offset in the shard at which `data` begins.
    """

    def __init__(self, path: str, index: ShardIndex, chunk: Chunk, data: bytes, begin: int) -> None:
        self._path = path
        self._data = data
        self._begin = begin
        self._offsets: list[int] = index.offsets[chunk.first : chunk.stop + 1].tolist()
        self.is_intact = self._matches(index, chunk)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._offsets) - 1

    def record(self, index: int) -> Record:
        """Return one record, counted from 0; CorruptionError if it is damaged."""
        offset, end = self._offsets[index], self._offsets[index + 1]
        begin, frame_end = offset - self._begin, end - self._begin
        if self.is_intact:
            data = self._data[begin + HEADER_BYTES : frame_end - FOOTER_BYTES]
        else:
            data = check_frame(self._data[begin:frame_end], self._path, offset)
        return Record(data, self._path, offset)

    def _matches(self, index: ShardIndex, chunk: Chunk) -> bool:
        """Return whether all records match their checksums, those of whole blocks by one checksum a block, and their lengths the
        index, whose offsets may be damaged.
        """
        bytes_ = np.frombuffer(self._data, np.uint8)
        begins = np.array(self._offsets, np.int64) - self._begin
        sizes = np.diff(begins) - FRAME_BYTES
        if (sizes < 0).any():
            return False
        heads = bytes_[begins[:-1, np.newaxis] + np.arange(LENGTH_BYTES)]
        if not np.array_equal(heads.view("<u8")[:, 0], sizes):
            return False
        step = index.block_records
        record = chunk.first
        while record < chunk.stop:
            block = record // step
            end = min((block + 1) * step, index.records)
            if record % step == 0 and end <= chunk.stop:
                begin, end_byte = (offset - self._begin for offset in index.block_range(block))
                if google_crc32c.value(bytes_[begin:end_byte]) != index.block_crc32c[block]:
                    return False
                record = end
                continue
            for row in range(record - chunk.first, min(end, chunk.stop) - chunk.first):
                begin, frame_end = self._offsets[row] - self._begin, self._offsets[row + 1] - self._begin
                if find_damage(bytes_[begin:frame_end]):
                    return False
            record = min(end, chunk.stop)
        return True


def load_chunk(path: str, index: ShardIndex, chunk: Chunk) -> LoadedChunk:
    """Read a chunk, once more if it arrives damaged from an object store.

    Raises:
        CorruptionError: the file ends in it, or a compressed block does not unpack.
        StorageError: the file cannot be read.
    """
    try:
        loaded = _load(path, index, chunk)
        if loaded.is_intact:
            return loaded
    except CorruptionError:
        if not is_remote(path):
            raise
    # Ranges of an object have no checksum: intact bytes may be damaged in transit.
    return _load(path, index, chunk) if is_remote(path) else loaded


def _load(path: str, index: ShardIndex, chunk: Chunk) -> LoadedChunk:
    """Read and cut the records of a chunk."""
    if index.compression is not None:
        first_block, stop_block = chunk.first // index.block_records, -(-chunk.stop // index.block_records)
        data = read_blocks(path, index, first_block, stop_block, is_checked=True)
        return LoadedChunk(path, index, chunk, data, index.block_range(first_block)[0])
    begin, end = int(index.offsets[chunk.first]), int(index.offsets[chunk.stop])
    data = storage_for(path).read_range(path, begin, end - begin, is_checked=True)
    if len(data) < end - begin:
        raise CorruptionError(path, begin + len(data), f"the file ends inside a record (expected {end} bytes)")
    return LoadedChunk(path, index, chunk, data, begin)


def cut_by_bytes(index: ShardIndex, first: int, stop: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a run of records into runs of at most `most_bytes` bytes, or one record; of a compressed shard, at its blocks.

    Args:
        index: index of the shard.
        first: index of the run's first record.
        stop: index of the record after its last one.
        most_bytes: bytes of a part, before compression.

    Returns:
        First record of each part, and the record after its last one.
    """
    step = 1 if index.compression is None else index.block_records
    while first < stop:
        limit = np.uint64(int(index.offsets[first]) + most_bytes)
        part_stop = int(np.searchsorted(index.offsets, limit, "right")) - 1
        part_stop = stop if part_stop >= stop else min(max(part_stop // step * step, (first // step + 1) * step), stop)
        yield first, part_stop
        first = part_stop


def chunk_bytes(index: ShardIndex, first: int, stop: int) -> int:
    """Return the bytes of records in memory."""
    return int(index.offsets[stop]) - int(index.offsets[first])

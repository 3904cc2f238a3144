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
    find_damage,
    unpack_frame,
)
from tpudata.storage import is_remote, storage_for

# At 50 ms a request and 25 MB/s, latency is an eighth of a chunk's time; the CPU of a request, some 1 ms, is a tenth of the CPU for
# the chunk's bytes.
CHUNK_BYTES = 8 << 20


class Record(NamedTuple):
    """One serialized record, and where it is stored.

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
        shard_index: index of the shard in `ShardRecords.shards`.
        first: index of the first record in the shard.
        stop: index of the record after the last one.
    """

    shard_index: int
    first: int
    stop: int


class LoadedChunk:
    """Records of a chunk in memory.

    Args:
        path: path of the shard.
        index: index of the shard.
        chunk: the chunk.
        data: bytes of the records with their frames, unpacked; more may surround them.
        data_begin: byte offset in the shard, before compression, at which `data` begins.

    Attributes:
        is_intact: whether no record is damaged.
    """

    def __init__(self, path: str, index: ShardIndex, chunk: Chunk, data: bytes, data_begin: int) -> None:
        self._path = path
        self._data = data
        self._data_begin = data_begin
        # Offsets in the shard of the records, and of the end of the last one.
        self._offsets: list[int] = index.offsets[chunk.first : chunk.stop + 1].tolist()
        self.is_intact = self._has_indexed_lengths() and self._has_valid_checksums(index, chunk)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._offsets) - 1

    def get_record(self, number: int) -> Record:
        """Return one record, counted from 0; CorruptionError if it is damaged."""
        begin, end = self._locate_frame(number)
        offset = self._offsets[number]
        if self.is_intact:
            data = self._data[begin + HEADER_BYTES : end - FOOTER_BYTES]
        else:
            data = unpack_frame(self._data[begin:end], self._path, offset)
        return Record(data, self._path, offset)

    def _locate_frame(self, number: int) -> tuple[int, int]:
        """Return the offsets in the data at which a record, with its header and footer, begins and ends."""
        return self._offsets[number] - self._data_begin, self._offsets[number + 1] - self._data_begin

    def _has_indexed_lengths(self) -> bool:
        """Return whether the lengths in the records' headers match the offsets in the index; headers and index may be damaged."""
        begins = np.array(self._offsets, np.int64) - self._data_begin
        sizes = np.diff(begins) - FRAME_BYTES
        if (sizes < 0).any():
            return False
        # The first bytes of each header, uint8 [records, 8], and as integers.
        length_bytes = np.frombuffer(self._data, np.uint8)[begins[:-1, np.newaxis] + np.arange(LENGTH_BYTES)]
        lengths = length_bytes.view("<u8")[:, 0]
        return np.array_equal(lengths, sizes)

    def _has_valid_checksums(self, index: ShardIndex, chunk: Chunk) -> bool:
        """Return whether all records match their checksums: one checksum for each whole block, and each other record's own."""
        # Slices of an array are not copies.
        data = np.frombuffer(self._data, np.uint8)
        run_first = chunk.first
        while run_first < chunk.stop:
            block_index = run_first // index.block_records
            block_stop = min((block_index + 1) * index.block_records, index.records)
            run_stop = min(block_stop, chunk.stop)
            if run_first == block_index * index.block_records and run_stop == block_stop:
                begin, end = index.block_range(block_index)
                block_data = data[begin - self._data_begin : end - self._data_begin]
                if google_crc32c.value(block_data) != index.block_crc32c[block_index]:
                    return False
            else:
                for number in range(run_first - chunk.first, run_stop - chunk.first):
                    begin, end = self._locate_frame(number)
                    if find_damage(data[begin:end]):
                        return False
            run_first = run_stop
        return True


def load_chunk(path: str, index: ShardIndex, chunk: Chunk) -> LoadedChunk:
    """Read a chunk, once more if it arrives damaged from an object store.

    A chunk whose records are damaged is returned: `LoadedChunk.get_record` raises their errors.

    Raises:
        CorruptionError: the file ends inside the chunk, or a compressed block does not unpack.
        StorageError: the file cannot be read.
    """
    try:
        loaded_chunk = _load(path, index, chunk)
        if loaded_chunk.is_intact or not is_remote(path):
            return loaded_chunk
    except CorruptionError:
        if not is_remote(path):
            raise
    # Ranges of an object have no checksum, so the bytes may have been damaged in transit.
    return _load(path, index, chunk)


def _load(path: str, index: ShardIndex, chunk: Chunk) -> LoadedChunk:
    """Read the records of a chunk; a compressed shard is read in whole blocks.

    Raises:
        CorruptionError: the file ends inside the chunk, or a compressed block does not unpack.
        StorageError: the file cannot be read.
    """
    if index.compression is not None:
        first_block = chunk.first // index.block_records
        stop_block = -(-chunk.stop // index.block_records)
        data = read_blocks(path, index, first_block, stop_block, is_checked=True)
        return LoadedChunk(path, index, chunk, data, index.block_range(first_block)[0])
    begin, end = int(index.offsets[chunk.first]), int(index.offsets[chunk.stop])
    data = storage_for(path).read_range(path, begin, end - begin, is_checked=True)
    if len(data) < end - begin:
        raise CorruptionError(path, begin + len(data), f"the file ends inside a record (expected {end} bytes)")
    return LoadedChunk(path, index, chunk, data, begin)


def cut_by_bytes(index: ShardIndex, first: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a run of records, each as (first record, record after the last one).

    A part has at most `max_bytes` bytes, or one record; a compressed shard is cut only between its blocks, so a part of it may
    be one larger block.

    Args:
        index: index of the shard.
        first: index of the run's first record.
        stop: index of the record after the run's last one.
        max_bytes: bytes of a part, before compression.
    """
    # A part may end at any multiple of this number of records.
    step = 1 if index.compression is None else index.block_records
    part_first = first
    while part_first < stop:
        # uint64 like the offsets; for another type numpy would convert all of them.
        max_end = np.uint64(int(index.offsets[part_first]) + max_bytes)
        part_stop = int(np.searchsorted(index.offsets, max_end, "right")) - 1
        if part_stop < stop:
            # The part ends at the last end of a block before that, but not before the end of its first block.
            part_stop = max(part_stop // step * step, (part_first // step + 1) * step)
        part_stop = min(part_stop, stop)
        yield part_first, part_stop
        part_first = part_stop


def count_bytes(index: ShardIndex, first: int, stop: int) -> int:
    """Return the size of the records first, ..., stop - 1 with their headers and footers, in bytes before compression."""
    return int(index.offsets[stop]) - int(index.offsets[first])

"""Records of a split in order, read ahead in chunks."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from tpudata.format import ShardIndex
from tpudata.source.chunk import CHUNK_BYTES, Chunk, LoadedChunk, Record, count_bytes, cut_by_bytes
from tpudata.source.readers import Readers
from tpudata.source.shard_records import ShardRecords

# Indexes that are read ahead, so that chunks do not wait for them: as many shards of a few MB are read at the same time.
_INDEXES_AHEAD = 32
# Minimum number of chunks that share the memory of `read_ahead`.
_MIN_CHUNKS = 4


class _SizedChunk(NamedTuple):
    """A chunk and its size.

    Attributes:
        chunk: the chunk.
        size: its bytes in memory.
    """

    chunk: Chunk
    size: int


def stream_records(records: ShardRecords, read_ahead: int, first_number: int = 0) -> Iterator[Record]:
    """Yield the records from number `first_number` on, in order.

    Closing or dropping the iterator ends its threads, after the requests in flight. In a forked process it reads anew from the
    record that comes next.

    Args:
        records: the records of a split.
        read_ahead: maximum bytes of the chunks in memory, chunks in flight included; at least one chunk is read.
        first_number: number of the first record.

    Raises:
        CorruptionError: a record or an index is damaged.
        DatasetError: an index belongs to another shard.
        StorageError: a file cannot be read.
    """
    readers = Readers()
    owner_pid = os.getpid()
    next_number = first_number
    # Small enough that several chunks are read at the same time.
    max_chunk_bytes = min(CHUNK_BYTES, max(1, read_ahead // _MIN_CHUNKS))
    chunks = _iterate_chunks(records, readers, first_number, max_chunk_bytes)
    # Chunks that are being read, each with the future of its records.
    reads: deque[tuple[_SizedChunk, Future[LoadedChunk]]] = deque()
    used_bytes = 0
    next_chunk = next(chunks, None)
    try:
        while next_chunk or reads:
            while next_chunk and (not reads or used_bytes + next_chunk.size <= read_ahead):
                reads.append((next_chunk, readers.submit(records.load, next_chunk.chunk)))
                used_bytes += next_chunk.size
                next_chunk = next(chunks, None)
            sized_chunk, read = reads.popleft()
            loaded_chunk = read.result()
            for number in range(len(loaded_chunk)):
                next_number += 1
                yield loaded_chunk.get_record(number)
                if owner_pid != os.getpid():
                    # The threads that read ahead are in the parent.
                    yield from stream_records(records, read_ahead, next_number)
                    return
            used_bytes -= sized_chunk.size
            # Without this, the chunk would stay in memory while the next one is awaited.
            del read, loaded_chunk
    finally:
        readers.close()


def _iterate_chunks(
    records: ShardRecords, readers: Readers, first_number: int, max_chunk_bytes: int
) -> Iterator[_SizedChunk]:
    """Yield the chunks from a record on, in order; indexes are read ahead.

    Args:
        records: the records of a split.
        readers: threads that read the indexes.
        first_number: number of the first record.
        max_chunk_bytes: maximum size of a chunk in bytes, before compression; a single record, or a block of a compressed
            shard, may have more.
    """
    if first_number == len(records):
        return
    first_shard_index, first_in_shard = records.locate(first_number)
    # Indices in `records.shards` of the shards whose index files have not been requested.
    shard_indices = iter(range(first_shard_index, len(records.shards)))

    def request_index(shard_index: int) -> tuple[int, Future[ShardIndex]]:
        return shard_index, readers.submit(records.index, shard_index)

    # The requested ones, each with the future of its index.
    index_reads = deque(map(request_index, itertools.islice(shard_indices, _INDEXES_AHEAD)))
    while index_reads:
        shard_index, read = index_reads.popleft()
        index = read.result()
        # Read one more index, in place of the one that was taken.
        index_reads.extend(map(request_index, itertools.islice(shard_indices, 1)))
        for run_first, run_stop in records.runs[shard_index].tolist():
            for first, stop in cut_by_bytes(index, max(run_first, first_in_shard), run_stop, max_chunk_bytes):
                yield _SizedChunk(Chunk(shard_index, first, stop), count_bytes(index, first, stop))
        # Only the first shard may be read from a record in its middle.
        first_in_shard = 0

"""Records of a split in order, read ahead in chunks."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from tpudata.source.chunk import CHUNK_BYTES, Chunk, LoadedChunk, Record, chunk_bytes, cut_by_bytes
from tpudata.source.readers import Readers
from tpudata.source.shard_records import ShardRecords

# Indexes that are read ahead, so that chunks do not wait for them: as many shards of a few MB are read at the same time.
_INDEXES_AHEAD = 32
# Chunks in memory at least.
_LEAST_CHUNKS = 4


class _ChunkRead(NamedTuple):
    """A chunk that is being read, or has been.

    Attributes:
        size: its bytes in memory.
        loaded: its records.
    """

    size: int
    loaded: Future[LoadedChunk]


def stream_records(records: ShardRecords, read_ahead: int, first: int = 0) -> Iterator[Record]:
    """Yield the records from number `first` on, in order.

    Closing or dropping the iterator ends its threads, after the requests in flight. In a forked process it begins anew.

    Args:
        records: the records of a split.
        read_ahead: bytes of the chunks in memory at most, those in flight included; at least one chunk is read.
        first: index of the first record.

    Raises:
        CorruptionError: a record or an index is damaged.
        StorageError: a file cannot be read.
    """
    readers, owner, number = Readers(), os.getpid(), first
    chunks = _iterate_chunks(records, readers, first, min(CHUNK_BYTES, max(1, read_ahead // _LEAST_CHUNKS)))
    waiting: deque[_ChunkRead] = deque()
    used_bytes, following = 0, next(chunks, None)
    try:
        while following or waiting:
            while following and (not waiting or used_bytes + following[1] <= read_ahead):
                waiting.append(_ChunkRead(following[1], readers.submit(records.load, following[0])))
                used_bytes += following[1]
                following = next(chunks, None)
            read = waiting.popleft()
            loaded = read.loaded.result()
            for index in range(len(loaded)):
                number += 1
                yield loaded.record(index)
                if owner != os.getpid():
                    # The threads that read ahead are in the parent.
                    yield from stream_records(records, read_ahead, number)
                    return
            used_bytes -= read.size
            del read, loaded
    finally:
        readers.close()


def _iterate_chunks(
    records: ShardRecords, readers: Readers, first_record: int, limit: int
) -> Iterator[tuple[Chunk, int]]:
    """Yield the chunks from a record on, each with its bytes in memory."""
    if first_record == len(records):
        return
    first_shard, start = records.locate(first_record)
    shards = iter(range(first_shard, len(records.shards)))
    indexes = deque((n, readers.submit(records.index, n)) for n in itertools.islice(shards, _INDEXES_AHEAD))
    while indexes:
        shard, read = indexes.popleft()
        index = read.result()
        indexes.extend((n, readers.submit(records.index, n)) for n in itertools.islice(shards, 1))
        for first, stop in records.runs[shard].tolist():
            for begin, end in cut_by_bytes(index, max(first, start), stop, limit):
                yield Chunk(shard, begin, end), chunk_bytes(index, begin, end)
        start = 0

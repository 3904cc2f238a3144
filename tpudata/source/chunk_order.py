"""Order of a shuffled reading: chunks are permuted over the split, and records within windows of chunks.

The records of an epoch form a line, chunk after chunk in the order of that epoch. Each host takes a part of the line, which its
worker processes divide into lanes. Within each window of neighbouring chunks of a lane, the records are permuted. So a host,
and each of its workers, reads its own chunks, window after window, and the records of a window in random order.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.source.chunk import Chunk

Integers: TypeAlias = "npt.NDArray[np.int64]"


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkTable:
    """Chunks of a split.

    Attributes:
        shard_indices: index of each chunk's shard, int64 [chunks].
        first_indices: index of each chunk's first record in the shard, int64 [chunks].
        record_counts: number of each chunk's records, int64 [chunks].
    """

    shard_indices: Integers
    first_indices: Integers
    record_counts: Integers


class WindowKey(NamedTuple):
    """Identifier of a window.

    Attributes:
        epoch: epoch, from 0.
        lane: index of the lane, the part of an epoch that one worker process of the host reads.
        window: index among the lane's windows of this epoch.
    """

    epoch: int
    lane: int
    window: int


class Window(NamedTuple):
    """Records that are permuted together.

    Attributes:
        chunks: their chunks, clipped to the lane.
        chunk_indices: index in `chunks` of each record, in the permuted order, int32 [records].
        record_indices: index of each record in its chunk, int32 [records].
    """

    chunks: list[Chunk]
    chunk_indices: npt.NDArray[np.int32]
    record_indices: npt.NDArray[np.int32]


class _Part(NamedTuple):
    """A lane's part of an epoch.

    Attributes:
        order: indices in the table of the chunks in the line, int64 [chunks].
        ends: position in the line after each chunk, int64 [chunks].
        begin: position in the line at which the part begins.
        end: position in the line after the part's last record.
        first_chunk: index in `order` of the first chunk with records of the part.
        stop_chunk: index in `order` after the last chunk with records of the part.
        window_count: number of windows that these chunks are divided into.
    """

    order: Integers
    ends: Integers
    begin: int
    end: int
    first_chunk: int
    stop_chunk: int
    window_count: int

    def find_window(self, line_position: int) -> int:
        """Return the index of the window that holds a position in the line."""
        chunk_in_part = int(np.searchsorted(self.ends, line_position, "right")) - self.first_chunk
        # The last window that begins at or before this chunk: the inverse of `find_first_chunk`, which rounds down.
        return ((chunk_in_part + 1) * self.window_count - 1) // (self.stop_chunk - self.first_chunk)

    def find_first_chunk(self, window: int) -> int:
        """Return the index in `order` of the first chunk of a window; `stop_chunk` for the number after the last window."""
        return self.first_chunk + (self.stop_chunk - self.first_chunk) * window // self.window_count

    def clip_chunk_begin(self, chunk_index: int) -> int:
        """Return the position in the line at which the chunk `order[chunk_index]` begins, clipped to the part.

        If `chunk_index` is the part's `stop_chunk`, this is the part's end.
        """
        chunk_begin = int(self.ends[chunk_index - 1]) if chunk_index else 0
        return min(max(chunk_begin, self.begin), self.end)


class ChunkOrder:
    """The order of the records that one host takes in all epochs.

    Args:
        table: chunks of the split.
        seed: seed of all permutations.
        epochs: number of epochs.
        host_index: index of this host, from 0.
        host_count: number of hosts.
        lane_count: number of a host's worker processes that each take their own part.
        turn_length: number of consecutive positions that belong to one lane, before the positions of the next lane.
        max_window_chunks: maximum number of chunks in a window.

    Attributes:
        epoch_record_count: number of records that the host takes in an epoch.
    """

    def __init__(
        self,
        table: ChunkTable,
        *,
        seed: int,
        epochs: int,
        host_index: int,
        host_count: int,
        lane_count: int,
        turn_length: int,
        max_window_chunks: int,
    ) -> None:
        self._table = table
        self._seed = seed
        self._epochs = epochs
        self._lane_count = lane_count
        self._turn_length = turn_length
        self._max_window_chunks = max_window_chunks
        record_count = int(table.record_counts.sum())
        # Position in the line at which the host's records begin.
        self._host_begin = record_count * host_index // host_count
        self.epoch_record_count = record_count * (host_index + 1) // host_count - self._host_begin
        # Cached, since neighbouring positions ask for the same epochs and lanes.
        self._get_line = functools.lru_cache(maxsize=2)(self._make_line)
        self._get_part = functools.lru_cache(maxsize=64)(self._make_part)

    def locate(self, position: int) -> tuple[WindowKey, int]:
        """Return the window of a position, counted from the start of all epochs, and the record's index in the window."""
        epoch = position // self.epoch_record_count
        # The lanes take `_turn_length` positions in turn.
        lane = position // self._turn_length % self._lane_count
        part = self._get_part(epoch, lane)
        # Records of this epoch that the lane takes before this position.
        records_before = self._count_before(lane, position) - self._count_before(lane, epoch * self.epoch_record_count)
        line_position = part.begin + records_before
        window = part.find_window(line_position)
        window_begin = part.clip_chunk_begin(part.find_first_chunk(window))
        return WindowKey(epoch, lane, window), line_position - window_begin

    def make_window(self, key: WindowKey) -> Window:
        """Return the chunks of a window, and its records in a random order."""
        part = self._get_part(key.epoch, key.lane)
        first_chunk, stop_chunk = part.find_first_chunk(key.window), part.find_first_chunk(key.window + 1)
        # Positions in the line at which the chunks begin, and at which the last one ends.
        bounds = np.array([part.clip_chunk_begin(chunk_index) for chunk_index in range(first_chunk, stop_chunk + 1)])
        chunks = []
        for chunk_index, (begin, end) in enumerate(itertools.pairwise(bounds.tolist()), first_chunk):
            table_row = int(part.order[chunk_index])
            line_begin = int(part.ends[chunk_index]) - int(self._table.record_counts[table_row])
            # From a position in the line to the index of its record in the shard.
            shift = int(self._table.first_indices[table_row]) - line_begin
            chunks.append(Chunk(int(self._table.shard_indices[table_row]), begin + shift, end + shift))
        # The windows of an epoch begin at different positions, so the position selects a permutation; stream 0 permutes the chunks.
        count = int(bounds[-1] - bounds[0])
        stream = int(bounds[0]) + 1
        line_positions = bounds[0] + self._draw_permutation(count, key.epoch, stream)
        chunk_indices = np.searchsorted(bounds, line_positions, "right") - 1
        record_indices = line_positions - bounds[chunk_indices]
        return Window(chunks, chunk_indices.astype(np.int32), record_indices.astype(np.int32))

    def find_following(self, key: WindowKey) -> WindowKey | None:
        """Return the key of the next window of the same lane, perhaps in a later epoch; None after the last one."""
        if key.window + 1 < self._get_part(key.epoch, key.lane).window_count:
            return key._replace(window=key.window + 1)
        for epoch in range(key.epoch + 1, self._epochs):
            if self._get_part(epoch, key.lane).window_count:
                return WindowKey(epoch, key.lane, 0)
        return None

    def _count_before(self, lane: int, position: int) -> int:
        """Return the number of positions before `position` that belong to a lane: the lanes take `_turn_length` positions in turn.

        Positions count from the start of all epochs.
        """
        round_count, remainder = divmod(position, self._turn_length * self._lane_count)
        positions_in_round = min(max(remainder - lane * self._turn_length, 0), self._turn_length)
        return round_count * self._turn_length + positions_in_round

    def _make_part(self, epoch: int, lane: int) -> _Part:
        """Return a lane's part of an epoch, divided into windows."""
        order, ends = self._get_line(epoch)
        epoch_begin = epoch * self.epoch_record_count
        epoch_end = epoch_begin + self.epoch_record_count
        # Record counts of the lanes up to this one: their parts follow each other in the line.
        *counts_before, count = (
            self._count_before(lane_index, epoch_end) - self._count_before(lane_index, epoch_begin)
            for lane_index in range(lane + 1)
        )
        begin = self._host_begin + sum(counts_before)
        end = begin + count
        if begin == end:
            return _Part(order, ends, begin, end, first_chunk=0, stop_chunk=0, window_count=0)
        # Indices of the chunk that holds the first record, and of the chunk after the one that holds the last record.
        first_chunk = int(np.searchsorted(ends, begin, "right"))
        stop_chunk = int(np.searchsorted(ends, end, "left")) + 1
        window_count = -(-(stop_chunk - first_chunk) // self._max_window_chunks)
        return _Part(order, ends, begin, end, first_chunk, stop_chunk, window_count)

    def _make_line(self, epoch: int) -> tuple[Integers, Integers]:
        """Return the line of an epoch: the order of the chunks, and the position after each, as `_Part` describes them."""
        order = self._draw_permutation(len(self._table.record_counts), epoch, stream=0)
        return order, np.cumsum(self._table.record_counts[order])

    def _draw_permutation(self, count: int, epoch: int, stream: int) -> Integers:
        """Return a permutation of `count` numbers: int64 [count], determined by the seed, the epoch and the stream's number.

        Stream 0 orders the chunks of an epoch; the number of a window's stream is its first position in the line plus 1.
        """
        # numpy guarantees the raw output of a bit generator in all versions, but not the output of its distributions.
        entropy = np.random.SeedSequence([operator.index(self._seed), epoch, stream])
        return np.argsort(np.random.Philox(entropy).random_raw(count), kind="stable")

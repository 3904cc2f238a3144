"""The endless, shuffled order of training.

Epoch p // N has at its place p % N the record of position p: every record comes once per epoch, and no batch is short. Where all
records fit the shuffle's window, an epoch is a permutation of the records. Otherwise:

- Chunks, runs of neighbouring records of about 0.25 to 0.5 MB, are what is read at once: larger ones of packed tokens, and of
  compressed shards a block at least. An epoch permutes all chunks.
- That sequence is cut into L lanes of equal length. The place q of an epoch is place q // L of lane q % L: a batch takes B / L
  records of every lane.
- Each lane is cut into windows, and each window is permuted. The windows of all lanes together are the shuffle's window. Those of
  several chunks are some records longer or shorter, so as to end where a chunk does.

L divides B, so a row of a batch always belongs to one lane, and a host that feeds some of the rows reads the lanes of these rows
and no others.

Permutations are the order of raw 64-bit draws of Philox, which, unlike numpy's shuffling, are the same in every release of numpy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tpudata.input.chunks import Chunks, Integers
from tpudata.input.order.order import Lane, Window
from tpudata.input.order.seeds import raw_draws

# Each has a window and reads ahead for itself: 32 mix well and share out evenly among hosts. More cost more per batch.
_MAX_LANES = 32
# A window of so many chunks ends where one of them does; to one of fewer, a part of a chunk more or less is too much.
_WINDOW_CHUNKS = 4
# What the draws are for, so that no two uses of a seed share them.
_EPOCH, _WINDOW = 0, 1


class TrainingOrder:
    """The endless, shuffled order.

    Args:
        chunks: the split's records.
        batch_size: of the global batch, B.
        window: records in the windows of all lanes.
        seed: from 0 on.

    Attributes:
        is_whole: whether an epoch is one permutation of all records, and there are no lanes.
    """

    def __init__(self, chunks: Chunks, batch_size: int, window: int, seed: int) -> None:
        self.records = chunks.records
        self._seed = seed
        self._batch_size = batch_size
        self.is_whole = window >= self.records
        self._lanes = 1 if self.is_whole else lane_count(batch_size)
        self._chunks = Chunks.of([self.records], 1) if self.is_whole else chunks
        self._window = max(1, window // self._lanes)
        # Kept for the lanes, which are in an epoch at about the same time, and for what they load in advance.
        self._epoch = functools.lru_cache(maxsize=3)(self._new_epoch)

    @property
    def steps(self) -> int | None:
        """None: training never ends."""
        return None

    def positions(self, step: int, first: int, last: int) -> Integers:
        """The position of each of the rows; the rows of a lane stand together."""
        rows = np.arange(first, last)
        stride = self._batch_size // self._lanes
        return step * self._batch_size + rows % stride * self._lanes + rows // stride

    def ids(self, positions: Integers) -> Integers:
        """The record at each position."""
        epochs, places = np.divmod(positions, self.records)
        ids = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            ids[here] = self._epoch(int(epoch)).order[places[here]]
        return ids

    def is_real(self, positions: Integers) -> npt.NDArray[np.bool_]:
        """All are: training has no padding."""
        return np.ones(len(positions), np.bool_)

    def lanes(self, step: int, first: int, last: int) -> list[Lane]:
        """The lanes of the rows [first, last); only where `is_whole` is not."""
        stride = self._batch_size // self._lanes
        longest = int((self._chunks.stops - self._chunks.starts).max())
        return [
            Lane(
                self._windows(slot, step * stride),
                _group(self._window, longest) + longest,
                stride,
                max(0, first - slot * stride),
                min(stride, last - slot * stride),
            )
            for slot in range(first // stride, -(-last // stride))
        ]

    def _windows(self, slot: int, turn: int) -> Iterator[Window]:
        """Windows of the positions slot + L turn, slot + L (turn + 1), ...

        Within an epoch these are the places of one lane, and in the next one those of another.
        """
        while True:
            number, place = divmod(slot + self._lanes * turn, self.records)
            epoch = self._epoch(number)
            lane, done = place % self._lanes, place // self._lanes
            yield from epoch.windows(lane, done)
            turn += epoch.lane_records(lane) - done

    def _new_epoch(self, number: int) -> _Epoch:
        return _Epoch(self._chunks, self._lanes, self._window, (self._seed, number))


class _Epoch:
    """One epoch of the training order: all chunks, permuted and cut into lanes and windows."""

    def __init__(self, chunks: Chunks, lanes: int, window: int, key: tuple[int, int]) -> None:
        self._records = chunks.records
        self._lanes = lanes
        self._window = window
        self._key = key
        order = _sorting(raw_draws(len(chunks.starts), *key, _EPOCH))
        self._firsts = chunks.starts[order]
        counts = (chunks.stops - chunks.starts)[order]
        self._ends = np.cumsum(counts)
        self._begins = self._ends - counts
        self._longest = int(counts.max())

    @functools.cached_property
    def order(self) -> Integers:
        """All records in the order of the epoch."""
        if self._window >= self._records and self._longest == 1:
            return self._firsts  # Permuted once is permuted.
        order = np.empty(self._records, np.int64)
        for lane in range(min(self._lanes, self._records)):
            order[lane :: self._lanes] = np.concatenate([window.ids() for window in self.windows(lane, 0)])
        return order

    def lane_records(self, lane: int) -> int:
        """Length of a lane."""
        return self._records // self._lanes + (lane < self._records % self._lanes)

    def windows(self, lane: int, done: int) -> Iterator[Window]:
        """The windows of a lane, without the first `done` records."""
        cuts = self._cuts(lane)
        done += int(cuts[0])
        for number in range(int(np.searchsorted(cuts, done, "right")) - 1, len(cuts) - 1):
            start, stop = int(cuts[number]), int(cuts[number + 1])
            take = self._permutation(stop - start, lane, number)
            yield Window(tuple(self._pieces(start, stop)), take[max(0, done - start) :])

    def _cuts(self, lane: int) -> Integers:
        """The places of the permuted chunks where a lane's windows begin, and its end.

        Of windows of several chunks they are where chunks end: else two would read a part of one each, and parts of blocks have
        no checksum.
        """
        begin = lane * (self._records // self._lanes) + min(lane, self._records % self._lanes)
        end = begin + self.lane_records(lane)
        group = _group(self._window, self._longest)
        # The lanes' windows end one after the other and not all at once, so that reading is even.
        cuts = np.arange(begin + group - group * lane // self._lanes, end, group)
        if group >= _WINDOW_CHUNKS * self._longest:
            cuts = self._begins[np.searchsorted(self._begins, cuts, "right") - 1]
        return np.unique(np.concatenate([[begin], cuts[cuts > begin], [end]]))

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The records at the places [first, last) of the permuted chunks, by chunk."""
        for chunk in range(int(np.searchsorted(self._ends, first, "right")), len(self._ends)):
            begin, end = int(self._begins[chunk]), int(self._ends[chunk])
            if begin >= last:
                break
            record = int(self._firsts[chunk]) - begin
            yield record + max(first, begin), record + min(last, end)

    def _permutation(self, length: int, lane: int, number: int) -> Integers:
        """Of the records that are read together: each window in it for itself."""
        draws = raw_draws(length, *self._key, _WINDOW, lane, number)
        if self._window >= self._longest:
            return _sorting(draws)
        return np.lexsort((draws, np.arange(length) // self._window))


def _group(window: int, longest: int) -> int:
    """Records that are read together: a window, or as many short ones as a chunk has, so that it is not read again for each."""
    return window * -(-longest // window)


def _sorting(draws: npt.NDArray[np.uint64]) -> Integers:
    """The stable order of draws."""
    # Six times as fast as numpy's stable sort, and the same unless two draws are equal.
    order = np.argsort(draws)
    found = draws[order]
    return np.argsort(draws, kind="stable") if (found[1:] == found[:-1]).any() else order


def lane_count(batch_size: int) -> int:
    """The largest divisor of the batch size that is at most 32."""
    return max(count for count in range(1, min(batch_size, _MAX_LANES) + 1) if batch_size % count == 0)

"""Which record stands in which row of which batch: integer arithmetic, a pure function of seed, step and batch size.

Records are numbered 0..N-1 in the dataset's order. Batches are cut from one stream of positions p = 0, 1, 2, ...: batch k is the
positions [k B, (k + 1) B), so the position of a run is its step. How many hosts there are is not among the numbers here.

What an order is stands here, and the one of evaluation; training's is in `training_order`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tpudata.input.chunks import Chunks, Integers


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """Records that are read, mixed and fed one after the other.

    Attributes:
        pieces: [first, last) of the records to read, each of one chunk.
        take: which of these, numbered through all pieces, to feed, in this order; None for all as they are.
    """

    pieces: tuple[tuple[int, int], ...]
    take: Integers | None

    @property
    def rows(self) -> int:
        """Number of records that are fed."""
        return sum(last - first for first, last in self.pieces) if self.take is None else len(self.take)

    def ids(self) -> Integers:
        """The records in the order in which they are fed."""
        read = np.concatenate([np.arange(first, last) for first, last in self.pieces])
        return read if self.take is None else read[self.take]


@dataclasses.dataclass(frozen=True)
class Lane:
    """What the rows of one host take from one lane at every step.

    Attributes:
        windows: the lane's records, from the first step on.
        longest: no window reads more records than that.
        stride: records that a step takes from the lane.
        first, last: which of these are the host's.
    """

    windows: Iterator[Window]
    longest: int
    stride: int
    first: int
    last: int


class Order(Protocol):
    """The order of a split's records in batches of one size."""

    records: int

    @property
    def steps(self) -> int | None:
        """Number of batches, or None where they never end."""

    def positions(self, step: int, first: int, last: int) -> Integers:
        """The position in the stream of each of the rows [first, last) of a batch."""

    def ids(self, positions: Integers) -> Integers:
        """The record at each position; for padding, the last one."""

    def is_real(self, positions: Integers) -> npt.NDArray[np.bool_]:
        """Whether a position is a record, and not padding."""

    def lanes(self, step: int, first: int, last: int) -> list[Lane]:
        """The lanes of the rows [first, last), in the order of the rows, from a step on."""


class EvaluationOrder:
    """One pass in the dataset's order; the last batch is padded with the last record.

    Args:
        chunks: the split's records.
        batch_size: of the global batch, B.
    """

    def __init__(self, chunks: Chunks, batch_size: int) -> None:
        self.records = chunks.records
        self._chunks = chunks
        self._batch_size = batch_size

    @property
    def steps(self) -> int | None:
        """Number of batches, ceil(N / B)."""
        return -(-self.records // self._batch_size)

    def positions(self, step: int, first: int, last: int) -> Integers:
        """The position of each of the rows, which is the record's number."""
        return step * self._batch_size + np.arange(first, last)

    def ids(self, positions: Integers) -> Integers:
        """The record at each position; for padding, the last one."""
        return np.minimum(positions, self.records - 1)

    def is_real(self, positions: Integers) -> npt.NDArray[np.bool_]:
        """Whether a position is a record."""
        return positions < self.records

    def lanes(self, step: int, first: int, last: int) -> list[Lane]:
        """The one lane that there is."""
        longest = int((self._chunks.stops - self._chunks.starts).max())
        return [Lane(self._windows(step, first, last), longest, last - first, 0, last - first)]

    def _windows(self, step: int, first: int, last: int) -> Iterator[Window]:
        for begin, end in self._runs(step, first, last):
            for piece in self._chunks.pieces(begin, min(end, self.records)):
                yield Window((piece,), None)
            padding = end - max(begin, self.records)
            if padding > 0:
                yield Window(((self.records - 1, self.records),), np.zeros(padding, np.int64))

    def _runs(self, step: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The positions of the rows at all steps, in runs as long as they go."""
        assert self.steps is not None
        if last - first == self._batch_size:
            yield step * self._batch_size, self.steps * self._batch_size
            return
        for number in range(step, self.steps):
            yield number * self._batch_size + first, number * self._batch_size + last

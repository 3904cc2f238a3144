"""The rows of batch after batch as numpy arrays: from files, by windows that are read ahead, or from arrays in memory."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tpudata.errors import FeatureError
from tpudata.input.chunks import Chunks, Integers
from tpudata.input.graph.cache import Column
from tpudata.input.options.hosts import Rows
from tpudata.input.order.order import Lane, Order, Window
from tpudata.input.reading import Reading, reading_of
from tpudata.input.source import Columns, Reader
from tpudata.input.window_rows import Room, WindowRows

# Batches whose rows are looked up together, at most.
_TOGETHER = 16
# Windows that a lane may have under way for each reader: in evaluation one is a single piece.
_PENDING = 2
# Which rows of an array.
_Where: TypeAlias = "slice | Integers"


class Feed(Protocol):
    """Rows of batches in order."""

    def fill(self, step: int, columns: Columns, good: npt.NDArray[np.bool_] | None) -> None:
        """Fills arrays with the host's rows of a batch. Called with one step after the other.

        Args:
            step: number of the batch.
            columns: by name, [rows, ...]; of the dtype of the records' values, or of one that `put` makes of it.
            good: bool [rows]: becomes false for what stands in for a damaged record. None where nobody asks.
        """

    def close(self) -> None:
        """Ends what is under way."""


class FileFeed:
    """Reads a lane's next windows while the rows of the current one are fed.

    Args:
        source: reads the records.
        order: their order.
        rows: the host's.
        step: the first one.
        ahead: records that are read in advance, for all lanes together.
    """

    def __init__(self, source: Reader, order: Order, rows: Rows, step: int, ahead: int) -> None:
        self._reading = reading_of(source)
        lanes = order.lanes(step, rows.first, rows.last)
        ahead //= len(lanes)
        self._room = Room(sum(_LaneRows.most(lane, ahead) for lane in lanes))
        self._lanes = [_LaneRows(lane, source, self._reading, self._room, ahead) for lane in lanes]
        self._per_step = sum(lane.stride for lane in lanes)
        # Where the rows of the next batches stand, as far as that is looked up.
        self._next: collections.deque[Integers] = collections.deque()

    def fill(self, step: int, columns: Columns, good: npt.NDArray[np.bool_] | None) -> None:  # noqa: ARG002
        """Fills in the rows of the next batch."""
        where = self._take()
        for name, target in columns.items():
            column = self._room.columns[name]
            put(name, target, column, where)
            if target.dtype == object:
                # Strings go as they are fed, and not with the last one of their window.
                for rows in where:
                    column[rows] = b""
        if good is not None:
            put("", good, self._room.good, where)
        if not self._next:
            for lane in self._lanes:
                lane.go_on()
        self._reading.fed(self._per_step)

    def _take(self) -> Sequence[_Where]:
        """Where the rows of the next batch stand."""
        if not self._next:
            # There are many lanes, and nearly always no window ends.
            steps = min(_TOGETHER, *(lane.steps for lane in self._lanes))
            if steps:
                self._next.extend(np.concatenate([lane.take_steps(steps) for lane in self._lanes], axis=1))
        if self._next:
            return [self._next.popleft()]
        where: list[_Where] = []
        for lane in self._lanes:
            lane.take(where)
        if any(isinstance(rows, slice) for rows in where):
            return where
        return [np.concatenate(cast("list[Integers]", where))]

    def close(self) -> None:
        """Ends the reading ahead."""
        self._reading.close()


class _LaneRows:
    """The rows that the host takes from one lane."""

    def __init__(self, lane: Lane, source: Reader, reading: Reading, room: Room, ahead: int) -> None:
        self._lane = lane
        self._reading = reading
        self._room = room
        self._ahead = max(ahead, lane.stride)
        self._most_pending = _PENDING * source.readers
        self._pending: collections.deque[tuple[int, WindowRows]] = collections.deque()
        self._pending_rows = 0
        # The current window is the last one; rows of those before it are in the batch that is being filled.
        self._open: list[WindowRows] = []
        self._where: _Where = slice(0, 0)
        self._next = self._rows = 0
        self._read_ahead()

    @classmethod
    def most(cls, lane: Lane, ahead: int) -> int:
        """How many rows of the room are in use at the same time, at most."""
        # What a batch is taken from, with a window that is begun and one that is not done; and what is read ahead of that.
        return 2 * lane.stride + ahead + 4 * lane.longest

    @property
    def steps(self) -> int:
        """How many batches the current window has rows for, until more is to be read ahead; 0 where these stand in one run."""
        if isinstance(self._where, slice):
            return 0
        rows = self._rows - self._next
        return max(0, min(rows, rows + self._pending_rows - self._ahead)) // self._lane.stride

    def take_steps(self, steps: int) -> Integers:
        """Where the host's rows of the next batches stand, int64 [steps, rows], out of the current window."""
        assert not isinstance(self._where, slice)
        lane, begin = self._lane, self._next
        self._next += steps * lane.stride
        return self._where[begin : self._next].reshape(steps, lane.stride)[:, lane.first : lane.last]

    def take(self, where: list[_Where]) -> None:
        """Adds where the host's rows of the next batch stand."""
        lane = self._lane
        done = 0
        while done < lane.stride:
            if self._next == self._rows:
                self._advance()
            count = min(lane.stride - done, self._rows - self._next)
            # Of the lane's rows that other hosts feed, nothing is taken.
            first = self._next + max(0, lane.first - done)
            last = self._next + min(count, lane.last - done)
            if first < last:
                where.append(self._part(first, last))
            self._next += count
            done += count

    def _part(self, first: int, last: int) -> _Where:
        """Where the window's rows [first, last) stand in the room."""
        if isinstance(self._where, slice):
            return slice(self._where.start + first, self._where.start + last)
        return self._where[first:last]

    def go_on(self) -> None:
        """Lets go of what the batch was the last one of, and begins to read what is needed next."""
        while len(self._open) > 1:
            self._open.pop(0).give_back()
        if self._rows - self._next + self._pending_rows < self._ahead:
            self._read_ahead()

    def _read_ahead(self) -> None:
        # No earlier than that: the windows of all lanes are there once, and not twice.
        while self._rows - self._next + self._pending_rows < self._ahead and len(self._pending) < self._most_pending:
            window = next(self._lane.windows, None)
            if window is None:
                return
            self._pending.append((window.rows, WindowRows(window, self._reading, self._room)))
            self._pending_rows += window.rows

    def _advance(self) -> None:
        if not self._pending:
            self._read_ahead()
        rows, window = self._pending.popleft()
        self._where = window.result()
        self._open.append(window)
        self._next, self._rows = 0, rows
        self._pending_rows -= self._rows


class ArrayFeed:
    """Takes rows from arrays of all records.

    Args:
        columns: by name, [records, ...].
        good: bool [records]: which are no stand-ins for damaged records.
        order: the order.
        rows: the host's.
    """

    def __init__(self, columns: Mapping[str, Column], good: Column, order: Order, rows: Rows) -> None:
        self._columns = columns
        self._good = good
        self._order = order
        self._rows = rows

    def fill(self, step: int, columns: Columns, good: npt.NDArray[np.bool_] | None) -> None:
        """Fills in the rows of a batch."""
        ids = self._order.ids(self._order.positions(step, self._rows.first, self._rows.last))
        if good is not None:
            good[:] = self._good[ids]
        for name, column in self._columns.items():
            if isinstance(column, np.ndarray):
                put(name, columns[name], column, [ids])
            else:
                put(name, columns[name], column[ids], [slice(None)])

    def close(self) -> None:
        """Nothing is under way."""


def read_all(source: Reader, chunks: Chunks) -> tuple[Columns, npt.NDArray[np.bool_]]:
    """Reads all records of a split into arrays, and says which are no stand-ins for damaged ones."""
    whole = Window(tuple(chunks.pieces(0, chunks.records)), None)
    room = Room(chunks.records)
    reading = reading_of(source)
    try:
        WindowRows(whole, reading, room).result()
    finally:
        reading.close()
    return room.columns, room.good


def put(name: str, target: npt.NDArray[Any], column: npt.NDArray[Any], where: Sequence[_Where]) -> None:
    """Copies values of a feature into an array.

    Where the array is float32, uint8 values 0 to 255 become 0 to 1; where it is int32, int64 values must fit it.

    Args:
        name: the feature, for messages.
        target: [n, ...].
        column: [records, ...].
        where: which of these to copy, one behind the other; n together.

    Raises:
        FeatureError: a value does not fit.
    """
    place = 0
    for rows in where:
        count = len(rows) if isinstance(rows, np.ndarray) else len(column[rows])
        _put(name, target[place : place + count], column, rows)
        place += count


def _put(name: str, target: npt.NDArray[Any], column: npt.NDArray[Any], rows: _Where) -> None:
    if isinstance(rows, slice):
        values = column[rows]
    else:
        # All are in range; to say so spares a copy.
        values = np.empty(target.shape, column.dtype) if column.dtype != target.dtype else target
        np.take(column, rows, axis=0, out=values, mode="clip")
    if values is target:
        return
    if values.dtype == np.uint8 and target.dtype == np.float32:
        # At once; TensorFlow would take one pass to cast and one to divide.
        np.divide(values, np.float32(255), out=target, dtype=np.float32)
        return
    target[...] = values
    if target.dtype == np.int32 and values.dtype == np.int64 and not np.array_equal(target, values):
        raise FeatureError(
            f"Feature {name!r}: a value does not fit int32, which is what a TPU takes. Leave the feature out, or store"
            " smaller numbers."
        )

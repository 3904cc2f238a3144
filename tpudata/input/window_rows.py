"""The records of windows, put together as their pieces are read, in memory that is used again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.input.chunks import Integers
from tpudata.input.order.order import Window
from tpudata.input.reading import Reading
from tpudata.input.source import Columns, Piece

# Rows [first, last).
_Run: TypeAlias = "tuple[int, int]"


class Room:
    """Arrays for the records of many windows; the rows of those that are done are given to the next ones.

    Fresh memory comes in pages that the system first clears, which costs as much as to read and check what goes there. And where
    all records stand in the same arrays, one call takes a batch's rows here and there, and not one for each window.

    Args:
        rows: how many there are. Memory is only taken by those that were in use.

    Attributes:
        columns: by name, [rows, ...]; none before the first piece is read.
        good: bool [rows]: which are no stand-ins for damaged records.
    """

    def __init__(self, rows: int) -> None:
        self.columns: Columns = {}
        self.good = np.empty(rows, np.bool_)
        # Descending: the lowest are taken first, so that all that were once in use stand together.
        self._free: list[_Run] = [(0, rows)]
        self._lock = threading.Lock()

    def take(self, count: int) -> list[_Run]:
        """Some free rows."""
        taken = []
        while count:
            first, last = self._free.pop()
            end = min(last, first + count)
            taken.append((first, end))
            count -= end - first
            if end < last:
                self._free.append((end, last))
        return taken

    def give_back(self, runs: Iterable[_Run]) -> None:
        """Rows that are free again."""
        free: list[_Run] = []
        for first, last in sorted((*self._free, *runs)):
            if free and free[-1][1] == first:
                free[-1] = (free[-1][0], last)
            else:
                free.append((first, last))
        self._free = free[::-1]

    def arrays(self, like: Columns) -> Columns:
        """The columns, which the first piece makes; safe to call from several threads."""
        with self._lock:
            if not self.columns:
                self.columns = {
                    name: np.empty((len(self.good), *part.shape[1:]), part.dtype) for name, part in like.items()
                }
            return self.columns


class WindowRows:
    """Reads a window into a room.

    The thread that reads a piece also copies its records: they are still in the processor's cache, and what was read is freed at
    once. They are not permuted then: to take a batch's rows here and there costs half as much as to put them there.

    Args:
        window: which records, in which order.
        reading: reads them.
        room: where they are kept.
    """

    def __init__(self, window: Window, reading: Reading, room: Room) -> None:
        self._window = window
        self._room = room
        # All before the first one is read: then no other piece's rows are between.
        self._runs = [room.take(last - first) for first, last in window.pieces]
        self._parts = reading.begin(window.pieces, self._keep)

    def result(self) -> slice | Integers:
        """The rows of the room in which the records stand, in the order in which they are fed.

        Raises:
            CorruptionError: a record is damaged.
            StorageError: a file cannot be read.
        """
        for part in self._parts:
            part.result()
        runs = [run for piece in self._runs for run in piece]
        if self._window.take is None and len(runs) == 1:
            return slice(*runs[0])
        rows = np.concatenate([np.arange(first, last) for first, last in runs])
        return rows if self._window.take is None else rows[self._window.take]

    def give_back(self) -> None:
        """Lets the room have the rows; nobody looks at them any more."""
        self._room.give_back(run for piece in self._runs for run in piece)

    def _keep(self, number: int, piece: Piece) -> None:
        runs = self._runs[number]
        for here, part in _parts(runs):
            self._room.good[here] = True
            if piece.damaged:
                damaged = np.array(piece.damaged)
                self._room.good[here][damaged[(damaged >= part.start) & (damaged < part.stop)] - part.start] = False
            for name, column in self._room.arrays(piece.columns).items():
                _copy(column[here], piece.columns[name][part])


def _copy(target: npt.NDArray[np.generic], values: npt.NDArray[np.generic]) -> None:
    """Copies rows; as bytes where a row is one run of them.

    Values as they stand in a record begin at any byte, and numpy takes those one by one: twice the time.
    """
    runs = values.ndim > 1 and values.dtype == target.dtype != object and values[:1].flags.c_contiguous
    if runs and not values.flags.aligned:
        target, values = target.view(np.uint8), values.view(np.uint8)
    target[...] = values


def _parts(runs: Iterable[_Run]) -> Iterator[tuple[slice, slice]]:
    """The rows of the room and those of the piece that go there."""
    done = 0
    for first, last in runs:
        yield slice(first, last), slice(done, done + last - first)
        done += last - first

"""Who reads the pieces of windows: threads beside the one that feeds, or that one itself."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tpudata.input.source import Piece, Reader

# Pieces that the disk is told of in advance: of what it reads too early, nothing may be left when its turn comes.
_TOLD = 64


class Part(Protocol):
    """Some pieces that are read."""

    def result(self) -> None:
        """Returns once they are.

        Raises:
            CorruptionError: a record is damaged.
            StorageError: a file cannot be read.
        """


class Reading(Protocol):
    """Reads pieces in advance."""

    def begin(self, pieces: Sequence[tuple[int, int]], keep: Callable[[int, Piece], None]) -> Sequence[Part]:
        """Reads pieces.

        Args:
            pieces: [first, last) of the records of each.
            keep: takes the number of a piece and the piece, in any thread.
        """

    def fed(self, rows: int) -> None:
        """So many records were taken from what was read."""

    def close(self) -> None:
        """Ends what is under way."""


def reading_of(source: Reader) -> Reading:
    """Threads, as many as the source can use; or none where that is a single one.

    It would take turns with the thread that feeds: both run Python, and to pass the turn costs as much as what they do in it.
    """
    return Beside(source) if source.readers > 1 else Between(source)


class Beside:
    """Reads in threads.

    Args:
        source: reads a piece.
    """

    def __init__(self, source: Reader) -> None:
        self._source = source
        self._pool = ThreadPoolExecutor(source.readers, thread_name_prefix="tpudata-read")

    def begin(self, pieces: Sequence[tuple[int, int]], keep: Callable[[int, Piece], None]) -> Sequence[Part]:
        """Passes pieces to the threads."""
        # As many parts as there are threads: to pass work to a thread costs as much as a small piece itself.
        share = -(-len(pieces) // self._source.readers)
        numbers = range(len(pieces))
        return [self._pool.submit(self._read, pieces, numbers[at : at + share], keep) for at in numbers[::share]]

    def _read(self, pieces: Sequence[tuple[int, int]], numbers: range, keep: Callable[[int, Piece], None]) -> None:
        for number in numbers:
            keep(number, self._source.read(*pieces[number]))

    def fed(self, rows: int) -> None:
        """They read as fast as they can."""

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Between:
    """Reads in the thread that feeds, as much with every batch as the batch takes; the disk begins in advance.

    Args:
        source: reads a piece.
    """

    def __init__(self, source: Reader) -> None:
        self._source = source
        self._waiting: collections.deque[_Later] = collections.deque()
        # Those of them that the disk was not told of.
        self._untold: collections.deque[_Later] = collections.deque()
        self._owed = 0

    def begin(self, pieces: Sequence[tuple[int, int]], keep: Callable[[int, Piece], None]) -> Sequence[Part]:
        """Lets the disk begin with the next pieces."""
        parts = [
            _Later(self._source, *piece, functools.partial(keep, number), self._go_on)
            for number, piece in enumerate(pieces)
        ]
        self._waiting += parts
        self._untold += parts
        self._tell()
        return parts

    def fed(self, rows: int) -> None:
        """Reads as many records as were fed since."""
        self._owed += rows
        while self._owed > 0 and self._waiting:
            self._owed -= self._waiting[0].read()
        # What nobody waited for is not made up for later.
        self._owed = min(self._owed, 0)

    def close(self) -> None:
        """Lets go of what was not read."""
        self._waiting.clear()
        self._untold.clear()

    def _go_on(self) -> None:
        """After a piece was read."""
        while self._waiting and self._waiting[0].is_read:
            self._waiting.popleft()
        self._tell()

    def _tell(self) -> None:
        while self._untold and len(self._waiting) - len(self._untold) < _TOLD:
            self._untold.popleft().tell()


class _Later:
    """A piece that is read when there is time, or else when it is needed."""

    def __init__(
        self, source: Reader, first: int, last: int, keep: Callable[[Piece], None], then: Callable[[], None]
    ) -> None:
        self._source = source
        self._first, self._last = first, last
        self._keep = keep
        self._then = then
        self.is_read = False
        self._error: Exception | None = None

    def tell(self) -> None:
        """Lets the disk begin with it."""
        self._source.expect(self._first, self._last)

    def read(self) -> int:
        """Reads it, unless that is done; returns how many records that were. What goes wrong is told with the result."""
        if self.is_read:
            return 0
        try:
            self._keep(self._source.read(self._first, self._last))
        except Exception as error:
            self._error = error
        self.is_read = True
        self._then()
        return self._last - self._first

    def result(self) -> None:
        """Reads it now, at the latest."""
        self.read()
        if self._error is not None:
            raise self._error

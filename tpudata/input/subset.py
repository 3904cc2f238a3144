"""Some of a split's records, read as if there were no others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tpudata.errors import TpudataError
from tpudata.input.chunks import Chunks, Integers
from tpudata.input.source import Columns, Decoder, Piece, Source


class Subset:
    """The records of a subset, numbered from 0; see `Reader`.

    What stands between them is read with them, checked, and left out before anything is decoded.

    Args:
        source: reads the split.
        decoder: takes the records apart.
        ids: int64 [records], their numbers in the split, ascending.
    """

    def __init__(self, source: Source, decoder: Decoder, ids: Integers) -> None:
        self._source = source
        self._decoder = decoder
        self._ids = ids

    def chunks(self, chunks: Chunks) -> Chunks:
        """The split's chunks, in the subset's numbers."""
        starts, stops = np.searchsorted(self._ids, chunks.starts), np.searchsorted(self._ids, chunks.stops)
        return Chunks(starts[starts < stops], stops[starts < stops])

    @property
    def readers(self) -> int:
        """How many threads should read at the same time."""
        return self._source.readers

    def expect(self, first: int, last: int) -> None:
        """Says that the records [first, last) will be read soon, and lets a disk begin."""
        self._source.expect(int(self._ids[first]), int(self._ids[last - 1]) + 1)

    def read(self, first: int, last: int) -> Piece:
        """Reads the records [first, last), which are of one shard."""
        ids = self._ids[first:last]
        begin, end = int(ids[0]), int(ids[-1]) + 1
        piece = self._source.with_decoder(_Chosen(self._decoder, ids - begin)).read(begin, end)
        return Piece(piece.columns, tuple(np.flatnonzero(np.isin(ids - begin, piece.damaged)).tolist()))


class _Chosen:
    """Takes some of the records apart; see `Decoder`.

    Args:
        decoder: for one record or many.
        numbers: which records.
    """

    def __init__(self, decoder: Decoder, numbers: Integers) -> None:
        self._decoder = decoder
        self._numbers = numbers

    def decode(self, data: bytes, bounds: npt.NDArray[np.int64], path: str, offset: int) -> Columns:
        """The columns of these records."""
        begins, ends = bounds[:-1][self._numbers], bounds[1:][self._numbers]
        if len(begins) == len(bounds) - 1:
            return self._decoder.decode(data, bounds, path, offset)
        frames = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        try:
            return self._decoder.decode(b"".join(frames), np.append(0, np.cumsum(ends - begins)), path, offset)
        except TpudataError:
            # The one at fault, with the place where it stands in the file.
            for frame, begin in zip(frames, begins.tolist(), strict=True):
                self._decoder.decode(frame, np.array([0, len(frame)]), path, offset + begin)
            raise

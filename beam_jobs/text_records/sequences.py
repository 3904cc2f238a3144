"""Sequences of one length from documents of any: cut from a stream, or packed from whole documents.

Both take the tokens of documents in order and give rows of `length` tokens; equal documents in equal order give equal rows.

stream   the documents one after the other, cut every `length` tokens wherever that falls; only the last row has padding
packed   whole documents side by side in a row, with `segment_ids` (1, 2, ... for the documents of a row, 0 for padding) and
         `positions` (0, 1, ... in each document, 0 for padding), so that a model can keep them apart
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.text_files.options import CUT, SPLIT
from beam_jobs.text_records.bin_packing import best_fit_decreasing
from beam_jobs.tokenizers import Ids

# Documents that are packed together, unless their tokens are as many as the second number before.
WINDOW_DOCUMENTS = 1 << 14
WINDOW_TOKENS = 1 << 21
# Tokens that are put in place at once: the arrays for that stay small.
_BLOCK_TOKENS = 1 << 16


class Documents(NamedTuple):
    """The tokens of some documents, one after the other: a Python object for each would cost more than its tokens.

    Attributes:
        tokens: int32 [tokens of all].
        sizes: int64 [documents], tokens of each.
    """

    tokens: Ids
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, documents: Sequence[Ids]) -> Documents:
        """Build from the tokens of each document, int32 [tokens]."""
        tokens = np.concatenate(documents) if documents else np.zeros(0, np.int32)
        return cls(tokens, np.fromiter(map(len, documents), np.int64, len(documents)))

    @classmethod
    def joined(cls, parts: Sequence[Documents]) -> Documents:
        """Return the documents of all parts, one after the other; at least one part."""
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([part.tokens for part in parts]), np.concatenate([part.sizes for part in parts]))

    def ended(self, eos_id: int) -> Documents:
        """Return the documents, each with its end after it."""
        return Documents(np.insert(self.tokens, np.cumsum(self.sizes), eos_id), self.sizes + 1)


class Rows(NamedTuple):
    """Some rows.

    Attributes:
        input_ids: int32 [rows, length].
        segment_ids: int32 [rows, length], or None for those of a stream.
        positions: int32 [rows, length], or None for those of a stream.
        real: how many of the tokens are no padding.
        dropped: how many tokens were dropped from documents longer than `length`.
    """

    input_ids: Ids
    segment_ids: Ids | None
    positions: Ids | None
    real: int
    dropped: int


def stream_rows(windows: Iterable[Documents], length: int, pad_id: int) -> Iterator[Rows]:
    """Cut a stream of documents into rows.

    Args:
        windows: documents, some at a time.
        length: tokens of a row.
        pad_id: fills up the last row.
    """
    rest: Ids = np.zeros(0, np.int32)
    for documents in windows:
        tokens = np.concatenate([rest, documents.tokens])
        whole = len(tokens) // length * length
        rest = tokens[whole:].copy()
        if whole:
            yield Rows(tokens[:whole].reshape(-1, length), None, None, whole, 0)
    if len(rest):
        row = np.full((1, length), pad_id, np.int32)
        row[0, : len(rest)] = rest
        yield Rows(row, None, None, len(rest), 0)


def packed_rows(windows: Iterable[Documents], length: int, pad_id: int, long_documents: str = SPLIT) -> Iterator[Rows]:
    """Pack documents into rows, those of each window together.

    Args:
        windows: documents, some at a time. An empty one takes no place.
        length: tokens of a row.
        pad_id: fills up rows.
        long_documents: what happens to a document longer than a row: `"split"` makes documents of `length` tokens and a rest of
            it, each with positions from 0, `"cut"` drops what is behind the first `length` tokens.
    """
    for tokens, sizes in windows:
        if len(tokens):
            starts, pieces = _pieces(sizes, length, long_documents)
            yield _filled(tokens, starts, pieces, _placed(pieces, length), length, pad_id)


def windows(
    batches: Iterable[Documents], most_documents: int = WINDOW_DOCUMENTS, most_tokens: int = WINDOW_TOKENS
) -> Iterator[Documents]:
    """Yield documents in order, in windows limited by documents or tokens; the last document may exceed the token limit.

    How the documents are dealt out to batches does not matter.
    """
    held: list[Documents] = []
    documents = tokens = 0
    for batch in batches:
        ends = np.cumsum(batch.sizes)
        first = begin = 0
        while first < len(ends):
            # The document with which the window has its tokens is the last of it.
            full = int(np.searchsorted(ends, begin + most_tokens - tokens)) + 1
            stop = min(full, first + most_documents - documents, len(ends))
            end = int(ends[stop - 1])
            held.append(Documents(batch.tokens[begin:end], batch.sizes[first:stop]))
            documents, tokens = documents + stop - first, tokens + end - begin
            first, begin = stop, end
            if documents >= most_documents or tokens >= most_tokens:
                yield Documents.joined(held)
                held, documents, tokens = [], 0, 0
    if held:
        yield Documents.joined(held)


def _pieces(
    sizes: npt.NDArray[np.int64], length: int, long_documents: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the begins and lengths of the pieces of at most `length` tokens in the tokens of all documents."""
    begins = np.cumsum(sizes) - sizes
    if long_documents == CUT:
        starts, pieces = begins, np.minimum(sizes, length)
    else:
        counts = -(-sizes // length)
        # The number of a piece in its document: 0, 1, ...
        nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(begins, counts) + nth * length
        pieces = np.minimum(np.repeat(sizes, counts) - nth * length, length)
    filled = pieces > 0
    return starts[filled], pieces[filled]


def _placed(pieces: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the row of each piece.

    Rows stand in the order in which the longest document of each came: so packing leaves a shuffled order shuffled.
    """
    bins = best_fit_decreasing(pieces, length)
    longest = np.argsort(-pieces, kind="stable")
    _, first = np.unique(bins[longest], return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(longest[first])] = np.arange(len(first))
    return rank[bins]


def _filled(
    tokens: Ids,
    starts: npt.NDArray[np.int64],
    pieces: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    length: int,
    pad_id: int,
) -> Rows:
    """Copy the pieces of `tokens` into their rows, those of a row in their order."""
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows)
    heads = np.cumsum(counts) - counts
    starts, pieces = starts[order], pieces[order]
    segments = np.arange(1, len(pieces) + 1) - np.repeat(heads, counts)
    # Each row ends with a piece of padding, of segment 0: then all pieces stand one behind the other, with nothing between.
    real = np.add.reduceat(pieces, heads)
    ends = heads + counts
    starts, pieces, segments = (
        np.insert(column, ends, padding) for column, padding in ((starts, 0), (pieces, length - real), (segments, 0))
    )
    ends = np.cumsum(counts + 1)
    count = len(counts)
    ids, numbers, positions = (np.empty(count * length, np.int32) for _ in range(3))
    # Some rows at a time: the arrays of their places stay small.
    block = max(1, _BLOCK_TOKENS // length)
    for row in range(0, count, block):
        stop = min(row + block, count)
        some = slice(ends[row - 1] if row else 0, ends[stop - 1])
        out = slice(row * length, stop * length)
        sizes = pieces[some]
        places = np.cumsum(sizes) - sizes
        flat = np.arange((stop - row) * length)
        np.subtract(flat, np.repeat(places, sizes), out=positions[out], casting="same_kind")
        # What this finds for padding is no matter.
        np.take(tokens, flat + np.repeat(starts[some] - places, sizes), out=ids[out], mode="clip")
        numbers[out] = np.repeat(segments[some].astype(np.int32), sizes)
    padded = np.flatnonzero(numbers == 0)
    ids[padded], positions[padded] = pad_id, 0
    shape, taken = (count, length), int(real.sum())
    return Rows(ids.reshape(shape), numbers.reshape(shape), positions.reshape(shape), taken, len(tokens) - taken)

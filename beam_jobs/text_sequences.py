"""Sequences of one length from documents of any: cut from a stream, or packed from whole documents.

Both take the tokens of documents in order and give rows of `length` tokens; equal documents in equal order give equal rows.

stream   the documents one after the other, cut every `length` tokens wherever that falls; only the last row has padding
packed   whole documents side by side in a row, with `segment_ids` (1, 2, ... for the documents of a row, 0 for padding) and
         `positions` (0, 1, ... in each document, 0 for padding), so that a model can keep them apart
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.text_packing import best_fit_decreasing
from beam_jobs.tokenizers import Ids

# Documents that are packed together, unless their tokens are as many as the second number before.
WINDOW_DOCUMENTS = 1 << 14
WINDOW_TOKENS = 1 << 21
# Tokens that are put in place at once: the arrays for that stay small.
_BLOCK_TOKENS = 1 << 16
SPLIT, CUT = "split", "cut"


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


def stream_rows(windows: Iterable[Sequence[Ids]], length: int, pad_id: int) -> Iterator[Rows]:
    """Cuts a stream of documents into rows.

    Args:
        windows: documents, some at a time; each int32 [tokens].
        length: tokens of a row.
        pad_id: fills up the last row.
    """
    rest: Ids = np.zeros(0, np.int32)
    for documents in windows:
        tokens = np.concatenate([rest, *documents])
        whole = len(tokens) // length * length
        rest = tokens[whole:].copy()
        if whole:
            yield Rows(tokens[:whole].reshape(-1, length), None, None, whole, 0)
    if len(rest):
        row = np.full((1, length), pad_id, np.int32)
        row[0, : len(rest)] = rest
        yield Rows(row, None, None, len(rest), 0)


def packed_rows(
    windows: Iterable[Sequence[Ids]], length: int, pad_id: int, long_documents: str = SPLIT
) -> Iterator[Rows]:
    """Packs documents into rows, those of each window together.

    Args:
        windows: documents, some at a time; each int32 [tokens]. An empty one takes no place.
        length: tokens of a row.
        pad_id: fills up rows.
        long_documents: what happens to a document longer than a row: `"split"` makes documents of `length` tokens and a rest of
            it, each with positions from 0, `"cut"` drops what is behind the first `length` tokens.
    """
    for documents in windows:
        sizes = np.fromiter(map(len, documents), np.int64, len(documents))
        if not sizes.sum():
            continue
        tokens = np.concatenate(documents)
        starts, pieces = _pieces(sizes, length, long_documents)
        rows, columns, segments = _placed(pieces, length)
        yield _filled(tokens, starts, pieces, rows * length + columns, segments, length, pad_id)


def windows(
    documents: Iterable[Ids], most_documents: int = WINDOW_DOCUMENTS, most_tokens: int = WINDOW_TOKENS
) -> Iterator[list[Ids]]:
    """Documents in order, in lists that are full with so many documents or tokens; the last document may exceed the tokens."""
    held: list[Ids] = []
    tokens = 0
    for document in documents:
        held.append(document)
        tokens += len(document)
        if len(held) >= most_documents or tokens >= most_tokens:
            yield held
            held, tokens = [], 0
    if held:
        yield held


def ended(documents: Sequence[Ids], eos_id: int) -> list[Ids]:
    """The documents, each with its end behind it."""
    end = np.array([eos_id], np.int32)
    tokens = np.concatenate([part for document in documents for part in (document, end)]) if documents else end
    ends = list(itertools.accumulate((len(document) + 1 for document in documents), initial=0))
    return [tokens[start:stop] for start, stop in itertools.pairwise(ends)]


def _pieces(
    sizes: npt.NDArray[np.int64], length: int, long_documents: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the pieces of at most `length` tokens begin in the tokens of all documents, and how long they are."""
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


def _placed(
    pieces: npt.NDArray[np.int64], length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row, first column and segment of each piece.

    Rows stand in the order in which the longest document of each came, and the documents of a row in theirs: so packing leaves a
    shuffled order shuffled.
    """
    bins = best_fit_decreasing(pieces, length)
    longest = np.lexsort((np.arange(len(pieces)), -pieces))
    _, first = np.unique(bins[longest], return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(longest[first])] = np.arange(len(first))
    rows = rank[bins]
    order = np.argsort(rows, kind="stable")
    ordered = pieces[order]
    counts = np.bincount(rows)
    before = np.cumsum(ordered) - ordered
    heads = np.cumsum(counts) - counts
    columns, segments = np.empty_like(rows), np.empty_like(rows)
    columns[order] = before - np.repeat(before[heads], counts)
    segments[order] = np.arange(len(rows)) - np.repeat(heads, counts) + 1
    return rows, columns, segments


def _filled(
    tokens: Ids,
    starts: npt.NDArray[np.int64],
    pieces: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    segments: npt.NDArray[np.int64],
    length: int,
    pad_id: int,
) -> Rows:
    """Copies the pieces of `tokens` to their targets in the flattened rows."""
    real = int(pieces.sum())
    count = int(targets.max()) // length + 1
    input_ids = np.full(count * length, pad_id, np.int32)
    segment_ids = np.zeros(count * length, np.int32)
    positions = np.zeros(count * length, np.int32)
    ends = np.cumsum(pieces)
    for some in np.split(np.arange(len(pieces)), np.flatnonzero(np.diff(ends // _BLOCK_TOKENS)) + 1):
        sizes = pieces[some]
        nth = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        places = np.repeat(targets[some], sizes) + nth
        input_ids[places] = tokens[np.repeat(starts[some], sizes) + nth]
        segment_ids[places] = np.repeat(segments[some], sizes)
        positions[places] = nth
    shape = (count, length)
    return Rows(
        input_ids.reshape(shape), segment_ids.reshape(shape), positions.reshape(shape), real, len(tokens) - real
    )

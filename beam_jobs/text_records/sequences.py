"""Sequences of one length from documents of any length: cut from a stream, or packed from whole documents.

Both take the tokens of documents in order and give rows of `length` tokens; equal documents in equal order give equal rows.

stream   the concatenated documents, cut every `length` tokens; only the last row has padding
packed   several whole documents in a row, with `segment_ids` (1, 2, ... for the documents of a row, 0 for padding) and
         `positions` (0, 1, ... in each document, 0 for padding), so that a model can separate them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.text_files.options import CUT, SPLIT
from beam_jobs.text_records.bin_packing import best_fit_decreasing
from tpudata.tokenizers import Ids

# A window of documents that are packed together ends at this many documents or tokens.
WINDOW_DOCUMENTS = 1 << 14
WINDOW_TOKENS = 1 << 21
# Tokens that are copied at once, so that index arrays stay small.
_BLOCK_TOKENS = 1 << 16


class Documents(NamedTuple):
    """Concatenated tokens of documents: a Python object for each would cost more than its tokens.

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
    def join(cls, parts: Sequence[Documents]) -> Documents:
        """Return the concatenated documents of all parts, at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([part.tokens for part in parts]), np.concatenate([part.sizes for part in parts]))

    def take(self, is_kept: npt.NDArray[np.bool_]) -> Documents:
        """Return the documents of a mask, bool [documents]."""
        return Documents(self.tokens[np.repeat(is_kept, self.sizes)], self.sizes[is_kept])

    def add_ends(self, eos_id: int) -> Documents:
        """Return the documents, each followed by the end token."""
        return Documents(np.insert(self.tokens, np.cumsum(self.sizes), eos_id), self.sizes + 1)


class TokenRows(NamedTuple):
    """A batch of rows.

    Attributes:
        input_ids: int32 [rows, length].
        segment_ids: int32 [rows, length], or None for rows of a stream.
        positions: int32 [rows, length], or None for rows of a stream.
        real: number of tokens that are not padding.
        dropped: number of tokens that were dropped from documents longer than `length`.
    """

    input_ids: Ids
    segment_ids: Ids | None
    positions: Ids | None
    real: int
    dropped: int


def stream_rows(windows: Iterable[Documents], length: int, pad_id: int) -> Iterator[TokenRows]:
    """Cut a stream of documents into rows.

    Args:
        windows: windows of documents.
        length: number of tokens of a row.
        pad_id: padding of the last row.
    """
    unwritten: Ids = np.zeros(0, np.int32)
    for documents in windows:
        tokens = np.concatenate([unwritten, documents.tokens])
        full_row_tokens = len(tokens) // length * length
        unwritten = tokens[full_row_tokens:].copy()
        if full_row_tokens:
            yield TokenRows(tokens[:full_row_tokens].reshape(-1, length), None, None, full_row_tokens, 0)
    if len(unwritten):
        row = np.full((1, length), pad_id, np.int32)
        row[0, : len(unwritten)] = unwritten
        yield TokenRows(row, None, None, len(unwritten), 0)


def pack_rows(
    windows: Iterable[Documents], length: int, pad_id: int, long_documents: str = SPLIT
) -> Iterator[TokenRows]:
    """Pack documents into rows, those of each window together.

    Args:
        windows: windows of documents. Empty documents take no place.
        length: number of tokens of a row.
        pad_id: padding of rows.
        long_documents: treatment of documents longer than a row: `"split"` divides them into documents of `length` tokens and a
            rest, each with positions from 0, `"cut"` drops all tokens after the first `length`.
    """
    for tokens, sizes in windows:
        if len(tokens):
            starts, pieces = _cut_pieces(sizes, length, long_documents)
            yield fill_rows(tokens, starts, pieces, _place_pieces(pieces, length), length, pad_id)


def split_windows(
    batches: Iterable[Documents], most_documents: int = WINDOW_DOCUMENTS, most_tokens: int = WINDOW_TOKENS
) -> Iterator[Documents]:
    """Yield documents in order, in windows limited by documents or tokens; the last document may exceed the token limit.

    The result does not depend on the batches of documents.
    """
    window: list[Documents] = []
    documents = tokens = 0
    for batch in batches:
        ends = np.cumsum(batch.sizes)
        first = begin = 0
        while first < len(ends):
            # The document that reaches the number of tokens is the last of the window.
            full = int(np.searchsorted(ends, begin + most_tokens - tokens)) + 1
            stop = min(full, first + most_documents - documents, len(ends))
            end = int(ends[stop - 1])
            window.append(Documents(batch.tokens[begin:end], batch.sizes[first:stop]))
            documents, tokens = documents + stop - first, tokens + end - begin
            first, begin = stop, end
            if documents >= most_documents or tokens >= most_tokens:
                yield Documents.join(window)
                window, documents, tokens = [], 0, 0
    if window:
        yield Documents.join(window)


def _cut_pieces(
    sizes: npt.NDArray[np.int64], length: int, long_documents: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return starts and lengths of the pieces of at most `length` tokens in the tokens of all documents."""
    begins = np.cumsum(sizes) - sizes
    if long_documents == CUT:
        starts, pieces = begins, np.minimum(sizes, length)
    else:
        counts = -(-sizes // length)
        # The index of a piece in its document: 0, 1, ...
        piece_index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(begins, counts) + piece_index * length
        pieces = np.minimum(np.repeat(sizes, counts) - piece_index * length, length)
    filled = pieces > 0
    return starts[filled], pieces[filled]


def _place_pieces(pieces: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the row of each piece.

    Rows are in the order of their longest documents, so packing keeps a shuffled order shuffled.
    """
    bins = best_fit_decreasing(pieces, length)
    longest = np.argsort(-pieces, kind="stable")
    _, first = np.unique(bins[longest], return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(longest[first])] = np.arange(len(first))
    return rank[bins]


def fill_rows(
    tokens: Ids,
    starts: npt.NDArray[np.int64],
    pieces: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    length: int,
    pad_id: int,
) -> TokenRows:
    """Copy the pieces of `tokens` into their rows, in order within a row."""
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows)
    first_pieces = np.cumsum(counts) - counts
    starts, pieces = starts[order], pieces[order]
    segments = np.arange(1, len(pieces) + 1) - np.repeat(first_pieces, counts)
    # Each row ends with a piece of padding, of segment 0, so that all pieces are contiguous.
    row_tokens = np.add.reduceat(pieces, first_pieces)
    ends = first_pieces + counts
    starts, pieces, segments = (
        np.insert(column, ends, padding)
        for column, padding in ((starts, 0), (pieces, length - row_tokens), (segments, 0))
    )
    ends = np.cumsum(counts + 1)
    count = len(counts)
    ids, segment_ids, positions = (np.empty(count * length, np.int32) for _ in range(3))
    # A few rows at a time, so that index arrays stay small.
    block = max(1, _BLOCK_TOKENS // length)
    for row in range(0, count, block):
        stop = min(row + block, count)
        block_pieces = slice(ends[row - 1] if row else 0, ends[stop - 1])
        block_tokens = slice(row * length, stop * length)
        sizes = pieces[block_pieces]
        piece_starts = np.cumsum(sizes) - sizes
        offsets = np.arange((stop - row) * length)
        np.subtract(offsets, np.repeat(piece_starts, sizes), out=positions[block_tokens], casting="same_kind")
        # The values for padding are overwritten.
        np.take(
            tokens,
            offsets + np.repeat(starts[block_pieces] - piece_starts, sizes),
            out=ids[block_tokens],
            mode="clip",
        )
        segment_ids[block_tokens] = np.repeat(segments[block_pieces].astype(np.int32), sizes)
    padded = np.flatnonzero(segment_ids == 0)
    ids[padded], positions[padded] = pad_id, 0
    shape, real_tokens = (count, length), int(row_tokens.sum())
    return TokenRows(
        ids.reshape(shape), segment_ids.reshape(shape), positions.reshape(shape), real_tokens, len(tokens) - real_tokens
    )

"""Sequences of one length from documents of any length: cut from a stream, or packed document by document.

Both take documents in order and give rows of `length` tokens; equal documents in equal order give equal rows.

stream   the concatenated documents, cut every `length` tokens; only the last row may have padding
packed   several documents in a row, whole unless they are longer, with `segment_ids` (1, 2, ... for the documents of a row, 0
         for padding) and `positions` (0, 1, ... in each document, 0 for padding), so that a model can separate them
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
# Tokens that are copied together, so that index arrays stay small.
_BLOCK_TOKENS = 1 << 16


class Documents(NamedTuple):
    """Concatenated tokens of documents, since a Python object for each document would cost more than its tokens.

    Attributes:
        tokens: int32 [tokens of all documents].
        sizes: int64 [documents], number of tokens of each.
    """

    tokens: Ids
    sizes: npt.NDArray[np.int64]

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Index of each document's first token in `tokens`, int64 [documents]."""
        return np.cumsum(self.sizes) - self.sizes

    @classmethod
    def of(cls, documents: Sequence[Ids]) -> Documents:
        """Concatenate the tokens of documents, each int32 [tokens]."""
        tokens = np.concatenate(documents) if documents else np.zeros(0, np.int32)
        return cls(tokens, np.fromiter(map(len, documents), np.int64, len(documents)))

    @classmethod
    def join(cls, parts: Sequence[Documents]) -> Documents:
        """Return the concatenated documents of all parts, at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([part.tokens for part in parts]), np.concatenate([part.sizes for part in parts]))

    def take(self, is_kept: npt.NDArray[np.bool_]) -> Documents:
        """Return the documents that a mask selects, bool [documents]."""
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
        real_count: number of tokens that are not padding.
        dropped_count: number of tokens that were cut from documents longer than `length`.
    """

    input_ids: Ids
    segment_ids: Ids | None
    positions: Ids | None
    real_count: int
    dropped_count: int


def stream_rows(windows: Iterable[Documents], length: int, pad_id: int) -> Iterator[TokenRows]:
    """Cut a stream of documents into rows.

    Args:
        windows: documents in order; where a window ends does not matter here.
        length: number of tokens of a row.
        pad_id: token that fills up the last row.
    """
    unwritten: Ids = np.zeros(0, np.int32)
    for documents in windows:
        tokens = np.concatenate([unwritten, documents.tokens])
        full_rows_end = len(tokens) // length * length
        # A copy, so that the tokens of the window are freed.
        unwritten = tokens[full_rows_end:].copy()
        if full_rows_end:
            yield TokenRows(
                tokens[:full_rows_end].reshape(-1, length),
                segment_ids=None,
                positions=None,
                real_count=full_rows_end,
                dropped_count=0,
            )
    if len(unwritten):
        row = np.full((1, length), pad_id, np.int32)
        row[0, : len(unwritten)] = unwritten
        yield TokenRows(row, segment_ids=None, positions=None, real_count=len(unwritten), dropped_count=0)


def pack_rows(
    windows: Iterable[Documents], length: int, pad_id: int, long_documents: str = SPLIT
) -> Iterator[TokenRows]:
    """Pack documents into rows, each window by itself.

    Args:
        windows: windows of documents. Empty documents take no room.
        length: number of tokens of a row.
        pad_id: token at the positions of a row that no document fills.
        long_documents: treatment of documents longer than a row: `"split"` divides them into documents of `length` tokens and a
            remainder, each with positions from 0; `"cut"` drops all tokens after the first `length`; with `"reject"`, there are no
            such documents, since the caller rejected them.
    """
    for documents in windows:
        if len(documents.tokens):
            starts, sizes = _cut_pieces(documents, length, long_documents)
            yield fill_rows(documents.tokens, starts, sizes, _place_pieces(sizes, length), length, pad_id)


def split_windows(
    batches: Iterable[Documents], max_documents: int = WINDOW_DOCUMENTS, max_tokens: int = WINDOW_TOKENS
) -> Iterator[Documents]:
    """Yield documents in order, in windows that end with the document that reaches a number of documents or of tokens.

    The windows do not depend on the batches of documents.
    """
    window: list[Documents] = []
    document_count = token_count = 0
    for batch in batches:
        ends = np.cumsum(batch.sizes)
        first_document = first_token = 0
        while first_document < len(ends):
            # The document that reaches the number of tokens is the last of the window.
            stop_by_tokens = int(np.searchsorted(ends, first_token + max_tokens - token_count)) + 1
            stop_document = min(stop_by_tokens, first_document + max_documents - document_count, len(ends))
            stop_token = int(ends[stop_document - 1])
            window.append(Documents(batch.tokens[first_token:stop_token], batch.sizes[first_document:stop_document]))
            document_count += stop_document - first_document
            token_count += stop_token - first_token
            first_document, first_token = stop_document, stop_token
            if document_count >= max_documents or token_count >= max_tokens:
                yield Documents.join(window)
                window, document_count, token_count = [], 0, 0
    if window:
        yield Documents.join(window)


def _cut_pieces(
    documents: Documents, length: int, long_documents: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where the pieces of documents start in `documents.tokens`, and their sizes, 1 to `length` tokens: int64 [pieces]."""
    if long_documents == CUT:
        starts, sizes = documents.starts, np.minimum(documents.sizes, length)
    else:
        # Documents are split; with --long-documents reject, none is longer than `length`.
        # Number of pieces of each document; the last piece may be shorter than `length`.
        piece_counts = -(-documents.sizes // length)
        # The index of each piece in its document: 0, 1, ...
        piece_indices = np.arange(piece_counts.sum()) - np.repeat(np.cumsum(piece_counts) - piece_counts, piece_counts)
        starts = np.repeat(documents.starts, piece_counts) + piece_indices * length
        sizes = np.minimum(np.repeat(documents.sizes, piece_counts) - piece_indices * length, length)
    is_filled = sizes > 0
    return starts[is_filled], sizes[is_filled]


def _place_pieces(sizes: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the row of each piece, int64 [pieces].

    Rows are in the order of their longest pieces, so packing keeps a shuffled order shuffled.
    """
    bins = best_fit_decreasing(sizes, length)
    from_longest = np.argsort(-sizes, kind="stable")
    # The first piece of a bin in this order is its longest.
    _, index_of_longest = np.unique(bins[from_longest], return_index=True)
    longest_pieces = from_longest[index_of_longest]
    rank = np.empty(len(longest_pieces), np.int64)
    rank[np.argsort(longest_pieces)] = np.arange(len(longest_pieces))
    return rank[bins]


def fill_rows(
    tokens: Ids,
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    length: int,
    pad_id: int,
) -> TokenRows:
    """Copy pieces of `tokens` into their rows, in order within a row.

    Args:
        tokens: int32 [tokens].
        starts: int64 [pieces], index of each piece's first token in `tokens`.
        sizes: int64 [pieces], number of tokens of each piece.
        rows: int64 [pieces], row of each piece; every row has a piece, and room for all of its pieces.
        length: number of tokens of a row.
        pad_id: token at the positions of a row that no document fills.

    Returns:
        The rows; tokens that are in no piece count as dropped.
    """
    order = np.argsort(rows, kind="stable")
    piece_counts = np.bincount(rows)
    first_pieces = np.cumsum(piece_counts) - piece_counts
    starts, sizes = starts[order], sizes[order]
    # Number of each piece in its row, from 1 on.
    segments = np.arange(1, len(sizes) + 1) - np.repeat(first_pieces, piece_counts)
    # Each row gets a last piece of padding, of segment 0, so that all pieces are contiguous.
    token_counts = np.add.reduceat(sizes, first_pieces)
    starts, sizes, segments = (
        np.insert(column, first_pieces + piece_counts, padding)
        for column, padding in ((starts, 0), (sizes, length - token_counts), (segments, 0))
    )
    # Index after the last piece of each row, its padding.
    piece_stops = np.cumsum(piece_counts + 1)
    row_count = len(piece_counts)
    ids, segment_ids, positions = (np.empty(row_count * length, np.int32) for _ in range(3))
    # A few rows at a time, so that index arrays stay small.
    rows_per_block = max(1, _BLOCK_TOKENS // length)
    for first_row in range(0, row_count, rows_per_block):
        stop_row = min(first_row + rows_per_block, row_count)
        block_pieces = slice(piece_stops[first_row - 1] if first_row else 0, piece_stops[stop_row - 1])
        block_tokens = slice(first_row * length, stop_row * length)
        block_sizes = sizes[block_pieces]
        piece_offsets = np.cumsum(block_sizes) - block_sizes
        offsets = np.arange((stop_row - first_row) * length)
        np.subtract(offsets, np.repeat(piece_offsets, block_sizes), out=positions[block_tokens], casting="same_kind")
        # Padding has no tokens to copy; what is copied here is overwritten below.
        np.take(
            tokens,
            offsets + np.repeat(starts[block_pieces] - piece_offsets, block_sizes),
            out=ids[block_tokens],
            mode="clip",
        )
        segment_ids[block_tokens] = np.repeat(segments[block_pieces].astype(np.int32), block_sizes)
    padding_indices = np.flatnonzero(segment_ids == 0)
    ids[padding_indices], positions[padding_indices] = pad_id, 0
    shape, real_count = (row_count, length), int(token_counts.sum())
    return TokenRows(
        ids.reshape(shape),
        segment_ids.reshape(shape),
        positions.reshape(shape),
        real_count=real_count,
        dropped_count=len(tokens) - real_count,
    )

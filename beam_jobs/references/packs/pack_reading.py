"""Reading the bytes of a shard's references, many with one read.

A shard of text may have a million references of a hundred bytes each. They are in a few files, and in each file they form runs in
the order of the shard (see beam_jobs.sources.text). Neighbours are read together, a piece of the file at a time, and a piece is
dropped after its last reference. So memory holds one piece of each run: 32 MiB in all, or 16 KiB a run if that is more (see
`PieceSizes`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.references.packs.columns import narrow, spread
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.read_ahead import MAX_AHEAD_BYTES, read_ahead
from beam_jobs.references.reading import describe_read_error, read_references
from beam_jobs.references.reference import WHOLE_FILE, Reference
from tpudata.errors import BadRecordError, StorageError, StorageUnavailableError
from tpudata.storage import is_remote, request_limits, storage_for

# Largest gap between neighbours, such as line ends and headings: reading it costs less than another read.
_MAX_GAP_BYTES = 1 << 14
# Maximum number of bytes in a block, except for a block of a single larger reference.
_MAX_BLOCK_BYTES = 1 << 23


class PieceSizes(NamedTuple):
    """Limits of pieces and of the read-ahead, in bytes.

    Attributes:
        max_held_bytes: maximum number of bytes of pieces in memory, where each run has one piece.
        min_piece_bytes: size of the smallest piece, even if pieces then exceed `max_held_bytes`.
        max_piece_bytes: size of the largest piece.
        max_ahead_bytes: maximum number of bytes read ahead from an object store.
    """

    max_held_bytes: int = 1 << 25
    min_piece_bytes: int = 1 << 14
    max_piece_bytes: int = 1 << 22
    max_ahead_bytes: int = MAX_AHEAD_BYTES


_SIZES = PieceSizes()


class _Piece(NamedTuple):
    """Range of a file that is read with one read.

    Attributes:
        path: path of the file.
        start: first byte, or WHOLE_FILE.
        size: size in bytes.
        reference_count: number of references in it.
    """

    path: str
    start: int
    size: int
    reference_count: int


class _MissingPiece(NamedTuple):
    """A piece that could not be read, and why."""

    reason: str


def read_packs(
    packs: Sequence[Pack], *, is_checked: bool = False, piece_sizes: PieceSizes = _SIZES
) -> Iterator[tuple[Reference, bytes | BadRecordError]]:
    """Yield every reference of packs, in order, with its bytes or the error of reading.

    Args:
        packs: packs of references, in the order in which they are yielded.
        is_checked: whether the caller compares the bytes with a checksum, so that they need not be read twice.
        piece_sizes: sizes of pieces and of the read-ahead.
    """
    for block, data in read_blocks(packs, is_checked=is_checked, piece_sizes=piece_sizes):
        if isinstance(data, BadRecordError):
            yield from ((reference, data) for reference in block.references())
            continue
        ends = itertools.accumulate(block.sizes.tolist(), initial=0)
        yield from zip(block.references(), (data[start:end] for start, end in itertools.pairwise(ends)), strict=True)


def read_blocks(
    packs: Sequence[Pack], *, is_checked: bool = False, piece_sizes: PieceSizes = _SIZES
) -> Iterator[tuple[Pack, bytes | BadRecordError]]:
    """Yield the references of packs in blocks, in order.

    Args:
        packs: packs of references, in the order in which they are yielded.
        is_checked: whether the caller compares the bytes with a checksum, so that they need not be read twice.
        piece_sizes: sizes of pieces and of the read-ahead.

    Yields:
        (pack whose `sizes` are the sizes of its bytes, concatenated bytes), or (pack of one reference, its error).
    """
    for is_fetched, group in itertools.groupby(packs, key=_has_fetched_payload):
        if is_fetched:
            yield from itertools.chain.from_iterable(map(_fetch_blocks, group))
        else:
            yield from _read_ranges(list(group), piece_sizes, is_checked=is_checked)


def _has_fetched_payload(pack: Pack) -> bool:
    """Return whether a payload in the pack fetches its bytes, so that their sizes are unknown before."""
    return any(payload.is_fetched for payload in pack.payloads)


def _fetch_blocks(pack: Pack) -> Iterator[tuple[Pack, bytes | BadRecordError]]:
    """Read the references of a pack one by one, and yield them in blocks, whose `sizes` are the sizes of the fetched bytes."""
    contents, block_bytes = list[bytes](), 0
    for row, (_, data) in enumerate(read_references(pack.references())):
        if contents and (isinstance(data, BadRecordError) or block_bytes >= _MAX_BLOCK_BYTES):
            yield _take_block(pack, row, contents)
            contents, block_bytes = [], 0
        if isinstance(data, BadRecordError):
            yield pack.take(np.array([row])), data
        else:
            contents.append(data)
            block_bytes += len(data)
    if contents:
        yield _take_block(pack, len(pack.keys), contents)


def _take_block(pack: Pack, stop_row: int, contents: Sequence[bytes]) -> tuple[Pack, bytes]:
    """Return the block of `contents`, which are the bytes of the pack's last rows before `stop_row`."""
    block = pack.take(np.arange(stop_row - len(contents), stop_row))
    return dataclasses.replace(block, sizes=narrow(list(map(len, contents)))), b"".join(contents)


def _read_ranges(
    packs: Sequence[Pack], piece_sizes: PieceSizes, *, is_checked: bool
) -> Iterator[tuple[Pack, bytes | BadRecordError]]:
    """Read the pieces of packs in the order of use, and yield blocks; a piece is dropped after its last reference."""
    pieces, piece_indices = _plan_pieces(packs, piece_sizes)
    read_piece = functools.partial(_read_piece, is_checked=is_checked)
    piece_contents = (
        _read_remote(pieces, read_piece, piece_sizes.max_ahead_bytes)
        if is_remote(pieces[0].path)
        else map(read_piece, pieces)
    )
    held_pieces: dict[int, bytes | _MissingPiece] = {}
    unread_counts = [piece.reference_count for piece in pieces]
    piece_starts = np.array([piece.start for piece in pieces], np.int64)
    first_index = 0
    for pack in packs:
        for rows in _divide_rows(pack.sizes):
            block = pack if len(rows) == len(pack.keys) else pack.take(rows)
            block_pieces = piece_indices[first_index : first_index + len(rows)]
            first_index += len(rows)
            needed_pieces, counts = np.unique(block_pieces, return_counts=True)
            for piece_index in needed_pieces.tolist():
                if piece_index not in held_pieces:
                    # Pieces are numbered in the order in which they are needed.
                    held_pieces[piece_index] = next(piece_contents)
            # For a whole file the difference is 0, since both are WHOLE_FILE.
            starts = block.offsets - piece_starts[block_pieces]
            yield from _take_from_pieces(block, block_pieces, starts, held_pieces)
            for piece_index, count in zip(needed_pieces.tolist(), counts.tolist(), strict=True):
                unread_counts[piece_index] -= count
                if not unread_counts[piece_index]:
                    del held_pieces[piece_index]


def _divide_rows(sizes: npt.NDArray[np.integer[Any]]) -> Iterator[npt.NDArray[np.intp]]:
    """Divide references into consecutive blocks of up to 8 MiB, or of one larger reference, and yield the rows of each block.

    Args:
        sizes: size of each reference in bytes, [n].
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    first_row = 0
    while first_row < len(ends):
        block_start = int(ends[first_row - 1]) if first_row else 0
        stop_row = max(first_row + 1, int(np.searchsorted(ends, block_start + _MAX_BLOCK_BYTES, side="right")))
        yield np.arange(first_row, stop_row)
        first_row = stop_row


def _take_from_pieces(
    block: Pack,
    piece_indices: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    held_pieces: Mapping[int, bytes | _MissingPiece],
) -> Iterator[tuple[Pack, bytes | BadRecordError]]:
    """Take the bytes of a block's references from their pieces.

    Args:
        block: references of one block.
        piece_indices: index of the piece of each reference, [n].
        starts: offset of each reference in its piece, in bytes, [n].
        held_pieces: contents of pieces by index, including the pieces of the block.

    Yields:
        The block with its concatenated bytes; or, if a piece is missing or short, a pack of each reference with its bytes or error.
    """
    spans = list(zip(piece_indices.tolist(), starts.tolist(), block.sizes.tolist(), strict=True))
    contents = {
        piece_index: piece for piece_index, piece in held_pieces.items() if not isinstance(piece, _MissingPiece)
    }
    if all(piece_index in contents for piece_index in set(piece_indices.tolist())):
        data = b"".join([contents[piece_index][start : start + size] for piece_index, start, size in spans])
        if len(data) == int(block.sizes.sum(dtype=np.int64)):
            yield block, data
            return
    # A piece is missing or short: yield one by one.
    for row, (piece_index, start, size) in enumerate(spans):
        row_pack = block.take(np.array([row]))
        piece = held_pieces[piece_index]
        (reference,) = row_pack.references()
        if isinstance(piece, _MissingPiece):
            yield row_pack, BadRecordError(reference.origin, piece.reason)
            continue
        content = piece[start : start + size]
        if len(content) < size:
            reason = f"cut: {len(content)} of {size} bytes"
            yield row_pack, BadRecordError(reference.origin, reason, reference.offset)
        else:
            yield row_pack, content


def _plan_pieces(packs: Sequence[Pack], piece_sizes: PieceSizes) -> tuple[list[_Piece], npt.NDArray[np.int32]]:
    """Return the pieces in the order of use, and for each of n references the index of its piece, [n]."""
    indices_by_path: dict[str, int] = {}
    file_indices = np.concatenate([_number_files(pack, indices_by_path) for pack in packs])
    offsets = np.concatenate([np.broadcast_to(pack.offsets, len(pack.keys)) for pack in packs])
    # The references sorted by file and offset; `order` gives the position of each in the order of use. With millions of references
    # the size of every array matters, so types are narrow.
    order = np.lexsort((offsets, file_indices)).astype(np.int32)
    file_indices, offsets = file_indices[order], offsets[order]
    sizes = np.concatenate([pack.sizes for pack in packs])[order]
    begins_run = _find_run_starts(order, file_indices, offsets, sizes)
    # Each run has one piece in memory, so they share what may be held.
    piece_bytes = min(
        piece_sizes.max_piece_bytes,
        max(piece_sizes.min_piece_bytes, piece_sizes.max_held_bytes // int(begins_run.sum())),
    )
    # Within a run, a piece ends at each multiple of `piece_bytes` bytes.
    run_indices = np.flatnonzero(begins_run)
    multiples = offsets - np.repeat(offsets[run_indices].astype(np.int64), np.diff(run_indices, append=len(order)))
    multiples //= piece_bytes
    # Each run also begins a piece, so the same array is extended in place.
    begins_piece = begins_run
    begins_piece[1:] |= multiples[1:] != multiples[:-1]
    del multiples, begins_run, run_indices
    # Until here, pieces are in the order of files and offsets; `use_order` sorts them by their first use.
    first_indices = np.flatnonzero(begins_piece)
    reference_counts = np.diff(first_indices, append=len(order))
    last_indices = first_indices + reference_counts - 1
    use_order = np.argsort(np.minimum.reduceat(order, first_indices), kind="stable")
    # Position of each piece in the order of use.
    use_positions = np.empty(len(use_order), np.int32)
    use_positions[use_order] = np.arange(len(use_order))
    piece_indices = np.empty(len(order), np.int32)
    piece_indices[order] = np.repeat(use_positions, reference_counts)
    starts = offsets[first_indices].astype(np.int64)
    ends = offsets[last_indices] + sizes[last_indices].astype(np.int64)
    lengths = np.where(starts == WHOLE_FILE, sizes[first_indices], ends - starts)
    paths = list(indices_by_path)
    columns = (file_indices[first_indices], starts, lengths, reference_counts)
    pieces = [
        _Piece(paths[file_index], start, size, reference_count)
        for file_index, start, size, reference_count in zip(
            *(column[use_order].tolist() for column in columns), strict=True
        )
    ]
    return pieces, piece_indices


def _find_run_starts(
    order: npt.NDArray[np.int32],
    file_indices: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.integer[Any]],
    sizes: npt.NDArray[np.integer[Any]],
) -> npt.NDArray[np.bool_]:
    """Return whether a run begins at each of n references, which are sorted by file and offset: bool [n].

    A run continues at a range whose predecessor is a range of the same file that ends at most `_MAX_GAP_BYTES` before it and comes
    earlier in the order of use; a run begins at every other reference.

    Args:
        order: position of each reference in the order of use, [n].
        file_indices: index of each reference's file, [n].
        offsets: offset of each reference in its file, or WHOLE_FILE, [n].
        sizes: bytes of each reference, [n].
    """
    begins_run = np.ones(len(order), np.bool_)
    gaps = offsets[1:].astype(np.int64) - offsets[:-1] - sizes[:-1]
    begins_run[1:] = (
        (file_indices[1:] != file_indices[:-1])
        | (gaps < 0)
        | (gaps > _MAX_GAP_BYTES)
        | (order[1:] < order[:-1])
        | (offsets[1:] == WHOLE_FILE)
        | (offsets[:-1] == WHOLE_FILE)
    )
    return begins_run


def _number_files(pack: Pack, indices_by_path: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return the index of the file that contains each reference's bytes, [n]; add new files to `indices_by_path`."""
    count, spools, paths = len(pack.keys), pack.spools, pack.list_paths()
    if len(spools) == 1 and (spools[0] or len(paths) == 1):
        # One file contains the bytes of all references.
        path = spools[0] or paths[0]
        return np.full(count, indices_by_path.setdefault(path, len(indices_by_path)), np.int32)
    rows = zip(spread(spools, count), spread(paths, count), strict=True)
    return np.array([indices_by_path.setdefault(spool or path, len(indices_by_path)) for spool, path in rows], np.int32)


def _read_remote(
    pieces: Sequence[_Piece], read_piece: Callable[[_Piece], bytes | _MissingPiece], max_ahead_bytes: int
) -> Iterator[bytes | _MissingPiece]:
    """Yield the contents of pieces of objects, in order, reading ahead."""
    # Unless a checksum proves it, a range of an object is read twice at the same time, so each piece may take two threads.
    thread_count = max(1, request_limits().read_threads // 2)
    return (
        data for _, data in read_ahead(pieces, read_piece, operator.attrgetter("size"), thread_count, max_ahead_bytes)
    )


def _read_piece(piece: _Piece, *, is_checked: bool) -> bytes | _MissingPiece:
    """Return the bytes of a piece, or why they could not be read; raise StorageUnavailableError in an outage."""
    storage = storage_for(piece.path)
    try:
        if piece.start != WHOLE_FILE:
            return storage.read_range(piece.path, piece.start, piece.size, is_checked=is_checked)
        data = storage.read(piece.path, piece.size)
    except StorageUnavailableError:
        # An outage aborts the job; --on-bad-record=skip never counts it as a bad record.
        raise
    except StorageError as error:
        return _MissingPiece(describe_read_error(piece.path, error))
    if len(data) != piece.size:
        return _MissingPiece(f"changed during the run: {len(data)} bytes, {piece.size} when it was listed")
    return data

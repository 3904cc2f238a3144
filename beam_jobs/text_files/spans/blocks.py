"""Documents of a file in blocks: arrays of offsets and sizes, without a Python object for each document.

Finding a line of 28 bytes takes 0.1 microseconds this way; creating an object for it takes several.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.compression.streams import READ_SIZES, ReadSizes, read_plain_chunks
from beam_jobs.text_files.spans.lines import BOM, Span

Numbers = npt.NDArray[np.int64]
# Spans and bytes at which a block ends.
_BLOCK_DOCUMENTS, _BLOCK_BYTES = 1 << 12, 1 << 22
_LF, _CR = 0x0A, 0x0D
# Per byte value: whether it is not whitespace, as in bytes.isspace.
_IS_TEXT = np.array([not bytes([octet]).isspace() for octet in range(256)])


class SpanBlock(NamedTuple):
    """Spans of a file, in order.

    Attributes:
        data: bytes that contain the spans.
        starts: int64 [n], index of the first byte of each in `data`; meaningless if the span is too large and has no data.
        sizes: int64 [n], bytes of each.
        offsets: int64 [n], offset of each in the file.
    """

    data: bytes
    starts: Numbers
    sizes: Numbers
    offsets: Numbers

    @classmethod
    def from_spans(cls, spans: Iterable[Span]) -> SpanBlock:
        """Return spans, at least one, as one block."""
        offsets, sizes, data = zip(*spans, strict=True)
        lengths = np.fromiter(map(len, data), np.int64, len(data))
        return cls(b"".join(data), np.cumsum(lengths) - lengths, np.array(sizes, np.int64), np.array(offsets, np.int64))

    def take(self, rows: Any) -> SpanBlock:
        """Return the spans in the rows of a slice, an index array or a mask."""
        return SpanBlock(self.data, self.starts[rows], self.sizes[rows], self.offsets[rows])


def gather_spans(spans: Iterable[Span]) -> Iterator[SpanBlock]:
    """Yield spans in blocks; a block ends with its 4,096th span, or when it has 4 MiB or more."""
    gathered: list[Span] = []
    size = 0
    for span in spans:
        gathered.append(span)
        size += len(span.data)
        if size >= _BLOCK_BYTES or len(gathered) >= _BLOCK_DOCUMENTS:
            yield SpanBlock.from_spans(gathered)
            gathered, size = [], 0
    if gathered:
        yield SpanBlock.from_spans(gathered)


def find_line_blocks(
    chunks: Iterable[bytes],
    offset: int,
    max_bytes: int,
    stop: int | None = None,
    *,
    starts_inside: bool = False,
    delimiter: bytes = b"",
) -> Iterator[SpanBlock]:
    """Yield the lines that are not blank, without line end and byte order mark, in blocks about as large as the chunks.

    Args:
        chunks: bytes of a file.
        offset: offset of the first chunk in the file.
        max_bytes: maximum number of bytes in a line; a longer one has no data.
        stop: offset from which on no line begins; None takes all.
        starts_inside: whether the bytes up to the first LF belong to a line that began earlier, and are skipped.
        delimiter: delimiter of cells; empty if there are none. A line of only whitespace and delimiters is a row of empty cells.
    """
    # Offset of the line that is to be yielded next.
    line_offset = offset
    remaining = iter(chunks)
    if starts_inside:
        for chunk in remaining:
            # 0 if the chunk has no LF: then all of it is skipped.
            end = chunk.find(b"\n") + 1
            line_offset += end or len(chunk)
            if end:
                remaining = itertools.chain([chunk[end:]], remaining)
                break
    # Pieces of an unfinished line, which are dropped once it is too long.
    pieces: list[bytes] = []
    size = 0
    for chunk in remaining:
        if stop is not None and line_offset >= stop:
            return
        first_end = chunk.find(b"\n")
        if first_end >= 0 and size + first_end > max_bytes:
            # The line that ends first in the chunk is too long, with its earlier pieces.
            yield _make_block_without_data(line_offset, size + first_end)
            line_offset += size + first_end + 1
            chunk, pieces, size = chunk[first_end + 1 :], [], 0
        end = chunk.rfind(b"\n") + 1
        if end:
            data = b"".join([*pieces, chunk[:end]])
            yield from _cut_lines(data, line_offset, max_bytes, stop, delimiter)
            line_offset += len(data)
            pieces, size = [], 0
        size += len(chunk) - end
        if size <= max_bytes:
            pieces.append(chunk[end:])
        else:
            pieces.clear()
    if size > max_bytes and (stop is None or line_offset < stop):
        yield _make_block_without_data(line_offset, size)
    elif size:
        # The last line of the file may lack its LF.
        yield from _cut_lines(b"".join([*pieces, b"\n"]), line_offset, max_bytes, stop, delimiter)


def find_line_blocks_in_range(
    path: str, start: int, stop: int, max_bytes: int, sizes: ReadSizes = READ_SIZES, *, delimiter: bytes = b""
) -> Iterator[SpanBlock]:
    """Yield the lines of a file that begin in the range from byte `start` to before `stop`, as `find_line_blocks` does.

    Args:
        path: path of the file.
        start: first byte of the range.
        stop: byte after the range.
        max_bytes: maximum number of bytes in a line; a longer one has no data.
        sizes: sizes of reads.
        delimiter: delimiter of cells; empty if there are none. A line of only whitespace and delimiters is a row of empty cells.
    """
    # Reading begins one byte earlier, so that a line that begins at `start` follows an LF.
    offset = max(start - 1, 0)
    chunks = read_plain_chunks(path, offset, stop, sizes)
    return find_line_blocks(chunks, offset, max_bytes, stop, starts_inside=start > 0, delimiter=delimiter)


def _make_block_without_data(offset: int, size: int) -> SpanBlock:
    """Return a block of one line, which is too long to have data."""
    return SpanBlock.from_spans([Span(offset, size, b"")])


def _cut_lines(data: bytes, offset: int, max_bytes: int, stop: int | None, delimiter: bytes) -> Iterator[SpanBlock]:
    """Yield one block of the lines in `data` that are not blank; nothing if there are none.

    Args:
        data: whole lines, each with its LF.
        offset: offset of the data in the file.
        max_bytes: maximum number of bytes in a line; longer lines are yielded unchanged: a CR is not removed.
        stop: offset from which on no line begins; None takes all.
        delimiter: delimiter of cells; empty if there are none. A line of only whitespace and delimiters is a row of empty cells.
    """
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets == _LF)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    if stop is not None:
        ends = ends[: int(np.searchsorted(starts, stop - offset))]
        starts = starts[: len(ends)]
    if not len(ends):
        return
    is_long = ends - starts > max_bytes
    if offset == 0 and not is_long[0] and data.startswith(BOM):
        starts[0] = len(BOM)
    # A line that begins with text is not blank; the few others are checked.
    is_kept = is_long | _IS_TEXT[octets[starts]]
    for row in np.flatnonzero(~is_kept).tolist():
        line = data[starts[row] : ends[row]]
        is_kept[row] = bool(line.strip()) or (delimiter != b"" and delimiter in line)
    starts, ends, is_long = starts[is_kept], ends[is_kept], is_long[is_kept]
    sizes = ends - starts
    # Kept lines are not empty, so the byte before the end belongs to the line.
    sizes -= (octets[ends - 1] == _CR) & ~is_long
    if len(starts):
        yield SpanBlock(data, starts, sizes, starts + offset)

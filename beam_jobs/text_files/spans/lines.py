"""Lines and paragraphs of a file, or of a range of it.

A record belongs to the range in which it begins, so for any ranges each record is in exactly one of them, and whole. A range
therefore starts at the first record that begins in it, and reading continues after its end until its last record ends.

A line ends with LF or CRLF, or with the file. Blank lines, of only whitespace, are not records; between them are paragraphs, which
keep their inner line ends. A byte order mark at the start of a file belongs to no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from beam_jobs.compression.streams import READ_SIZES, ReadSizes, read_plain_chunks
from tpudata.storage import storage_for

BOM = b"\xef\xbb\xbf"


class Span(NamedTuple):
    """A run of bytes of a file.

    Attributes:
        offset: offset in the file.
        size: number of bytes.
        data: these bytes; empty if they are more than a limit.
    """

    offset: int
    size: int
    data: bytes

    @property
    def is_blank(self) -> bool:
        """Whether the span is empty or only whitespace."""
        return not self.size or (bool(self.data) and self.data.isspace())


def line_spans(chunks: Iterable[bytes], offset: int, max_bytes: int) -> Iterator[Span]:
    """Yield every line, including blank ones, without LF, but with a CR if it has one.

    Args:
        chunks: bytes of a file.
        offset: offset of the first chunk.
        max_bytes: maximum number of bytes in a line; a longer one has no data.
    """
    # Pieces of an unfinished line, which are dropped once it is too long.
    pieces: list[bytes] = []
    line_offset, size = offset, 0
    for chunk in chunks:
        end_of_line, *later_pieces = chunk.split(b"\n")
        size += len(end_of_line)
        if size <= max_bytes:
            pieces.append(end_of_line)
        else:
            pieces = []
        if not later_pieces:
            continue
        yield Span(line_offset, size, b"".join(pieces))
        line_offset += size + 1
        *whole_lines, start_of_line = later_pieces
        for line in whole_lines:
            yield Span(line_offset, len(line), line if len(line) <= max_bytes else b"")
            line_offset += len(line) + 1
        pieces = [start_of_line] if len(start_of_line) <= max_bytes else []
        size = len(start_of_line)
    if size:
        yield Span(line_offset, size, b"".join(pieces))


def drop_blank_lines(spans: Iterable[Span], stop: int | None = None) -> Iterator[Span]:
    """Yield the lines that are not blank, without line end and byte order mark.

    Args:
        spans: every line, from `line_spans`.
        stop: offset from which on no line begins; None takes all.
    """
    for span in spans:
        if stop is not None and span.offset >= stop:
            return
        # Only the file can begin with a byte order mark.
        line = span if span.offset else strip_bom(span)
        if not line.is_blank:
            yield strip_cr(line)


def join_paragraphs(
    spans: Iterable[Span], max_bytes: int, stop: int | None = None, *, starts_inside: bool = False
) -> Iterator[Span]:
    """Yield the paragraphs, without the end of the last line and without byte order mark.

    Args:
        spans: every line, from `line_spans`.
        max_bytes: maximum number of bytes in a paragraph; a longer one has no data.
        stop: offset from which on no paragraph begins; None takes all.
        starts_inside: whether the lines before the first blank one belong to a paragraph that began earlier.
    """
    lines: list[bytes] = []
    # The first line of a paragraph that is not complete.
    first_line: Span | None = None
    size = 0
    for span in spans:
        if first_line is None and stop is not None and span.offset >= stop:
            return
        # Only the file can begin with a byte order mark.
        line = span if span.offset else strip_bom(span)
        if line.is_blank:
            if first_line is not None:
                yield join_lines(first_line, size, lines)
            first_line, starts_inside = None, False
        # Lines of a paragraph that began earlier are skipped.
        elif first_line is not None or not starts_inside:
            if first_line is None:
                first_line, lines = line, []
            size = line.offset + line.size - first_line.offset
            if size <= max_bytes:
                lines.append(line.data)
            else:
                lines.clear()
    if first_line is not None:
        yield join_lines(first_line, size, lines)


def join_paragraphs_in_range(
    path: str, start: int, stop: int, max_bytes: int, sizes: ReadSizes = READ_SIZES
) -> Iterator[Span]:
    """Yield the paragraphs of a file that begin in the range from byte `start` to before `stop`.

    Args:
        path: path of the uncompressed file.
        start: first byte of the range.
        stop: byte after the range.
        max_bytes: maximum number of bytes in a paragraph; a longer one has no data.
        sizes: sizes of reads, in bytes.
    """
    if start <= len(BOM):
        # Read from the start of the file, so as not to begin inside a byte order mark.
        spans_from_start = line_spans(read_plain_chunks(path, 0, stop, sizes), offset=0, max_bytes=max_bytes)
        for span in join_paragraphs(spans_from_start, max_bytes, stop):
            # The first paragraph begins with the file, before its mark.
            paragraph_start = 0 if span.offset == len(BOM) and has_bom(path) else span.offset
            if paragraph_start >= start:
                yield span
        return
    spans = line_spans(read_plain_chunks(path, start - 1, stop, sizes), start - 1, max_bytes)
    first_line = next(spans, None)
    if first_line is not None:
        # The line with byte `start - 1` is inside a paragraph, unless all of it, including the part before this byte, is blank.
        starts_inside = not (first_line.is_blank and _is_blank_before(path, start - 1, sizes.before))
        yield from join_paragraphs(spans, max_bytes, stop, starts_inside=starts_inside)


def _is_blank_before(path: str, position: int, bytes_per_read: int) -> bool:
    """Return whether only whitespace is between the start of a line and a position in it, a byte offset in the file."""
    storage = storage_for(path)
    while position > 0:
        start = position - bytes_per_read
        # Do not start inside a byte order mark.
        start = start if start > len(BOM) else 0
        data = storage.read_range(path, start, position - start)
        if start == 0:
            data = data.removeprefix(BOM)
        _, line_end, line = data.rpartition(b"\n")
        if line and not line.isspace():
            return False
        if line_end:
            return True
        position = start
    return True


def has_bom(path: str) -> bool:
    """Return whether a file begins with a byte order mark."""
    return storage_for(path).read_range(path, 0, len(BOM)) == BOM


def strip_bom(span: Span) -> Span:
    """Return the first line of a file without a byte order mark."""
    if not span.data.startswith(BOM):
        return span
    return Span(len(BOM), span.size - len(BOM), span.data[len(BOM) :])


def strip_cr(span: Span) -> Span:
    """Return a span without a CR at its end."""
    if not span.data.endswith(b"\r"):
        return span
    return Span(span.offset, span.size - 1, span.data[:-1])


def join_lines(first_line: Span, size: int, lines: list[bytes]) -> Span:
    """Return the span of `size` bytes that begins with `first_line`; `lines` is empty if the span is too large to have data."""
    return strip_cr(Span(first_line.offset, size, b"\n".join(lines)))

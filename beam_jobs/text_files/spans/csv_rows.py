"""Rows of CSV and TSV, for text and for lists of images: their ends and their cells.

The rules are those of RFC 4180, whatever the delimiter: a cell that begins with a double quote ends with one, has each quote inside
it doubled, and may hold delimiters and line ends; a quote inside a cell that does not begin with one is an ordinary character. A
row ends with LF or CRLF; a CR alone is an error outside of quotes. Blank lines are not rows, but a line of tabs is a row of empty
cells if tabs delimit cells. The end of a row depends on all quotes before it, so a file is read from its beginning, not in ranges.

Raw TSV has no quoting: a line is a row, and a tab always ends a cell. It is read in ranges, as lines are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from beam_jobs.text_files.spans.lines import Span, join_lines, strip_bom, strip_cr
from tpudata.errors import SourceError

_BARE_CR = "a CR without LF outside of quotes; save the file with LF or CRLF line ends"
_FIX = "Pass --form if it is not CSV, or a larger --document-bytes."
# The rest of a quoted cell, with its closing quote.
_QUOTED = re.compile(rb'[^"]*(?:""[^"]*)*"(?!")')


class PlacedRow(NamedTuple):
    """A row and its position.

    Attributes:
        span: its bytes, without line end and byte order mark.
        line_count: number of lines up to its end, including blank ones.
        end: offset of the line after it.
    """

    span: Span
    line_count: int
    end: int


def join_rows(spans: Iterable[Span], delimiter: str, max_bytes: int, path: str) -> Iterator[Span]:
    """Yield the rows of CSV without their positions.

    Args:
        spans: every line of the file, from `line_spans`.
        delimiter: delimiter of cells, one ASCII character.
        max_bytes: maximum number of bytes in a row; a longer one has no data.
        path: path of the file, for messages.

    Raises:
        SourceError: a line is longer than `max_bytes`, so it is unknown whether a quote is open after it.
    """
    return (row.span for row in locate_rows(spans, delimiter, max_bytes, path))


def locate_rows(
    spans: Iterable[Span],
    delimiter: str,
    max_bytes: int,
    path: str,
    *,
    is_raw: bool = False,
    fix: str = _FIX,
) -> Iterator[PlacedRow]:
    """Join the lines of CSV to rows, without blank lines. A row is yielded before the line after it is taken from `spans`.

    Args:
        spans: every line of the file, from `line_spans`.
        delimiter: delimiter of cells, one ASCII character.
        max_bytes: maximum number of bytes in a row; a longer one has no data.
        path: path of the file, for messages.
        is_raw: whether quotes are ordinary characters, so that each line is a row.
        fix: sentence that ends the message of a line that is too long.

    Raises:
        SourceError: a line is longer than `max_bytes`, so it is unknown whether a quote is open after it.
    """
    delimiter_bytes = delimiter.encode()
    row_lines: list[bytes] = []
    # The first line of a row that is not complete.
    first_line: Span | None = None
    size = 0
    for number, span in enumerate(spans, 1):
        if span.size > max_bytes:
            raise SourceError(
                f"{path} at byte {span.offset}: a line is too long (got {span.size:,} bytes, expected at most {max_bytes:,})."
                f" {fix}"
            )
        # Only the file can begin with a byte order mark.
        line = span if span.offset else strip_bom(span)
        # Whether a quote is open before the line.
        is_open = first_line is not None
        if first_line is None:
            if line.is_blank and delimiter_bytes not in line.data:
                continue
            if is_raw or b'"' not in line.data:
                yield PlacedRow(strip_cr(line), number, span.offset + span.size + 1)
                continue
            first_line, row_lines = line, []
        size = line.offset + line.size - first_line.offset
        if size > max_bytes:
            row_lines.clear()
        else:
            row_lines.append(line.data)
        if not _ends_open(line.data, delimiter_bytes, is_open):
            yield PlacedRow(join_lines(first_line, size, row_lines), number, span.offset + span.size + 1)
            first_line = None
    if first_line is not None:
        # A quote is still open at the end of the file.
        yield PlacedRow(join_lines(first_line, size, row_lines), number, span.offset + span.size + 1)


def find_columns(
    delimiters: Iterable[str],
    read_columns: Callable[[str], tuple[str, ...]],
    accepts_columns: Callable[[Sequence[str]], bool],
) -> tuple[str, tuple[str, ...]]:
    """Return the first delimiter that gives columns which `accepts_columns` accepts, and these columns.

    Args:
        delimiters: delimiters to try, in order.
        read_columns: returns the columns of a file's first row, divided by a delimiter.
        accepts_columns: returns whether columns can be the columns of the file.

    Returns:
        (delimiter, columns); if no delimiter gives accepted columns, an empty string and the first columns that are not empty.

    Raises:
        SourceError: no delimiter gives accepted columns, and `read_columns` raised this for one of them.
    """
    first_columns: tuple[str, ...] = ()
    first_error: SourceError | None = None
    for delimiter in delimiters:
        try:
            columns = read_columns(delimiter)
        except SourceError as error:
            # The quotes of the row may be valid with the next delimiter.
            first_error = first_error or error
            continue
        if accepts_columns(columns):
            return delimiter, columns
        first_columns = first_columns or columns
    if first_error is not None:
        raise first_error
    return "", first_columns


def split_cells(row: str, delimiter: str, *, is_raw: bool = False) -> list[str]:
    """Return the cells of a row of CSV.

    Args:
        row: the row, without its end.
        delimiter: character between two cells.
        is_raw: whether quotes are ordinary characters.

    Raises:
        ValueError: a quote is not closed, a closing quote is not followed by a delimiter, or a CR stands outside of quotes.
    """
    if is_raw:
        return row.split(delimiter)
    if '"' not in row:
        if "\r" in row:
            raise ValueError(_BARE_CR)
        return row.split(delimiter)
    cells = []
    position = 0
    while True:
        if row.startswith('"', position):
            end = _find_closing_quote(row, position + 1)
            cells.append(row[position + 1 : end].replace('""', '"'))
            position = end + 1
            if position < len(row) and row[position] != delimiter:
                raise ValueError(f"{row[position]!r} after the closing quote of cell {len(cells)}")
        else:
            end = row.find(delimiter, position)
            end = len(row) if end < 0 else end
            if row.find("\r", position, end) >= 0:
                raise ValueError(_BARE_CR)
            cells.append(row[position:end])
            position = end
        if position >= len(row):
            return cells
        # Skip the delimiter.
        position += 1


def has_text(row: bytes, delimiter: str) -> bool:
    """Return whether a row of CSV has a cell with text."""
    return bool(row.strip(b'" \t\r\n' + delimiter.encode()))


def _find_closing_quote(row: str, position: int) -> int:
    """Return the position of the quote that closes a cell whose content begins at `position`; ValueError if there is none."""
    while True:
        end = row.find('"', position)
        if end < 0:
            raise ValueError("a quote is not closed")
        if not row.startswith('""', end):
            return end
        position = end + 2


def _ends_open(line: bytes, delimiter: bytes, is_open: bool) -> bool:
    """Return whether a line ends inside quotes; `is_open` is whether it begins inside quotes."""
    if b'"' not in line:
        return is_open
    position = 0
    while True:
        if not is_open:
            if line.startswith(b'"', position):
                position += 1
            else:
                # The start of the next cell; 0 if this cell, which is not quoted, is the last one.
                position = line.find(delimiter, position) + 1
                if not position:
                    return False
                continue
        quoted = _QUOTED.match(line, position)
        if quoted is None:
            return True
        is_open = False
        position = line.find(delimiter, quoted.end()) + 1
        if not position:
            return False

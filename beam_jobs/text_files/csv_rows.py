"""Rows of CSV and TSV: their ends and their cells.

CSV follows RFC 4180: a cell that begins with a double quote ends with one, has each quote inside it doubled, and may hold
delimiters and line ends; a quote inside a cell that does not begin with one is an ordinary character. The end of a row depends
on all quotes before it, so a CSV file is read from its beginning, not in ranges.

TSV has no quoting: a line is a row, and a tab always ends a cell. It is read in ranges, as lines are; a line of only tabs and
spaces is blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from beam_jobs.text_files.lines import BOM, Span
from tpudata.errors import SourceError

_QUOTED = re.compile(rb'[^"]*(?:""[^"]*)*"(?!")')


def row_spans(spans: Iterable[Span], delimiter: str, limit: int, path: str) -> Iterator[Span]:
    """Join the lines of CSV to rows, blank ones omitted, without line end and byte order mark.

    Args:
        spans: every line of the file, from `line_spans`.
        delimiter: delimiter of cells, one ASCII character.
        limit: bytes of the longest row; longer ones have no data.
        path: path of the file, for messages.

    Raises:
        SourceError: a line is longer than `limit`, so it is unknown which quotes are open after it.
    """
    cut = delimiter.encode()
    held: list[bytes] = []
    begin: Span | None = None
    size = 0
    for span in spans:
        if span.size > limit:
            raise SourceError(
                f"{path} at byte {span.offset}: a line is too long (got {span.size:,} bytes, expected at most {limit:,}). Pass"
                " --form if it is not CSV, or a larger --document-bytes."
            )
        line = span
        if not span.offset and span.data.startswith(BOM):
            line = Span(len(BOM), span.size - len(BOM), span.data[len(BOM) :])
        is_open = begin is not None
        if begin is None:
            if line.is_blank:
                continue
            begin, held = line, []
        size = line.offset + line.size - begin.offset
        if size > limit:
            held.clear()
        else:
            held.append(line.data)
        if not _ends_open(line.data, cut, is_open):
            yield _row(begin, size, held)
            begin = None
    if begin is not None:
        yield _row(begin, size, held)


def cells(row: str, delimiter: str) -> list[str]:
    """Return the cells of a row of CSV.

    Raises:
        ValueError: a quote is not closed, or a closing quote is not followed by a delimiter.
    """
    if '"' not in row:
        return row.split(delimiter)
    found = []
    position = 0
    while True:
        if row.startswith('"', position):
            end = _closing(row, position + 1)
            found.append(row[position + 1 : end].replace('""', '"'))
            position = end + 1
            if position < len(row) and row[position] != delimiter:
                raise ValueError(f"{row[position]!r} after the closing quote of cell {len(found)}")
        else:
            end = row.find(delimiter, position)
            end = len(row) if end < 0 else end
            found.append(row[position:end])
            position = end
        if position >= len(row):
            return found
        position += 1


def _closing(row: str, position: int) -> int:
    """Return the position of the quote that closes a cell whose content begins at a position."""
    while True:
        end = row.find('"', position)
        if end < 0:
            raise ValueError("a quote is not closed")
        if not row.startswith('""', end):
            return end
        position = end + 2


def _ends_open(line: bytes, delimiter: bytes, is_open: bool) -> bool:
    """Return whether a line ends inside quotes, given whether it begins inside."""
    if b'"' not in line:
        return is_open
    position = 0
    while True:
        if not is_open:
            if line.startswith(b'"', position):
                position += 1
            else:
                position = line.find(delimiter, position) + 1
                if not position:
                    return False
                continue
        closed = _QUOTED.match(line, position)
        if closed is None:
            return True
        is_open = False
        position = line.find(delimiter, closed.end()) + 1
        if not position:
            return False


def _row(begin: Span, size: int, held: list[bytes]) -> Span:
    data = b"\n".join(held)
    return Span(begin.offset, size - 1, data[:-1]) if data.endswith(b"\r") else Span(begin.offset, size, data)

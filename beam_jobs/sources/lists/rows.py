"""The rows of CSV and JSONL lists, with the line and the byte at which each ends.

A list is read twice: once from start to end where the job begins, which finds the kinds of its columns and cuts it into blocks, and
once block by block on the workers. Cuts are made where a row ended, so a block never begins inside quotes, whatever they hold.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from beam_jobs.values.json_values import parse_json
from tpudata.console.tables import counted
from tpudata.errors import SourceError

_BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
DELIMITERS = (",", "\t", ";")


class Row(NamedTuple):
    """One row of a list.

    Attributes:
        line: number of its last line in the file, counted from 1.
        end: byte offset in the file after it.
        values: by column: strings in a CSV list, JSON values in a JSONL list.
    """

    line: int
    end: int
    values: Mapping[str, Any]


class _Lines:
    """Decodes lines and counts them and their bytes, so that what reads them can be asked where it stands."""

    def __init__(self, lines: Iterable[bytes], path: str, offset: int, line: int) -> None:
        self._lines = iter(lines)
        self._path = path
        self.offset = offset
        self.line = line

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        data = next(self._lines)
        self.offset += len(data)
        self.line += 1
        if self.line == 1:
            data = data.removeprefix(_BOM)
            if data.startswith(UTF16_BOMS):
                self.refuse("it is UTF-16; save it as UTF-8")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.refuse(f"byte {error.start} of the line is not UTF-8; save the list as UTF-8")

    def refuse(self, reason: str) -> NoReturn:
        raise SourceError(f"{self._path} line {self.line}: {reason}.")


def csv_header(lines: Iterable[bytes], path: str, delimiter: str) -> tuple[tuple[str, ...], Row]:
    """Return the columns of a CSV list, and where its first row ends."""
    reader = _Lines(lines, path, 0, 0)
    cells = next(_csv_cells(reader, delimiter), [])
    return tuple(cell.strip() for cell in cells), Row(reader.line, reader.offset, {})


def csv_rows(
    lines: Iterable[bytes], path: str, columns: Sequence[str], delimiter: str, *, offset: int, line: int
) -> Iterator[Row]:
    """Yield the rows of a CSV list, without blank lines.

    Args:
        lines: with their ends, from the end of some row on.
        path: names the list in messages.
        columns: its columns.
        delimiter: between two cells.
        offset: of the first line in the file.
        line: how many lines are before it.

    Raises:
        SourceError: a row has more or fewer cells than columns, or its quotes are not closed; names file and line.
    """
    reader = _Lines(lines, path, offset, line)
    for cells in _csv_cells(reader, delimiter):
        if len(cells) != len(columns):
            if not cells:
                continue
            reader.refuse(
                f"{counted(len(cells), 'cell')}, where the first row names {counted(len(columns), 'column')} ({', '.join(columns)})"
            )
        yield Row(reader.line, reader.offset, dict(zip(columns, cells, strict=True)))


def json_rows(lines: Iterable[bytes], path: str, *, offset: int, line: int) -> Iterator[Row]:
    """Yield the rows of a JSONL list, without blank lines; SourceError if a line is no JSON object."""
    reader = _Lines(lines, path, offset, line)
    for text in reader:
        if not text.strip():
            continue
        try:
            value = parse_json(text)
        except ValueError as error:
            reader.refuse(f"not JSON: {error}")
        if not isinstance(value, dict):
            reader.refuse(
                f'a JSON {type(value).__name__}; each line is an object, such as {{"path": ..., "label": ...}}'
            )
        yield Row(reader.line, reader.offset, value)


def _csv_cells(reader: _Lines, delimiter: str) -> Iterator[list[str]]:
    # The csv module takes whole lines and not one more than it needs, so the reader stands after the row that was just returned.
    # `strict` makes an open quote at the end an error, where else the rest of the list would become one cell.
    rows = csv.reader(reader, delimiter=delimiter, strict=True)
    try:
        yield from rows
    except csv.Error as error:
        reader.refuse(f"not CSV: {error}; are the quotes right?")

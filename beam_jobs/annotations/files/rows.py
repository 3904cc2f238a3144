"""Lines and tables of annotation files: UTF-8, plain or compressed, read from start to end."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from beam_jobs.annotations.annotation import Place
from beam_jobs.compression.files import open_decompressed, read_compression
from beam_jobs.file_kinds import UTF16_BOMS
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, SourceError
from tpudata.storage import storage_for

# Without this limit, a file of other line ends, or without any, would be read to memory as one line.
MAX_LINE_BYTES = 1 << 26
_BOM = "\ufeff"


class Line(NamedTuple):
    """One line that is not blank.

    Attributes:
        place: place of the line.
        text: the line, without its end and without space around it.
    """

    place: Place
    text: str


class TableRow(NamedTuple):
    """One row of a table.

    Attributes:
        place: place of the row.
        cells: content of its cells, by column.
    """

    place: Place
    cells: dict[str, str]

    def read_number(self, column: str) -> float:
        """Return the number in a cell; ValueError if it has none."""
        return parse_number(self.cells[column], column)


@contextlib.contextmanager
def open_annotations(path: str) -> Iterator[BinaryIO]:
    """Open an annotation file to be read from start to end, decompressed if it is compressed."""
    compression = read_compression(path)
    if compression:
        with open_decompressed(path, compression) as file:
            yield file
    else:
        with storage_for(path).open(path) as file:
            yield file


def decode_lines(path: str) -> Iterator[str]:
    """Yield the lines of a file with their ends, without byte order mark.

    Raises:
        SourceError: the file is UTF-16, or a line, which the message names, is not UTF-8 or is longer than 64 MiB.
        CorruptionError: the file is compressed, and truncated or damaged.
    """
    with open_annotations(path) as file:
        line_number = 0
        # One byte more than allowed shows a line that is too long.
        while line := file.readline(MAX_LINE_BYTES + 1):
            line_number += 1
            if len(line) > MAX_LINE_BYTES:
                raise SourceError(
                    f"{path} line {line_number}: too long (expected at most {MAX_LINE_BYTES:,} bytes). Check its line ends."
                )
            if line_number == 1 and line.startswith(UTF16_BOMS):
                raise SourceError(f"{path}: it is UTF-16. Save it as UTF-8.")
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{path} line {line_number}: byte {error.start} of the line is not UTF-8. Save the file as UTF-8."
                ) from None
            yield text.removeprefix(_BOM) if line_number == 1 else text


def read_text_lines(path: str) -> Iterator[Line]:
    """Yield the lines of a file that are not blank; raise what `decode_lines` raises."""
    for line_number, text in enumerate(decode_lines(path), 1):
        if stripped := text.strip():
            yield Line(Place(path, line_number), stripped)


def read_table_cells(path: str, delimiter: str = ",", *, has_quotes: bool = True) -> Iterator[tuple[Place, list[str]]]:
    """Yield the cells of each row of a table, without space around them; rows of empty cells are skipped.

    Args:
        path: path of the table.
        delimiter: the character between two cells.
        has_quotes: whether cells may be quoted as in CSV; otherwise quotes are ordinary characters.

    Raises:
        SourceError: the file is UTF-16 or not CSV, or a line is not UTF-8 or is longer than 64 MiB.
        CorruptionError: the file is compressed, and truncated or damaged.
    """
    lines = decode_lines(path)
    if has_quotes:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                yield Place(path, reader.line_num), stripped
    except csv.Error as error:
        raise SourceError(f"{path} line {reader.line_num}: not CSV: {error}. Check its quotes.") from None


def read_table_rows(path: str, delimiter: str = ",", *, has_quotes: bool = True) -> Iterator[TableRow | BadRecordError]:
    """Yield each row of a table whose first row names the columns, or an error for a row with more or fewer cells than columns.

    Args:
        path: path of the table.
        delimiter: the character between two cells.
        has_quotes: whether cells may be quoted as in CSV; otherwise quotes are ordinary characters.

    Raises:
        SourceError: the file is UTF-16 or not CSV, a line is not UTF-8 or is longer than 64 MiB, or two columns have the same name.
        CorruptionError: the file is compressed, and truncated or damaged.
    """
    columns: list[str] | None = None
    for place, cells in read_table_cells(path, delimiter, has_quotes=has_quotes):
        if columns is None:
            columns = cells
            repeated_names = sorted({name for name in columns if columns.count(name) > 1})
            if repeated_names:
                raise SourceError(
                    f"{path} line {place.line}: the column {repeated_names[0]!r} comes twice. Rename one."
                )
        elif len(cells) != len(columns):
            yield place.make_error(f"{count_text(len(cells), 'cell')} (expected {len(columns)}: {', '.join(columns)})")
        else:
            yield TableRow(place, dict(zip(columns, cells, strict=True)))


def parse_table_columns(head: bytes, delimiter: str = ",") -> tuple[str, ...]:
    """Return the names of a table's columns from its first bytes; an empty tuple if its first line is not CSV."""
    text = head.decode("utf-8", "replace").removeprefix(_BOM).lstrip()
    first_line = text.partition("\n")[0]
    try:
        return tuple(cell.strip() for cell in next(csv.reader([first_line], delimiter=delimiter), ()))
    except csv.Error:
        return ()


def parse_number(text: str, name: str) -> float:
    """Return the number in a string; ValueError with `name` in its message if the string is not a number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is not a number: {text[:80]!r}") from None

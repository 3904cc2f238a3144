"""The rows of CSV and JSONL lists and of JSON arrays, with the line and the byte at which each ends.

A list is read twice: once from start to end by one worker, which finds the kinds of its columns and cuts it into blocks, and once
block by block. Cuts are made where a row ended, so a block never begins inside quotes, whatever they hold.
"""

from __future__ import annotations

import collections
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from beam_jobs.text_files.csv_rows import cells as csv_cells
from beam_jobs.text_files.csv_rows import placed_rows
from beam_jobs.text_files.json_arrays import array_spans
from beam_jobs.text_files.lines import line_spans
from beam_jobs.values.json_values import parse_json
from tpudata.console.tables import counted
from tpudata.errors import SourceError

_BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
DELIMITERS = (",", "\t", ";")
_MOST_ROW_BYTES = 1 << 26


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
    """Decodes lines and counts them and their bytes."""

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
                self.reject("it is UTF-16; save it as UTF-8")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.reject(f"byte {error.start} of the line is not UTF-8; save the list as UTF-8")

    def reject(self, reason: str) -> NoReturn:
        raise SourceError(f"{self._path} line {self.line}: {reason}.")


def csv_header(
    lines: Iterable[bytes], path: str, delimiter: str, *, is_raw: bool = False
) -> tuple[tuple[str, ...], Row]:
    """Return the columns of a CSV list, and where its first row ends; see `csv_rows`."""
    for cells, row in _csv_cells(lines, path, delimiter, 0, 0, is_raw=is_raw):
        return tuple(cell.strip() for cell in cells), row
    return (), Row(0, 0, {})


def csv_rows(
    lines: Iterable[bytes],
    path: str,
    columns: Sequence[str],
    delimiter: str,
    *,
    offset: int,
    line: int,
    is_raw: bool = False,
) -> Iterator[Row]:
    """Yield the rows of a CSV list, without blank lines.

    Args:
        lines: bytes from the end of some row on, in pieces of any size.
        path: names the list in messages.
        columns: its columns.
        delimiter: between two cells.
        offset: of the first line in the file.
        line: how many lines are before it.
        is_raw: whether quotes are ordinary characters.

    Raises:
        SourceError: a row has more or fewer cells than columns, or is not CSV; names file and line.
    """
    for cells, row in _csv_cells(lines, path, delimiter, offset, line, is_raw=is_raw):
        if len(cells) != len(columns):
            raise SourceError(
                f"{path} line {row.line}: {counted(len(cells), 'cell')} (expected {counted(len(columns), 'column')} as in the first"
                f" row: {', '.join(columns)}). Fix the row, or quote cells that contain the delimiter."
            )
        yield row._replace(values=dict(zip(columns, cells, strict=True)))


def json_rows(lines: Iterable[bytes], path: str, *, offset: int, line: int) -> Iterator[Row]:
    """Yield the rows of a JSONL list, without blank lines; SourceError if a line is not a JSON object."""
    reader = _Lines(lines, path, offset, line)
    for text in reader:
        if not text.strip():
            continue
        try:
            value = parse_json(text)
        except ValueError as error:
            reader.reject(f"not JSON: {error}. Fix the line")
        if not isinstance(value, dict):
            reader.reject(
                f'a JSON {type(value).__name__}; each line is an object, such as {{"path": ..., "label": ...}}'
            )
        yield Row(reader.line, reader.offset, value)


def array_rows(pieces: Iterable[bytes], path: str, *, offset: int, line: int) -> Iterator[Row]:
    """Yield the rows of a JSON array of objects.

    Args:
        pieces: bytes of a whole array: lines with their ends, or parts of lines.
        path: names the list in messages.
        offset: of the first piece in the file.
        line: number of the line before the first one.

    Raises:
        SourceError: an element is not a JSON object, or the array has no end; names file and line, or byte.
    """
    # Ends of lines after the last element: an element is known to end only at the comma or bracket after it.
    line_ends: collections.deque[int] = collections.deque()

    def noted_pieces() -> Iterator[bytes]:
        place = offset
        for data in pieces:
            place += len(data)
            if data.endswith(b"\n"):
                line_ends.append(place)
            yield data

    line += 1
    for span in array_spans(noted_pieces(), _MOST_ROW_BYTES, path):
        end = offset + span.offset + span.size
        while line_ends and line_ends[0] <= end:
            line_ends.popleft()
            line += 1
        where = f"{path} line {line}"
        if not span.data:
            raise SourceError(
                f"{where}: an element of {span.size:,} bytes (expected at most {_MOST_ROW_BYTES:,}). Shorten it."
            )
        try:
            value = parse_json(span.data.decode())
        except ValueError as error:
            raise SourceError(f"{where}: not JSON: {error}. Fix the element.") from None
        if not isinstance(value, dict):
            raise SourceError(
                f'{where}: a JSON {type(value).__name__}; each element is an object, such as {{"path": ..., "label": ...}}.'
            )
        yield Row(line, end, value)


def block_array_rows(data: bytes, path: str, *, offset: int, line: int) -> Iterator[Row]:
    """Yield the rows in a block of a JSON array.

    Args:
        data: from the beginning of the file, or the end of an element, to the end of another one.
        path: names the list in messages.
        offset: of the block in the file.
        line: number of the line in which it begins, or 0 for the first block.
    """
    if offset:
        # The comma before the first element becomes the bracket that an array begins with.
        comma = data.index(b",")
        data = data[:comma] + b"[" + data[comma + 1 :]
    yield from array_rows(io.BytesIO(data + b"]"), path, offset=offset, line=max(0, line - 1))


def _csv_cells(
    lines: Iterable[bytes], path: str, delimiter: str, offset: int, line: int, *, is_raw: bool
) -> Iterator[tuple[list[str], Row]]:
    """Yield the cells of each row, and the row without values."""
    read = _CountedBytes(lines, offset)
    spans = line_spans(read, offset, _MOST_ROW_BYTES)
    for placed in placed_rows(spans, delimiter, _MOST_ROW_BYTES, path, is_raw=is_raw, fix="Check its line ends."):
        number, span = line + placed.lines, placed.span
        where = f"{path} line {number}"
        if not span.data:
            raise SourceError(
                f"{where}: a row of {span.size:,} bytes (expected at most {_MOST_ROW_BYTES:,}). Shorten it, or close its quotes."
            )
        if number == 1 and span.data.startswith(UTF16_BOMS):
            raise SourceError(f"{where}: it is UTF-16; save it as UTF-8.")
        try:
            text = span.data.decode()
            cells = text.split(delimiter) if is_raw else csv_cells(text, delimiter)
        except UnicodeDecodeError as error:
            raise SourceError(f"{where}: byte {error.start} of the row is not UTF-8; save the list as UTF-8.") from None
        except ValueError as error:
            hint = ", or pass --raw-tsv if they are ordinary characters" if delimiter == "\t" else ""
            raise SourceError(f"{where}: not CSV: {error}. Check the quotes{hint}.") from None
        # A last line may have no end.
        yield cells, Row(number, min(placed.end, read.offset), {})


class _CountedBytes:
    """Pieces of a file whose bytes are counted as they are taken."""

    def __init__(self, lines: Iterable[bytes], offset: int) -> None:
        self._lines = iter(lines)
        self.offset = offset

    def __iter__(self) -> _CountedBytes:
        return self

    def __next__(self) -> bytes:
        line = next(self._lines)
        self.offset += len(line)
        return line

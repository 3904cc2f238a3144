"""The rows of JSONL lists and of JSON arrays, with the line and the byte at which each ends; csv_lists.py reads rows of CSV.

A list is read twice: once from start to end by one worker, which finds the kinds of its columns and divides it into blocks, and
once block by block. Blocks end where rows end, so no block begins inside quotes.
"""

from __future__ import annotations

import collections
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from beam_jobs.file_kinds import UTF16_BOMS
from beam_jobs.text_files.spans.json_arrays import array_spans
from beam_jobs.text_files.spans.lines import BOM
from tpudata.errors import SourceError
from tpudata.json_values import parse_input_json

MAX_ROW_BYTES = 1 << 26


class ListRow(NamedTuple):
    """One row of a list.

    Attributes:
        line: number of its last line in the file, counted from 1.
        end: byte offset in the file after it.
        values: by column: strings in a CSV list, JSON values in a JSONL list.
    """

    line: int
    end: int
    values: Mapping[str, Any]


class _LineDecoder:
    """Iterator over decoded lines that counts lines and bytes.

    Attributes:
        offset: offset in the file after the last line returned.
        line: number of that line in the file, counted from 1.
    """

    def __init__(self, lines: Iterable[bytes], path: str, offset: int, lines_before: int) -> None:
        self._lines = iter(lines)
        self._path = path
        self.offset = offset
        self.line = lines_before

    def __iter__(self) -> _LineDecoder:
        return self

    def __next__(self) -> str:
        """Return the next line; SourceError if it is not UTF-8."""
        data = next(self._lines)
        self.offset += len(data)
        self.line += 1
        # Only the first line of the file has a byte order mark.
        if self.line == 1:
            data = data.removeprefix(BOM)
            if data.startswith(UTF16_BOMS):
                self.reject("it is UTF-16; save it as UTF-8")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.reject(f"byte {error.start} of the line is not UTF-8; save the list as UTF-8")

    def reject(self, reason: str) -> NoReturn:
        """Raise SourceError for the last line returned or read."""
        raise SourceError(f"{self._path} line {self.line}: {reason}.")


def read_json_rows(lines: Iterable[bytes], path: str, *, offset: int, lines_before: int) -> Iterator[ListRow]:
    """Yield the rows of a JSONL list, omitting blank lines; SourceError if a line is not a JSON object.

    Args:
        lines: lines of the list, with their line ends.
        path: path of the list, for messages.
        offset: offset of the first of these lines in the file.
        lines_before: number of lines before the first of these lines.
    """
    reader = _LineDecoder(lines, path, offset, lines_before)
    for text in reader:
        if not text.strip():
            continue
        try:
            value = parse_input_json(text)
        except ValueError as error:
            reader.reject(f"not JSON: {error}. Fix the line")
        if not isinstance(value, dict):
            reader.reject(
                f'a JSON {type(value).__name__}; each line is an object, such as {{"path": ..., "label": ...}}'
            )
        yield ListRow(reader.line, reader.offset, value)


def read_array_rows(pieces: Iterable[bytes], path: str, *, offset: int, lines_before: int) -> Iterator[ListRow]:
    """Yield the rows of a JSON array of objects.

    Args:
        pieces: bytes of a whole array: lines with their line ends, or parts of lines.
        path: path of the list, for messages.
        offset: offset of the first piece in the file.
        lines_before: number of lines before the first piece.

    Raises:
        SourceError: an element is too large or not a JSON object, or the array has no end; the message names file and line or byte.
    """
    # Ends of the lines read since the last element. `array_spans` reads past an element, to the comma or bracket after it, so some
    # of these ends may lie after the element.
    line_ends: collections.deque[int] = collections.deque()

    def record_line_ends() -> Iterator[bytes]:
        """Yield the pieces, and add the offset in the file after each line end to `line_ends`."""
        position = offset
        for data in pieces:
            position += len(data)
            if data.endswith(b"\n"):
                line_ends.append(position)
            yield data

    line_number = lines_before + 1
    for span in array_spans(record_line_ends(), MAX_ROW_BYTES, path):
        end = offset + span.offset + span.size
        while line_ends and line_ends[0] <= end:
            line_ends.popleft()
            line_number += 1
        row_origin = f"{path} line {line_number}"
        if not span.data:
            raise SourceError(
                f"{row_origin}: an element of {span.size:,} bytes (expected at most {MAX_ROW_BYTES:,}). Shorten it."
            )
        try:
            element = parse_input_json(span.data.decode())
        except ValueError as error:
            raise SourceError(f"{row_origin}: not JSON: {error}. Fix the element.") from None
        if not isinstance(element, dict):
            raise SourceError(
                f'{row_origin}: a JSON {type(element).__name__}; each element is an object, such as {{"path": ..., "label": ...}}.'
            )
        yield ListRow(line_number, end, element)


def read_block_array_rows(data: bytes, path: str, *, offset: int, first_line: int) -> Iterator[ListRow]:
    """Yield the rows in a block of a JSON array.

    Args:
        data: bytes from the beginning of the file, or the end of an element, to the end of another element.
        path: path of the list, for messages.
        offset: offset of the block in the file.
        first_line: number of the line in which the block begins; 0 for the first block.
    """
    if offset:
        # The comma before the first element becomes the bracket that an array begins with.
        comma = data.index(b",")
        data = data[:comma] + b"[" + data[comma + 1 :]
    # A block ends with an element, so the bracket that ends an array is added. `read_array_rows` takes the number of lines before
    # the block, and counts the block's first line again.
    yield from read_array_rows(io.BytesIO(data + b"]"), path, offset=offset, lines_before=max(0, first_line - 1))

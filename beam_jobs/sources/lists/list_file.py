"""A list, and rules for reading its rows: CSV, JSONL, or one JSON array."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from beam_jobs.sources.lists.csv_lists import DELIMITERS, CsvForm, read_csv_header, read_csv_rows
from beam_jobs.sources.lists.roles import Roles, is_path_column
from beam_jobs.sources.lists.rows import ListRow, read_array_rows, read_block_array_rows, read_json_rows
from beam_jobs.sources.options import SourceOptions
from beam_jobs.text_files.spans.csv_rows import find_columns
from beam_jobs.text_files.spans.lines import BOM
from tpudata.errors import SourceError
from tpudata.storage import storage_for

# The first line of a JSON array of objects: a bracket, then a brace, the bracket that ends the array, or nothing.
_ARRAY = re.compile(rb"\[\s*(\{|\]\s*\Z|\Z)")
# Size of pieces of CSV and of a JSON array, which is often one long line. Pieces of 64 KiB would take a third longer: the garbage
# collector visits all their rows.
PIECE_BYTES = 1 << 14
# Bytes of a first line that show the form of a list.
_HEAD_BYTES = 1 << 16
_FIX = "Add a row, or remove the file from --input."


class ListFile(NamedTuple):
    """A list, and rules for reading its rows.

    Attributes:
        path: the file.
        columns: columns of a CSV list; empty for JSONL and a JSON array.
        delimiter: character between two cells of a CSV list; otherwise empty.
        is_array: whether the file is a single JSON array.
    """

    path: str
    columns: tuple[str, ...]
    delimiter: str
    is_array: bool = False

    @property
    def is_raw(self) -> bool:
        """Whether quotes are ordinary characters; True only in the subclass `RawListFile`."""
        return False

    @property
    def has_types(self) -> bool:
        """Whether values have types, as in JSON; the cells of a CSV list, which has columns, are strings."""
        return not self.columns

    @property
    def _csv_form(self) -> CsvForm:
        return CsvForm(self.path, self.delimiter, self.is_raw)

    @contextlib.contextmanager
    def open(self, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[ListRow, Iterator[ListRow]]]:
        """Open the list.

        Args:
            piece_bytes: size of the pieces in which CSV and JSON arrays are read.

        Yields:
            (row that names the columns, without values; for JSON a row that ends at 0), (rows after it).
        """
        with storage_for(self.path).open(self.path) as file:
            # JSONL: the lines of the file.
            pieces: Iterable[bytes] = file
            header = ListRow(line=0, end=0, values={})
            if self.columns:
                # The header takes whole lines of the file, so the pieces begin with a line.
                _, header = read_csv_header(file, self._csv_form)
                pieces = _read_pieces(file.read, piece_bytes)
            elif self.is_array:
                # `read_array_rows` takes lines or parts of lines.
                pieces = _read_pieces(file.readline, piece_bytes)
            yield header, self.read_rows(pieces, header.end, header.line)

    def read_rows(self, pieces: Iterable[bytes], offset: int, lines_before: int) -> Iterator[ListRow]:
        """Yield the rows in pieces of the file.

        Args:
            pieces: bytes from the end of a row on: lines for JSONL, lines or parts of lines for a JSON array, any for CSV.
            offset: offset of the first piece in the file.
            lines_before: number of lines before the first piece.
        """
        if self.is_array:
            return read_array_rows(pieces, self.path, offset=offset, lines_before=lines_before)
        if self.columns:
            return read_csv_rows(pieces, self._csv_form, self.columns, offset=offset, lines_before=lines_before)
        return read_json_rows(pieces, self.path, offset=offset, lines_before=lines_before)

    def read_block(self, data: bytes, offset: int, line: int) -> Iterator[ListRow]:
        """Yield the rows in a block.

        Args:
            data: bytes of the block.
            offset: offset of the block in the file: `ListBlock.start`.
            line: see `ListBlock.line`.
        """
        # A block of an array begins in this line; other blocks begin after it.
        if self.is_array:
            return read_block_array_rows(data, self.path, offset=offset, first_line=line)
        file = io.BytesIO(data)
        return self.read_rows(_read_pieces(file.read) if self.columns else file, offset, line)


def _read_pieces(read: Callable[[int], bytes], size: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield what `read(size)` returns, until it returns nothing at the end of the file."""
    return iter(functools.partial(read, size), b"")


class RawListFile(ListFile):
    """A list separated by tabs whose quotes are ordinary characters.

    It is a class because a field of ListFile would change its `repr`, by which files of rejects are named.
    """

    __slots__ = ()

    @property
    def is_raw(self) -> bool:
        """Whether quotes are ordinary characters."""
        return True


class ListBlock(NamedTuple):
    """Whole rows of a list.

    Attributes:
        file: the list.
        start, end: byte range of the file.
        line: number of the last line of the row before it, 0 if there is none. A block of a JSON array may begin in this line.
    """

    file: ListFile
    start: int
    end: int
    line: int

    def __repr__(self) -> str:
        """Return a string that must not change: names of files in rejects/ are hashes of it."""
        return f"Block(file={self.file!r}, start={self.start!r}, end={self.end!r}, line={self.line!r})"


def detect_list(path: str, options: SourceOptions) -> ListFile:
    """Detect the format of a list by its first character: a brace for JSONL, a bracket for a JSON array, otherwise CSV.

    The delimiter of CSV is the one with which a column of paths is found.

    Raises:
        SourceError: the file is empty, or CSV without a column of paths, or with unnamed or repeated columns.
        UsageError: an option names a column that is missing.
    """
    storage = storage_for(path)
    with storage.open(path) as file:
        head = file.readline(_HEAD_BYTES).removeprefix(BOM).lstrip()
        # Skip blank lines.
        while head == b"" and (line := file.readline(_HEAD_BYTES)):
            head = line.lstrip()
    if not head:
        raise SourceError(f"{path} is empty, or all its lines are blank. {_FIX}")
    if _ARRAY.match(head):
        return ListFile(path, columns=(), delimiter="", is_array=True)
    if head.startswith(b"{"):
        return ListFile(path, columns=(), delimiter="")

    def is_raw(delimiter: str) -> bool:
        return options.raw_tsv and delimiter == "\t"

    def read_header(delimiter: str) -> tuple[str, ...]:
        """Return the columns of the first row of the list, divided by a delimiter."""
        with storage.open(path) as lines:
            columns, _ = read_csv_header(lines, CsvForm(path, delimiter, is_raw(delimiter)))
            return columns

    delimiter, columns = find_columns(
        DELIMITERS, read_header, lambda columns: any(is_path_column(name, options) for name in columns)
    )
    if not delimiter:
        # No delimiter gives a column of paths. This raises the error that names the columns.
        Roles.infer(columns, options, path)
    repeated_names = sorted({name for name in columns if columns.count(name) > 1 or not name})
    if repeated_names:
        raise SourceError(
            f"{path} line 1: column {repeated_names[0]!r} comes twice or has no name. Give each column its own."
        )
    list_class = RawListFile if is_raw(delimiter) else ListFile
    return list_class(path, columns, delimiter)


def read_columns(file: ListFile) -> tuple[str, ...]:
    """Return the names of a list's columns; for JSON, the keys of its first row.

    Raises:
        SourceError: a JSON list has no rows.
    """
    if file.columns:
        return file.columns
    with file.open() as (_, rows):
        row = next(rows, None)
    if row is None:
        raise SourceError(f"{file.path} has no rows. {_FIX}")
    return tuple(row.values)

"""One list, and how its rows are read: CSV, JSONL, or one JSON array."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from beam_jobs.sources.lists.csv_lists import DELIMITERS, CsvForm, csv_header, csv_rows
from beam_jobs.sources.lists.roles import Roles, is_path_column
from beam_jobs.sources.lists.rows import ListRow, array_rows, block_array_rows, json_rows
from beam_jobs.sources.options import SourceOptions
from beam_jobs.text_files.spans.csv_rows import find_columns
from tpudata.errors import SourceError
from tpudata.storage import storage_for

_ARRAY = re.compile(rb"\[\s*(\{|\]\s*\Z|\Z)")
# Pieces of CSV and of a JSON array, which is often one line of any length. Rows of 64 KB at once would take a third longer: the
# garbage collector counts them.
PIECE_BYTES = 1 << 14
_FIX = "Add a row, or remove the file from --input."


class ListFile(NamedTuple):
    """A list, and how its rows are read.

    Attributes:
        path: the file.
        columns: those of a CSV list; nothing for a JSONL list.
        delimiter: between two cells of a CSV list.
        is_array: whether the file is a single JSON array.
    """

    path: str
    columns: tuple[str, ...]
    delimiter: str
    is_array: bool = False

    @property
    def is_raw(self) -> bool:
        """Whether quotes are ordinary characters in it."""
        return isinstance(self, RawListFile)

    @property
    def _csv_form(self) -> CsvForm:
        return CsvForm(self.path, self.delimiter, self.is_raw)

    @contextlib.contextmanager
    def open(self, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[ListRow, Iterator[ListRow]]]:
        """Open the list.

        Args:
            piece_bytes: bytes of the pieces in which it is read.

        Yields:
            The end of the row that names the columns, or of nothing; and the rows after it.
        """
        with storage_for(self.path).open(self.path) as file:
            head = csv_header(file, self._csv_form)[1] if self.columns else ListRow(0, 0, {})
            lines: Iterable[bytes] = file
            if self.columns or self.is_array:
                # Rows of CSV, too, are found in pieces of any size; the header took whole lines.
                read = file.read if self.columns else file.readline
                lines = _read_pieces(read, piece_bytes)
            yield head, self.rows(lines, head.end, head.line)

    def rows(self, lines: Iterable[bytes], offset: int, line: int) -> Iterator[ListRow]:
        """Yield the rows in some lines of the file, of CSV and arrays in pieces of them; see `csv_rows`."""
        if self.is_array:
            return array_rows(lines, self.path, offset=offset, line=line)
        if self.columns:
            return csv_rows(lines, self._csv_form, self.columns, offset=offset, line=line)
        return json_rows(lines, self.path, offset=offset, line=line)

    def block_rows(self, data: bytes, offset: int, line: int) -> Iterator[ListRow]:
        """Yield the rows in the bytes of a block; see `csv_rows`."""
        if self.is_array:
            return block_array_rows(data, self.path, offset=offset, line=line)
        file = io.BytesIO(data)
        return self.rows(_read_pieces(file.read) if self.columns else file, offset, line)


def _read_pieces(read: Callable[[int], bytes], size: int = PIECE_BYTES) -> Iterator[bytes]:
    return iter(functools.partial(read, size), b"")


class RawListFile(ListFile):
    """A list separated by tabs whose quotes are ordinary characters.

    It is a class, not a field of ListFile, whose `repr` names the files of rejects.
    """

    __slots__ = ()


class ListBlock(NamedTuple):
    """Whole rows of a list.

    Attributes:
        file: the list.
        start, end: bytes of the file.
        line: number of lines before them.
    """

    file: ListFile
    start: int
    end: int
    line: int

    def __repr__(self) -> str:
        """Return a text that must not change: names of files in rejects/ are hashes of it."""
        return f"Block(file={self.file!r}, start={self.start!r}, end={self.end!r}, line={self.line!r})"


def list_file(path: str, options: SourceOptions) -> ListFile:
    """Return the format of a list, by its first character: a brace for JSONL, a bracket for a JSON array, and else CSV.

    The delimiter of CSV is the one that finds the path's column.
    """
    storage = storage_for(path)
    with storage.open(path) as file:
        head = file.readline(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
        while head == b"" and (line := file.readline(1 << 16)):
            head = line.lstrip()
    if not head:
        raise SourceError(f"{path} is empty, or all its lines are blank. {_FIX}")
    if _ARRAY.match(head):
        return ListFile(path, (), "", is_array=True)
    if head.startswith(b"{"):
        return ListFile(path, (), "")

    def is_raw(delimiter: str) -> bool:
        return options.raw_tsv and delimiter == "\t"

    def read_columns(delimiter: str) -> tuple[str, ...]:
        with storage.open(path) as lines:
            return csv_header(lines, CsvForm(path, delimiter, is_raw(delimiter)))[0]

    delimiter, columns = find_columns(
        DELIMITERS, read_columns, lambda columns: any(is_path_column(name, options) for name in columns)
    )
    if not delimiter:
        Roles.find(columns, options, path)
        raise SourceError(f"{path} line 1: no column of paths in {', '.join(columns)}. Name it with --path-column.")
    repeated_names = sorted({name for name in columns if columns.count(name) > 1 or not name})
    if repeated_names:
        raise SourceError(
            f"{path} line 1: column {repeated_names[0]!r} comes twice or has no name. Give each column its own."
        )
    kind = RawListFile if is_raw(delimiter) else ListFile
    return kind(path, columns, delimiter)


def first_columns(file: ListFile) -> tuple[str, ...]:
    """Return the names of a list's columns, of JSONL those of its first row.

    Raises:
        SourceError: it has no rows.
    """
    if file.columns:
        return file.columns
    with file.open() as (_, rows):
        row = next(rows, None)
    if row is None:
        raise SourceError(f"{file.path} has no rows. {_FIX}")
    return tuple(row.values)

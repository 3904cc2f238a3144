"""Reading a list from start to end, once, where a job begins: its form, its blocks, and what its columns hold."""

from __future__ import annotations

import array
import contextlib
import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.references.labels import Labels, check_classes, integer_labels
from beam_jobs.references.reference import key_bytes
from beam_jobs.sources.classes import MAX_INTEGER_LABEL, is_integer_label, is_number_label, json_labels
from beam_jobs.sources.lists.columns import ColumnKinds, Roles, is_path_column
from beam_jobs.sources.lists.rows import (
    DELIMITERS,
    Row,
    array_rows,
    block_array_rows,
    csv_header,
    csv_rows,
    json_rows,
)
from beam_jobs.sources.names import listed_split
from beam_jobs.sources.options import SourceOptions
from beam_jobs.values.column_kinds import INT
from beam_jobs.values.json_values import shown_json
from tpudata.errors import BadRecordError, SourceError
from tpudata.storage import storage_for

# Some thousand rows: their files are looked up one after the other.
BLOCK_BYTES = 1 << 18
_ARRAY = re.compile(rb"\[\s*(\{|\Z)")
_SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class ListFile(NamedTuple):
    """A list, and how its rows are read.

    Attributes:
        path: the file.
        columns: those of a CSV list; nothing for a JSONL list.
        delimiter: between two cells of a CSV list.
        is_array: whether it is one JSON array.
    """

    path: str
    columns: tuple[str, ...]
    delimiter: str
    is_array: bool = False

    def rows(self, lines: Iterable[bytes], offset: int, line: int) -> Iterator[Row]:
        """Yield the rows in some lines of the file, of an array in all of them; see `csv_rows`."""
        if self.is_array:
            return array_rows(lines, self.path, offset=offset, line=line)
        if self.columns:
            return csv_rows(lines, self.path, self.columns, self.delimiter, offset=offset, line=line)
        return json_rows(lines, self.path, offset=offset, line=line)

    def block_rows(self, data: bytes, offset: int, line: int) -> Iterator[Row]:
        """Yield the rows in the bytes of a block; see `csv_rows`."""
        if self.is_array:
            return block_array_rows(data, self.path, offset=offset, line=line)
        return self.rows(io.BytesIO(data), offset, line)


class Block(NamedTuple):
    """Whole rows of a list.

    Attributes:
        file: the list.
        start, end: bytes of the file.
        line: how many lines are before them.
    """

    file: ListFile
    start: int
    end: int
    line: int


class Scan:
    """Facts that whole lists are read for, and the blocks they are cut into.

    Attributes:
        kinds: of the further columns.
        keys: hash of each row's path.
        names: the classes, each with the first row that has it.
        several: whether a row may have several labels.
    """

    def __init__(self, roles: Roles, kinds: ColumnKinds, separator: str | None) -> None:
        self._roles = roles
        self._separator = separator
        self.kinds = kinds
        self.keys = array.array("Q")
        self.names: dict[str, str] = {}
        self.several = separator is not None
        # By split, how the first row that has it writes it, and where that is.
        self._splits: dict[str, tuple[str, str]] = {}

    def has_integers(self, label_type: str | None) -> bool:
        """Return whether the labels are whole numbers that stand for themselves.

        Args:
            label_type: `"int"` or `"str"` if it is declared.

        Raises:
            SourceError: some are numbers and some are not, or they are other numbers; names the first row of each.
        """
        if label_type is not None or not any(map(is_number_label, self.names)):
            return label_type == INT
        odd = next((name for name in self.names if not is_integer_label(name)), None)
        if odd is None:
            return True
        good = next((name for name in self.names if is_integer_label(name)), None)
        others = f" and {self.names[good]} is {good!r}" if good is not None else ""
        raise SourceError(
            f"{self.names[odd]}: label {odd!r} is no whole number from 0{others}. Correct it, or pass --label-type str to take all"
            " labels as names, numbered in their sorted order, or --label-type int to reject rows such as this one."
        )

    def labels(self, integers: bool, are_all: bool) -> Labels:
        """Return the classes that were seen.

        Args:
            integers: they are whole numbers, which are labels themselves.
            are_all: they are all labels of the dataset.

        Raises:
            SourceError: one label makes almost all of the classes; names its row.
        """
        if not integers:
            return Labels(tuple(sorted(self.names)))
        # A larger one is rejected when its row is listed.
        numbers = [name for name in self.names if is_integer_label(name) and _fits(name)]
        if numbers and are_all:
            largest = max(numbers, key=int)
            check_classes(int(largest), len(numbers), self.names[largest])
        return integer_labels(numbers)

    def blocks(self, file: ListFile) -> Iterator[Block]:
        """Read a list, and yield its blocks."""
        with storage_for(file.path).open(file.path) as lines:
            first = csv_header(lines, file.path, file.delimiter)[1] if file.columns else Row(0, 0, {})
            start, line, end = first.end, first.line, first
            for row in file.rows(lines, first.end, first.line):
                self._add(row, f"{file.path} line {row.line}")
                end = row
                if row.end - start >= BLOCK_BYTES:
                    yield Block(file, start, row.end, line)
                    start, line = row.end, row.line
            if end.end > start:
                yield Block(file, start, end.end, line)

    def _add(self, row: Row, where: str) -> None:
        self.kinds.add(row.values, where)
        if self._roles.split is not None:
            split = row.values.get(self._roles.split)
            if not isinstance(split, str) or not _SPLIT_NAME.fullmatch(split):
                raise SourceError(
                    f"{where}: split {split!r}. A split's name is letters, digits and _, a letter first, such as train."
                )
            name = listed_split(split)
            before, first = self._splits.setdefault(name, (split, where))
            if before.lower() != split.lower():
                raise SourceError(
                    f"{where}: split {split!r}, and {first} has {before!r}; both stand for {name}. Write one of them, or name the"
                    " splits otherwise."
                )
        # A row without path or label is rejected when it is listed: there it may be skipped.
        with contextlib.suppress(BadRecordError):
            self.keys.append(_key_hash(row_path(row, self._roles, where)))
            names, several = row_labels(row, self._roles, self._separator, where)
            for name in names:
                self.names.setdefault(name, where)
            self.several |= several


def _fits(name: str) -> bool:
    return len(name) <= 7 and int(name) <= MAX_INTEGER_LABEL


def list_file(path: str, options: SourceOptions) -> ListFile:
    """Return how a list is read, by its first character: a brace for JSONL, a bracket for a JSON array, and else CSV.

    The delimiter of CSV is the one that finds the path's column.
    """
    storage = storage_for(path)
    with storage.open(path) as file:
        head = file.readline(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
        while head == b"" and (line := file.readline(1 << 16)):
            head = line.lstrip()
    if _ARRAY.match(head):
        return ListFile(path, (), "", is_array=True)
    if head.startswith(b"{"):
        return ListFile(path, (), "")
    first: tuple[str, ...] = ()
    for delimiter in DELIMITERS:
        with storage.open(path) as lines:
            columns, _ = csv_header(lines, path, delimiter)
        first = first or columns
        if any(is_path_column(name, options) for name in columns):
            doubled = sorted({name for name in columns if columns.count(name) > 1 or not name})
            if doubled:
                raise SourceError(
                    f"{path} line 1: column {doubled[0]!r} comes twice or has no name. Give each column its own."
                )
            return ListFile(path, columns, delimiter)
    Roles.find(first, options, path)
    raise SourceError(f"{path} line 1: no column of paths in {', '.join(first)}.")


def first_columns(file: ListFile) -> tuple[str, ...]:
    """Return the names of a list's columns, of JSONL those of its first row.

    Raises:
        SourceError: it has no rows.
    """
    if file.columns:
        return file.columns
    with storage_for(file.path).open(file.path) as lines:
        row = next(file.rows(lines, 0, 0), None)
    if row is None:
        raise SourceError(f"{file.path} has no rows.")
    return tuple(row.values)


def row_path(row: Row, roles: Roles, where: str) -> str:
    """Return the path that a row names.

    Raises:
        BadRecordError: it names none.
    """
    value = row.values.get(roles.path)
    if not isinstance(value, str) or not value.strip():
        raise BadRecordError(where, f"column {roles.path!r} has no path: {shown_json(value)}")
    return value


def row_labels(row: Row, roles: Roles, separator: str | None, where: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels of a row, and whether they are a list.

    Raises:
        BadRecordError: its label is of another kind.
    """
    if roles.label is None:
        return (), False
    value: Any = row.values.get(roles.label)
    if separator is not None:
        return tuple(part.strip() for part in value.split(separator) if part.strip()), True
    if isinstance(value, str):
        value = value.strip()
    return json_labels(value, where, f"column {roles.label!r}")


def _key_hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key_bytes(key), digest_size=8).digest(), "big")


def refuse_duplicates(hashes: array.array[int], files: Iterable[ListFile], roles: Roles) -> None:
    """Raise SourceError if two rows have the same path, also in different splits, where their records never meet."""
    ordered = np.sort(np.frombuffer(hashes, np.uint64)) if hashes else np.zeros(0, np.uint64)
    doubled = frozenset(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not doubled:
        return
    # Two keys may share a hash by chance, so the lists are read again for the keys themselves.
    seen: dict[str, str] = {}
    for file in files:
        with storage_for(file.path).open(file.path) as lines:
            first = csv_header(lines, file.path, file.delimiter)[1] if file.columns else Row(0, 0, {})
            for row in file.rows(lines, first.end, first.line):
                where = f"{file.path} line {row.line}"
                with contextlib.suppress(BadRecordError):
                    key = row_path(row, roles, where)
                    if _key_hash(key) in doubled and key in seen:
                        raise SourceError(
                            f"{where} and {seen[key]} have the same path {key!r}. Every row needs its own."
                        )
                    if _key_hash(key) in doubled:
                        seen[key] = where

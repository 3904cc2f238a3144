"""Scans of lists: each is read once, from start to end, for its blocks and facts about its rows.

A quoted cell may hold line breaks, so only a scan from the start finds the ends of rows and their lines. One worker reads a list;
several lists are read at the same time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from beam_jobs.references.labels import is_class_name
from beam_jobs.references.reference import key_bytes
from beam_jobs.references.repeated_keys import KeyRows, make_key_rows
from beam_jobs.sources.classes import parse_row_labels
from beam_jobs.sources.lists.columns import ColumnReader
from beam_jobs.sources.lists.facts import ListFacts
from beam_jobs.sources.lists.list_file import ListBlock, ListFile
from beam_jobs.sources.lists.place import RowPlace
from beam_jobs.sources.lists.roles import Roles
from beam_jobs.sources.lists.rows import ListRow
from tpudata.errors import BadRecordError, SourceError
from tpudata.json_values import abbreviate_json

# Size of a block: some thousand rows, whose files one worker looks up.
BLOCK_BYTES = 1 << 18
_SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class ListScan:
    """Scan of one list.

    Args:
        file: the list.
        list_index: index of the list among all.
        roles: columns of path, label and split.
        reader: reader of the extra columns.
        separator: string between several labels in a CSV cell; None if a cell is a single label.
        block_bytes: size from which a block ends at the end of a row.

    Attributes:
        facts: facts about the rows so far.
    """

    def __init__(
        self,
        file: ListFile,
        list_index: int,
        roles: Roles,
        reader: ColumnReader,
        separator: str | None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        # `columns` is shared: the reader updates its facts with each row that it gets.
        self.facts = ListFacts(columns=reader.facts, has_several_labels=separator is not None)
        self._file = file
        self._list_index = list_index
        self._roles = roles
        self._reader = reader
        self._separator = separator
        self._block_bytes = block_bytes
        # Paths and lines of the rows read since the last call of `take_rows`.
        self._paths: list[str] = []
        self._lines: list[int] = []

    @property
    def held(self) -> int:
        """Number of rows that `take_rows` would return."""
        return len(self._paths)

    def take_rows(self) -> KeyRows:
        """Return the digests of the keys (the paths) of the rows read since the last call, each with its list and line."""
        rows = make_key_rows(self._paths, self._lines, self._list_index)
        self._paths.clear()
        self._lines.clear()
        return rows

    def parts(self) -> Iterator[ListBlock]:
        """Read the list, and yield its blocks.

        Raises:
            SourceError: a row is invalid: its cells, its split, an extra column; the message names file and line.
        """
        block_count = 0
        with self._file.open() as (header, rows):
            # A block begins at the end of the row before it: the header, or the last row of the block before.
            row_before = last_row = header
            for row in rows:
                self._add_row(row)
                last_row = row
                if row.end - row_before.end >= self._block_bytes:
                    yield ListBlock(self._file, row_before.end, row.end, row_before.line)
                    row_before = row
                    block_count += 1
            if last_row.end > row_before.end:
                yield ListBlock(self._file, row_before.end, last_row.end, row_before.line)
                block_count += 1
        self.facts.lists[self._list_index] = self._file.path, block_count

    def _add_row(self, row: ListRow) -> None:
        """Add a row to the facts and to the rows that `take_rows` returns; SourceError if its split or a value is invalid."""
        place = RowPlace(self._list_index, row.line, self._file.path)
        origin = str(place)
        self._reader.add(row.values, place)
        if self._roles.split is not None:
            split = row.values.get(self._roles.split)
            if not isinstance(split, str) or not _SPLIT_NAME.fullmatch(split):
                raise SourceError(
                    f"{origin}: split {split!r}. A split's name is letters, digits and _, a letter first, such as train."
                )
            self.facts.split_places.setdefault(split, place)
        # A row without a valid path or label is no error of the scan: the listing rejects it, and then it may be skipped.
        with contextlib.suppress(BadRecordError):
            path = parse_path(row, self._roles, origin)
            self._paths.append(path)
            self._lines.append(row.line)
            names, may_be_several = parse_labels(row, self._roles, self._separator, origin)
            for name in filter(is_class_name, names):
                self.facts.class_places.setdefault(name, place)
            self.facts.has_several_labels |= may_be_several


def parse_path(row: ListRow, roles: Roles, origin: str) -> str:
    """Return the path in a row.

    Raises:
        BadRecordError: the row has no path, or its path is not Unicode.
    """
    value = row.values.get(roles.path)
    if not isinstance(value, str) or not value.strip():
        raise BadRecordError(origin, f"column {roles.path!r} has no path: {abbreviate_json(value)}")
    try:
        key_bytes(value)
    except UnicodeEncodeError:
        # JSON may have half of a surrogate pair.
        raise BadRecordError(origin, f"column {roles.path!r} is not Unicode: {abbreviate_json(value)}") from None
    return value


def parse_labels(row: ListRow, roles: Roles, separator: str | None, origin: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels of a row as written, and whether it may have several; no labels without a column of labels.

    Raises:
        BadRecordError: see `parse_json_labels`.
    """
    if roles.label is None:
        return (), False
    return parse_row_labels(row.values.get(roles.label), separator, origin, f"column {roles.label!r}")

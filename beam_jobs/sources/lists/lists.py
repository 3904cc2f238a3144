"""CSV and JSONL lists and JSON arrays: a row an image, with its path, its class or classes, its split, and extra columns.

Further columns become features.

    path,label,age                                  {"path": "cats/1.jpg", "label": "cat", "age": 3}
    cats/1.jpg,cat,3                                {"path": "dogs/7.jpg", "label": ["dog", "puppy"], "age": 1}

The first row of a CSV list names its columns. Paths are absolute or relative to the list's
folder. A key is the path as written.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels, is_integer_label
from beam_jobs.references.notes import LABEL_BLANKS, Note, ignore_note
from beam_jobs.references.reference import Reference, key_digests
from beam_jobs.references.rejection import Reject, add_key, raise_rejection
from beam_jobs.references.repeated_keys import Repeat
from beam_jobs.sources.classes import Classes
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.lists.columns import LISTED_IMAGE, ColumnReader, column_values, features
from beam_jobs.sources.lists.facts import ListFacts
from beam_jobs.sources.lists.list_file import ListBlock, first_columns, list_file
from beam_jobs.sources.lists.roles import Roles
from beam_jobs.sources.lists.rows import ListRow
from beam_jobs.sources.lists.scan import BLOCK_BYTES, ListScan, parse_labels, row_path
from beam_jobs.sources.lists.sizes import ListedFile, attach_sizes
from beam_jobs.sources.named_splits import LOOKED_AT, NamedSplits, file_split, find_listed_split, split_in_file_name
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import ScannedSource, make_reference
from beam_jobs.values.column_kinds import ColumnKind
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import Feature
from tpudata.storage import storage_for


class ListSchema(NamedTuple):
    """Schema of lists, known once they were read.

    Attributes:
        kinds: name and kind of each extra column.
        labels: the classes, or None without a column of labels.
        integers: whether labels are whole numbers: the labels themselves or, with a file of names, the indices of its lines.
        several: whether a row may have any number of labels.
    """

    kinds: tuple[tuple[str, ColumnKind], ...] = ()
    labels: Labels | None = None
    integers: bool = False
    several: bool = False


@dataclasses.dataclass(frozen=True)
class Lists(ScannedSource):
    """CSV or JSONL lists: a ScannedSource, which is scanned list by list and then has blocks of whole rows as units.

    Attributes:
        options: options with the splits and the seed of the order.
        source_options: columns and labels.
        files: the lists; all have the columns of the first one for path, label and split.
        splits: splits in the names of the lists, without a column of splits.
        first: path of the first list.
        typed: whether values have a kind themselves, as in JSONL.
        roles: columns of path, label and split.
        classes: mapping from labels to class names.
        schema: schema of all lists, once they are scanned.
        blocks: blocks of all lists, if they are scanned in this process.
        note: gets labels that lost their blanks.
        block_bytes: bytes after which a block ends with its row.
    """

    options: ConvertOptions
    source_options: SourceOptions
    files: InputFiles
    splits: NamedSplits
    first: str
    typed: bool
    roles: Roles
    classes: Classes
    schema: ListSchema
    blocks: tuple[ListBlock, ...] | None = None
    note: Note = ignore_note
    block_bytes: int = BLOCK_BYTES

    def noting(self, note: Note) -> Lists:
        """Return the source that notes."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions, files: InputFiles) -> Lists:
        """Look at the columns of the first list.

        Args:
            options: options of the conversion.
            source_options: columns and labels.
            files: the lists.

        Raises:
            SourceError: there is no list, or the first has no rows or not the columns that it needs; or the names of some lists
                are splits, and of some are not.
            UsageError: the options do not fit the list, or assign splits although the names of the lists are splits.
        """
        source_options.reject_list_types("values of other lists show that they are lists")
        first_files = list(itertools.islice(files, LOOKED_AT + 1))
        first, _ = first_files[0]
        file = list_file(first, source_options)
        roles = Roles.find(first_columns(file), source_options, first)
        if roles.split is not None:
            reject_split_flag(options, f"{first} has splits already, in its column {roles.split!r}")
        typed = not file.columns
        if typed and source_options.label_separator is not None:
            raise UsageError(
                "--label-separator is for CSV lists; write several labels into a JSONL list as a JSON list."
            )
        # A column of splits takes precedence over the names of the lists.
        names = [name for _, name in first_files] if roles.split is None else []
        splits = NamedSplits.find(options, names, file_split, split_in_file_name)
        classes = Classes.open(source_options)
        schema = ListSchema(several=source_options.label_separator is not None)
        return cls(options, source_options, files, splits, first, typed, roles, classes, schema)

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the names of the lists stand for."""
        return self.splits.named

    @property
    def has_classes(self) -> bool:
        """Whether there is a column of labels."""
        return self.roles.label is not None

    @property
    def several_labels(self) -> bool:
        """Whether a row may have any number of labels."""
        return self.schema.several

    @property
    def labels(self) -> Labels | None:
        """The classes."""
        return self.classes.labels or self.schema.labels

    @property
    def integer_labels(self) -> bool:
        """Whether the labels are whole numbers."""
        return self.classes.collects_integers

    @property
    def features(self) -> tuple[Feature, ...]:
        """Schema of the extra columns."""
        return features(dict(self.schema.kinds))

    @property
    def takes_label_type(self) -> bool:
        """Whether `--label-type` applies to the labels."""
        return True

    def no_facts(self) -> ListFacts:
        """Return the facts about no list."""
        return ListFacts()

    def scan(self, index: int, part: str) -> ListScan:
        """Return the scan of a list.

        Args:
            index: index of the list among all.
            part: its path.

        Raises:
            SourceError: its columns are not those of the first list, it has no rows, or its name leaves a doubt about splits.
        """
        self._find_named_split(part)
        file = list_file(part, self.source_options)
        if Roles.find(first_columns(file), self.source_options, part) != self.roles:
            raise SourceError(
                f"{part} and {self.first} have other columns for path, label and split. Convert them separately."
            )
        if bool(file.columns) == self.typed:
            raise SourceError(f"{self.options.input} has CSV and JSONL lists. Convert them separately.")
        reader = ColumnReader(self.source_options.column_kinds, self.roles, self.typed)
        separator = self.source_options.label_separator
        return ListScan(file, index, self.roles, reader, separator, self.block_bytes)

    def apply_scans(self, facts: ListFacts, blocks: Iterable[ListBlock] | None = None) -> Lists:
        """Return the source with the facts that the scans of all lists found.

        Args:
            facts: facts about all lists.
            blocks: blocks of all lists, if `parts` is to return them.

        Raises:
            SourceError: columns, splits or labels of the lists do not fit together; names file and line.
            UsageError: the options do not fit the lists.
        """
        facts.check_splits()
        source_options = self.source_options
        # With a file of names, an unknown label is rejected when its row is listed.
        checked = source_options.labels_file is None
        integers = facts.has_integers(source_options.label_type) if checked else all(map(is_integer_label, facts.names))
        kinds = tuple(facts.columns.kinds(source_options.column_kinds).items())
        labels = None
        if self.roles.label is not None:
            labels = facts.labels(integers, are_all=checked and not self.options.append)
        return dataclasses.replace(
            self,
            classes=dataclasses.replace(self.classes, integers=integers),
            schema=ListSchema(kinds, labels, integers, facts.several),
            blocks=None if blocks is None else tuple(blocks),
        )

    def describe_repeat(self, repeat: Repeat, facts: ListFacts) -> SourceError:
        """Return the error of two rows with one path."""
        path, _ = facts.lists[repeat.list_index]
        first, _ = facts.lists[repeat.first_list_index]
        sought, key = (repeat.high, repeat.low), ""
        with list_file(path, self.source_options).open() as (_, rows):
            for row in rows:
                value = row.values.get(self.roles.path)
                if row.line == repeat.line and isinstance(value, str) and tuple(key_digests([value])[0]) == sought:
                    key = value
                    break
        return SourceError(
            f"{path} line {repeat.line} and {first} line {repeat.first_line} have the same path {key!r}. Every row needs"
            " its own."
        )

    def parts(self) -> Iterator[str | ListBlock]:
        """Yield the paths of the lists; once these are scanned in this process, their blocks."""
        if self.blocks is not None:
            yield from self.blocks
        else:
            for path, _ in self.files:
                yield path

    def units(self, part: ListBlock, ignored: list[str]) -> tuple[ListBlock]:
        """Return a block of rows; nothing is ignored here."""
        del ignored
        return (part,)

    def references(self, unit: ListBlock, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to the file of each row of a block, if it is there."""
        del ignored
        path = unit.file.path
        kinds = dict(self.schema.kinds)
        folder = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
        size = unit.end - unit.start
        data = storage_for(path).read_range(path, unit.start, size)
        if len(data) < size:
            # Removed rows would otherwise be missing silently.
            raise SourceError(
                f"{path} was cut during the run (got {len(data)} bytes at byte {unit.start}, expected {size}). Run again when it"
                " is complete."
            )
        rows = unit.file.block_rows(data, unit.start, unit.line)
        split = self._find_named_split(path)
        for listed in attach_sizes(self._list_row(row, f"{path} line {row.line}", folder, kinds) for row in rows):
            if isinstance(listed, BadRecordError):
                reject(listed)
                continue
            row, size = listed
            yield make_reference(
                self.options,
                row.key,
                path=row.file,
                size=size,
                split=row.split or split,
                labels=row.labels,
                payload=LISTED_IMAGE,
                features=row.features,
            )

    def _find_named_split(self, path: str) -> str:
        """Return the split that a list's name stands for, or an empty string; SourceError if it is ambiguous."""
        return "" if self.roles.split is not None else self.splits.find_split(self.files.find_name(path))

    def _list_row(
        self, row: ListRow, origin: str, folder: str, kinds: Mapping[str, ColumnKind]
    ) -> ListedFile | BadRecordError:
        """Return the file that a row lists, or its rejection."""
        key = None
        try:
            key = row_path(row, self.roles, origin)
            names, _ = parse_labels(row, self.roles, self.source_options.label_separator, origin)
            if (
                isinstance(label_text := row.values.get(self.roles.label or ""), str)
                and label_text != label_text.strip()
            ):
                self.note(LABEL_BLANKS, label_text)
            labels = tuple(self.classes.resolve(name, origin) for name in names)
        except BadRecordError as error:
            return add_key(error, key)
        file = key if key.startswith("/") or "://" in key else storage_for(folder).join(folder, key)
        split = find_listed_split(str(row.values[self.roles.split])) if self.roles.split else ""
        return ListedFile(origin, key, file, split, labels, column_values(row.values, kinds))

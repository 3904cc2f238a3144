"""CSV and JSONL lists and JSON arrays: each row has the path of an image, its class or classes, its split, and extra columns.

    path,label,age                                  {"path": "cats/1.jpg", "label": "cat", "age": 3}
    cats/1.jpg,cat,3                                {"path": "dogs/7.jpg", "label": ["dog", "puppy"], "age": 1}

The first row of a CSV list names its columns. Extra columns become features. Paths are absolute or relative to the list's folder. A
key is the path as written.
"""

from __future__ import annotations

import dataclasses
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
from beam_jobs.sources.lists.columns import LISTED_IMAGE, ColumnReader, convert_row, make_features
from beam_jobs.sources.lists.facts import ListFacts
from beam_jobs.sources.lists.list_file import ListBlock, detect_list, read_columns
from beam_jobs.sources.lists.roles import Roles
from beam_jobs.sources.lists.rows import ListRow
from beam_jobs.sources.lists.scan import BLOCK_BYTES, ListScan, parse_labels, parse_path
from beam_jobs.sources.lists.sizes import ListedFile, attach_sizes
from beam_jobs.sources.named_splits import (
    NamedSplits,
    find_file_split,
    find_listed_split,
    find_split_in_file_name,
    take_first_names,
)
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import ScannedSource, make_reference
from beam_jobs.values.column_kinds import ColumnKind
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import Feature
from tpudata.storage import storage_for


class ListSchema(NamedTuple):
    """Schema of lists, which a scan finds.

    Attributes:
        kinds: name and kind of each extra column.
        labels: the classes; None before the scan, and without a column of labels.
        has_integer_labels: whether labels are integers: labels themselves or, with a file of names, indices of its lines.
        has_several_labels: whether a row may have any number of labels.
    """

    kinds: tuple[tuple[str, ColumnKind], ...] = ()
    labels: Labels | None = None
    has_integer_labels: bool = False
    has_several_labels: bool = False


@dataclasses.dataclass(frozen=True)
class Lists(ScannedSource):
    """CSV or JSONL lists: a ScannedSource whose parts are lists, and after the scan blocks of whole rows, which are its units.

    Attributes:
        options: options with the splits and the seed of the order.
        source_options: options of columns and labels.
        files: the lists; all have the same columns of path, label and split.
        splits: splits that the names of the lists stand for, unless there is a column of splits.
        first_path: path of the first list.
        has_types: whether values have types, as in JSONL.
        roles: columns of path, label and split.
        classes: mapping from labels to class names.
        schema: schema of all lists, once they are scanned.
        blocks: blocks of all lists, if they were scanned in this process.
        note: called with the kind of a note and an example: a label from which blanks are removed.
        block_bytes: size from which a block ends at the end of a row.
    """

    options: ConvertOptions
    source_options: SourceOptions
    files: InputFiles
    splits: NamedSplits
    first_path: str
    has_types: bool
    roles: Roles
    classes: Classes
    schema: ListSchema
    blocks: tuple[ListBlock, ...] | None = None
    note: Note = ignore_note
    block_bytes: int = BLOCK_BYTES

    def noting(self, note: Note) -> Lists:
        """Return the source that calls `note` with labels from which blanks are removed."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def open(cls, options: ConvertOptions, source_options: SourceOptions, files: InputFiles) -> Lists:
        """Open the source, after a look at the columns of the first list.

        Args:
            options: options of the conversion.
            source_options: options of columns and labels.
            files: the lists.

        Raises:
            SourceError: there is no list, the first list lacks rows or columns, only some names of lists stand for splits, or the
                file of `--labels` is invalid.
            UsageError: the options do not fit the list, or assign splits, but the names of the lists stand for splits.
        """
        source_options.reject_list_types(reason="values of other lists show that they are lists")
        first_files = take_first_names(files)
        first_path, _ = first_files[0]
        file = detect_list(first_path, source_options)
        roles = Roles.infer(read_columns(file), source_options, first_path)
        if roles.split is not None:
            reject_split_flag(options, f"{first_path} has splits already, in its column {roles.split!r}")
        if file.has_types and source_options.label_separator is not None:
            raise UsageError(
                "--label-separator is for CSV lists; write several labels into a JSONL list as a JSON list."
            )
        # A column of splits takes precedence over the names of the lists.
        names = [name for _, name in first_files] if roles.split is None else []
        splits = NamedSplits.infer(options, names, find_file_split, find_split_in_file_name)
        classes = Classes.open(source_options)
        schema = ListSchema(has_several_labels=source_options.label_separator is not None)
        return cls(options, source_options, files, splits, first_path, file.has_types, roles, classes, schema)

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
        return self.schema.has_several_labels

    @property
    def labels(self) -> Labels | None:
        """The classes of `--labels FILE` or, without it, of the scan; None before the scan, or if there is no column of labels."""
        return self.classes.labels or self.schema.labels

    @property
    def integer_labels(self) -> bool:
        """Whether class names are integers that are the labels themselves."""
        return self.classes.collects_integers

    @property
    def features(self) -> tuple[Feature, ...]:
        """Schema of the extra columns."""
        return make_features(dict(self.schema.kinds))

    @property
    def takes_label_type(self) -> bool:
        """Whether `--label-type` applies to the labels."""
        return True

    def no_facts(self) -> ListFacts:
        """Return empty facts."""
        return ListFacts()

    def scan(self, index: int, part: str) -> ListScan:
        """Return the scan of a list.

        Args:
            index: index of the list among all.
            part: its path.

        Raises:
            SourceError: its format or its columns of path, label and split differ from the first list's, it has no rows, or its
                name is ambiguous about splits.
        """
        # This raises if the name of the list is ambiguous.
        self._find_named_split(part)
        file = detect_list(part, self.source_options)
        if Roles.infer(read_columns(file), self.source_options, part) != self.roles:
            raise SourceError(
                f"{part} and {self.first_path} have different columns for path, label and split. Convert them separately."
            )
        if file.has_types != self.has_types:
            raise SourceError(f"{self.options.input} has CSV and JSONL lists. Convert them separately.")
        reader = ColumnReader(self.source_options.column_kinds, self.roles, has_types=self.has_types)
        separator = self.source_options.label_separator
        return ListScan(file, index, self.roles, reader, separator, self.block_bytes)

    def apply_scans(self, facts: ListFacts, blocks: Iterable[ListBlock] | None = None) -> Lists:
        """Return the source with the schema of its lists.

        Args:
            facts: facts about all lists.
            blocks: blocks of all lists, if they were scanned in this process.

        Raises:
            SourceError: columns, splits or labels of the lists do not fit together; the message names file and line.
            UsageError: the options do not fit the lists.
        """
        facts.check_splits()
        source_options = self.source_options
        if source_options.labels_file is None:
            has_integers = facts.has_integer_labels(source_options.label_type)
            # The dataset to append to may have different labels.
            checks_classes = not self.options.append
        else:
            # If all labels are integers, they are indices of the file's lines. They are not checked here: the listing rejects
            # labels that the file does not have.
            has_integers = all(map(is_integer_label, facts.class_places))
            checks_classes = False
        kinds = tuple(facts.columns.find_kinds(source_options.column_kinds).items())
        labels = None
        if self.roles.label is not None:
            labels = facts.make_labels(has_integers=has_integers, checks_classes=checks_classes)
        return dataclasses.replace(
            self,
            classes=dataclasses.replace(self.classes, has_integers=has_integers),
            schema=ListSchema(kinds, labels, has_integers, facts.has_several_labels),
            blocks=None if blocks is None else tuple(blocks),
        )

    def describe_repeat(self, repeat: Repeat, facts: ListFacts) -> SourceError:
        """Return the error of two rows with the same path.

        The path is read from the list again; it is '' in the message if the list has changed since.
        """
        path, _ = facts.lists[repeat.list_index]
        first_path, _ = facts.lists[repeat.first_list_index]
        key = ""
        # Rows of a JSON array may share a line, so the digest is also compared.
        digest = (repeat.high, repeat.low)
        with detect_list(path, self.source_options).open() as (_, rows):
            for row in rows:
                value = row.values.get(self.roles.path)
                if row.line == repeat.line and isinstance(value, str) and tuple(key_digests([value])[0]) == digest:
                    key = value
                    break
        return SourceError(
            f"{path} line {repeat.line} and {first_path} line {repeat.first_line} have the same path {key!r}. Every row needs"
            " its own."
        )

    def parts(self) -> Iterator[str | ListBlock]:
        """Yield the paths of the lists; after a scan in this process, their blocks."""
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
        """Yield a reference to the file of each row of a block; reject rows that are invalid or whose file is not found.

        Raises:
            SourceError: the list was truncated during the run.
        """
        del ignored
        path = unit.file.path
        kinds = dict(self.schema.kinds)
        # A list without a folder in its path lies in the working directory, or in the root.
        folder = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
        block_size = unit.end - unit.start
        data = storage_for(path).read_range(path, unit.start, block_size)
        if len(data) < block_size:
            # Removed rows would otherwise be missing silently.
            raise SourceError(
                f"{path} was cut during the run (got {len(data)} bytes at byte {unit.start}, expected {block_size}). Run again"
                " when it is complete."
            )
        rows = unit.file.read_block(data, unit.start, unit.line)
        files = (self._make_listed_file(row, f"{path} line {row.line}", folder, kinds) for row in rows)
        named_split = self._find_named_split(path)
        for file_and_size in attach_sizes(files):
            if isinstance(file_and_size, BadRecordError):
                reject(file_and_size)
                continue
            file, size = file_and_size
            yield make_reference(
                self.options,
                file.key,
                path=file.path,
                size=size,
                split=file.split or named_split,
                labels=file.labels,
                payload=LISTED_IMAGE,
                features=file.features,
            )

    def _find_named_split(self, path: str) -> str:
        """Return the split that a list's name stands for, or an empty string; SourceError if it is ambiguous."""
        return "" if self.roles.split is not None else self.splits.find_split(self.files.find_relative_path(path))

    def _make_listed_file(
        self, row: ListRow, origin: str, folder: str, kinds: Mapping[str, ColumnKind]
    ) -> ListedFile | BadRecordError:
        """Return the file that a row lists, or the row's rejection.

        Args:
            row: the row.
            origin: list and line, for messages.
            folder: folder of the list, to which relative paths are joined.
            kinds: kinds of the extra columns, by name.
        """
        # A row without a valid path is rejected without a key.
        key = None
        try:
            key = parse_path(row, self.roles, origin)
            labels_as_written, _ = parse_labels(row, self.roles, self.source_options.label_separator, origin)
            # An empty name stands for no column of labels.
            label_cell = row.values.get(self.roles.label or "")
            if isinstance(label_cell, str) and label_cell != label_cell.strip():
                self.note(LABEL_BLANKS, label_cell)
            labels = tuple(self.classes.resolve(label, origin) for label in labels_as_written)
        except BadRecordError as error:
            return add_key(error, key)
        path = key if key.startswith("/") or "://" in key else storage_for(folder).join(folder, key)
        split = find_listed_split(str(row.values[self.roles.split])) if self.roles.split else ""
        return ListedFile(origin, key, path, split, labels, convert_row(row.values, kinds))

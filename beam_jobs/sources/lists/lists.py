"""CSV and JSONL lists and JSON arrays: a row an image, with its path, its class or classes, its split, and further columns.

Further columns become features.

    path,label,age                                  {"path": "cats/1.jpg", "label": "cat", "age": 3}
    cats/1.jpg,cat,3                                {"path": "dogs/7.jpg", "label": ["dog", "puppy"], "age": 1}

The first row of a CSV list names its columns. Paths are absolute or relative to the list's
folder. A key is the path as it is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.sources.classes import Classes, is_integer_label
from beam_jobs.sources.lists.columns import ColumnKinds, Roles, extra_json, features
from beam_jobs.sources.lists.rows import Row
from beam_jobs.sources.lists.scan import Block, Scan, first_columns, list_file, refuse_duplicates, row_labels, row_path
from beam_jobs.sources.lists.sizes import ListedFile, with_sizes
from beam_jobs.sources.names import listed_split
from beam_jobs.sources.options import SourceOptions, refuse_split_flag
from beam_jobs.sources.source import Refuse, make_reference, raise_refusal, with_key
from beam_jobs.values.column_kinds import ColumnKind
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import Feature
from tpudata.storage import storage_for


@dataclasses.dataclass(frozen=True)
class Lists:
    """CSV or JSONL lists: a Source whose units are blocks of whole rows.

    Attributes:
        options: deal out splits and seed the order.
        blocks: to be listed.
        roles: columns of path, label and split.
        kinds: name and kind of each further column.
        separator: between several labels in a CSV cell, or None.
        classes: how labels become names.
        labels: the classes.
        several_labels: whether a row may have any number of labels.
    """

    options: ConvertOptions
    blocks: tuple[Block, ...]
    roles: Roles
    kinds: tuple[tuple[str, ColumnKind], ...]
    separator: str | None
    classes: Classes
    labels: Labels | None
    several_labels: bool

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions, paths: Sequence[str]) -> Lists:
        """Read the lists from start to end, once. Memory holds the class names, and 8 bytes for every row.

        Args:
            options: of the conversion.
            source_options: columns and labels.
            paths: of the lists; all have the same columns for path, label and split.

        Raises:
            SourceError: a list is not as it should be: columns, ragged rows, a path that comes twice; names file and line.
            UsageError: the options do not fit the lists.
        """
        files = [list_file(path, source_options) for path in paths]
        columns = [first_columns(file) for file in files]
        roles = Roles.find(columns[0], source_options, paths[0])
        for path, names in zip(paths, columns, strict=True):
            if Roles.find(names, source_options, path) != roles:
                raise SourceError(
                    f"{path} and {paths[0]} have other columns for path, label and split. Convert them apart."
                )
        if roles.split is not None:
            refuse_split_flag(options, f"{paths[0]} has splits already, in its column {roles.split!r}")
        typed = not files[0].columns
        if any(bool(file.columns) == typed for file in files):
            raise SourceError(f"{options.input} has CSV and JSONL lists. Convert them apart.")
        if typed and source_options.label_separator is not None:
            raise UsageError(
                "--label-separator is for CSV lists; write several labels into a JSONL list as a JSON list."
            )
        scan = Scan(roles, ColumnKinds(source_options.column_kinds, roles, typed), source_options.label_separator)
        blocks = tuple(block for file in files for block in scan.blocks(file))
        refuse_duplicates(scan.keys, files, roles)
        # With a file of names, a label that is none of them is rejected when its row is listed.
        checked = source_options.labels_file is None
        integers = scan.has_integers(source_options.label_type) if checked else all(map(is_integer_label, scan.names))
        classes = Classes.open(source_options, integers=integers)
        kinds = tuple(scan.kinds.kinds().items())
        seen = None if roles.label is None else scan.labels(integers, are_all=checked and not options.append)
        labels = classes.labels or seen
        return cls(options, blocks, roles, kinds, source_options.label_separator, classes, labels, scan.several)

    @property
    def has_classes(self) -> bool:
        """Whether there is a column of labels."""
        return self.roles.label is not None

    @property
    def integer_labels(self) -> bool:
        """Whether the labels are whole numbers."""
        return self.classes.collects_integers

    @property
    def extra(self) -> tuple[Feature, ...]:
        """Schema of the further columns."""
        return features(dict(self.kinds))

    @property
    def has_label_fields(self) -> bool:
        """Whether labels are values whose type `--label-type` may say."""
        return True

    def parts(self) -> Sequence[Block]:
        """Return the blocks of rows."""
        return self.blocks

    def units(self, part: Block, ignored: list[str]) -> Sequence[Block]:
        """Return a block of rows."""
        del ignored
        return (part,)

    def references(self, unit: Block, ignored: list[str], refuse: Refuse = raise_refusal) -> Iterator[Reference]:
        """Yield a reference to the file of each row of a block, if it is there."""
        del ignored
        path = unit.file.path
        kinds = dict(self.kinds)
        folder = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
        data = storage_for(path).read_range(path, unit.start, unit.end - unit.start)
        rows = unit.file.block_rows(data, unit.start, unit.line)
        for found in with_sizes(self._listed(row, f"{path} line {row.line}", folder, kinds) for row in rows):
            if isinstance(found, BadRecordError):
                refuse(found)
                continue
            row, size = found
            yield make_reference(
                self.options, row.key, path=row.file, size=size, split=row.split, labels=row.labels, extra=row.extra
            )

    def _listed(
        self, row: Row, where: str, folder: str, kinds: Mapping[str, ColumnKind]
    ) -> ListedFile | BadRecordError:
        """Return what a row lists, or its rejection."""
        key = None
        try:
            key = row_path(row, self.roles, where)
            names, _ = row_labels(row, self.roles, self.separator, where)
            labels = tuple(self.classes.name(name, where) for name in names)
        except BadRecordError as error:
            return with_key(error, key)
        file = key if key.startswith("/") or "://" in key else storage_for(folder).join(folder, key)
        split = listed_split(str(row.values[self.roles.split])) if self.roles.split else ""
        return ListedFile(where, key, file, split, labels, extra_json(row.values, kinds))

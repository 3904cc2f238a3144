"""Parquet files with the bytes of images, as Hugging Face's datasets are stored.

The column of images holds bytes, or structs of `bytes` and `path`. The names of classes are in the schema's metadata under
`huggingface` (a feature of the type ClassLabel); without it, whole numbers are labels themselves and strings are names. A column
`objects` with boxes is an annotation, whose classes need these names or those of `--labels`. A key is FILE:ROW.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow.compute  # type: ignore[import-untyped]

from beam_jobs.annotations import contents as kinds
from beam_jobs.annotations.annotation import ImageAnnotation, Place
from beam_jobs.annotations.objects_column import read_objects
from beam_jobs.image_records.annotated.converter import ANNOTATION, CarriedAnnotation
from beam_jobs.image_records.annotated.schema import AnnotationSchema
from beam_jobs.options import SKIP, ConvertOptions
from beam_jobs.parquet_files.footer import read_footer
from beam_jobs.parquet_files.reader import ParquetReader, open_parquet
from beam_jobs.parquet_files.values import UnreadableValue, convert_column
from beam_jobs.references.labels import Labels
from beam_jobs.references.notes import IMAGE_COLUMNS, Note, ignore_note
from beam_jobs.references.ranged_file import file_size
from beam_jobs.references.reference import NO_FEATURES, Reference
from beam_jobs.references.rejection import Reject, add_key, make_file_rejection, raise_rejection
from beam_jobs.sources.classes import Classes
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.lists.columns import column_values as further_values
from beam_jobs.sources.lists.columns import features
from beam_jobs.sources.named_splits import LOOKED_AT, NamedSplits, file_split, split_in_file_name
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.parquet.columns import OBJECTS, ParquetColumns, find_columns
from beam_jobs.sources.source import Source, make_reference
from beam_jobs.values.column_kinds import FLOAT, FLOAT32, INT, LIST_KINDS, STR, ColumnKind, float32_problem
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, CorruptionError, SourceError, UsageError
from tpudata.format import Feature

# Rows whose images are in memory at once, if these are not more than 64 MB.
_BATCH_ROWS = 32


class ParquetFile(NamedTuple):
    """A file.

    Attributes:
        path: the file.
        name: prefix of keys.
    """

    path: str
    name: str


class ParquetUnit(NamedTuple):
    """A row group.

    Attributes:
        path: the file.
        size: its bytes.
        name: prefix of keys.
        split: split that its name stands for; empty without one.
        group: index of the row group; None if the file is damaged.
        first: index of its first row.
    """

    path: str
    size: int
    name: str
    split: str
    group: int | None
    first: int


@dataclasses.dataclass(frozen=True)
class ParquetImages(Source):
    """Rows of Parquet files: a Source whose parts are files and whose units are row groups.

    The command reads the footer of the first file; the footers of the others are read when they are listed.

    Attributes:
        options: options with the splits and the seed of the order.
        source_options: columns and labels.
        files: the files.
        splits: splits in the names of the files.
        columns: columns of the first file; all have the same.
        classes: mapping from labels to class names.
        note: gets columns that are not stored.
    """

    options: ConvertOptions
    source_options: SourceOptions
    files: InputFiles
    splits: NamedSplits
    columns: ParquetColumns
    classes: Classes
    note: Note = ignore_note

    def noting(self, note: Note) -> ParquetImages:
        """Return the source that notes."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions, files: InputFiles) -> ParquetImages:
        """Read the footer of the first file, and look at the names of the others.

        Args:
            options: options of the conversion.
            source_options: columns and labels.
            files: the files.

        Raises:
            SourceError: there is no column of images or labels (names the columns that there are); or some names of files are
                splits, and some are not.
            CorruptionError: the first file is truncated or damaged.
            UsageError: the options assign splits, but the names of the files are splits.
        """
        first_files = list(itertools.islice(files, LOOKED_AT + 1))
        first = first_files[0][0]
        for name in ("split_column", "label_separator", "raw_tsv"):
            if getattr(source_options, name):
                raise UsageError(f"--{name.replace('_', '-')} is for lists, and {first} is a Parquet file. Omit it.")
        with open_parquet(first, file_size(first)) as file:
            columns = find_columns(file.schema, source_options, first)
        splits = NamedSplits.find(
            options, [name for _, name in first_files], file_split, split_in_file_name, accidental=False
        )
        classes = Classes.open(source_options, integers=columns.integers and columns.names is None)
        _check_objects(columns, classes, first)
        return cls(options, source_options, files, splits, columns, classes)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The schema of the extra columns."""
        return features(dict(self.columns.further))

    @property
    def annotations(self) -> AnnotationSchema | None:
        """The features of the objects and the extra columns, if there are objects."""
        objects = self.columns.objects
        if objects is None:
            return None
        has_kind = {
            kinds.OBJECTS: True,
            kinds.OBJECT_CLASSES: objects.has_classes,
            kinds.AREAS: objects.has_areas,
            kinds.CROWDS: objects.has_crowds,
        }
        return AnnotationSchema(
            tuple(sorted(kind for kind, is_there in has_kind.items() if is_there)),
            object_labels=self._pick_listed_labels(is_of_pictures=False) or Labels(objects.names or ()),
            class_labels=self._pick_listed_labels(is_of_pictures=True) or Labels(self.columns.names or ()),
            label_offset=self.options.label_offset,
            further=self.features,
        )

    def _pick_listed_labels(self, *, is_of_pictures: bool) -> Labels | None:
        """Return the classes of `--labels FILE`, which are those of objects if pictures have none."""
        return self.classes.labels if is_of_pictures == (self.columns.label is not None) else None

    @property
    def has_classes(self) -> bool:
        """Whether there is a column of labels, or one of objects with classes."""
        objects = self.columns.objects
        return self.columns.label is not None or (objects is not None and objects.has_classes)

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the names of the files stand for."""
        return self.splits.named

    @property
    def labels(self) -> Labels | None:
        """Those of `--labels FILE`, or of the schema's metadata."""
        if self.annotations is not None:
            return self.annotations.labels
        return self.classes.labels or (None if self.columns.names is None else Labels(self.columns.names))

    @property
    def integer_labels(self) -> bool:
        """Whether the labels are whole numbers without names."""
        return self.classes.collects_integers

    def parts(self) -> Iterator[ParquetFile]:
        """Yield the files."""
        return (ParquetFile(path, name) for path, name in self.files)

    def units(self, part: ParquetFile, ignored: list[str]) -> Iterator[ParquetUnit]:
        """Yield the row groups of a file.

        Args:
            part: one of `parts()`.
            ignored: nothing is ignored here.

        Raises:
            SourceError: the file has other columns or class names than the first one, or its name leaves a doubt about splits.
            CorruptionError: the file is truncated or damaged, unless bad records are skipped.
        """
        del ignored
        size, split, row = file_size(part.path), self.splits.of(part.name), 0
        try:
            with open_parquet(part.path, size) as file:
                groups = file.footer.groups
        except (CorruptionError, SourceError):
            if self.options.on_bad_record != SKIP:
                raise
            # It is rejected when it is listed.
            yield ParquetUnit(part.path, size, part.name, split, None, 0)
            return
        self._check_columns(file, part.path)
        for name in file.schema.names:
            if name not in self.columns.read:
                self.note(IMAGE_COLUMNS, name)
        for group_index, group in enumerate(groups):
            yield ParquetUnit(part.path, size, part.name, split, group_index, row)
            row += group.rows

    def _check_columns(self, file: ParquetReader, path: str) -> None:
        if find_columns(file.schema, self.source_options, path) != self.columns:
            raise SourceError(
                f"{path} and the first file of {self.options.input} have other columns or class names. Convert them one by one."
            )

    def references(
        self, unit: ParquetUnit, ignored: list[str], reject: Reject = raise_rejection
    ) -> Iterator[Reference]:
        """Yield a reference, with its bytes, to the image of each row of a row group.

        If bad records are skipped, the row group is read once before, and if it is damaged, none of its rows is listed.
        """
        del ignored
        skips = self.options.on_bad_record == SKIP
        try:
            with open_parquet(unit.path, unit.size) as file:
                if skips and unit.group is not None:
                    file.check(unit.group, self.columns.read, _BATCH_ROWS)
                yield from self._list_rows(file, unit, reject)
        except (CorruptionError, SourceError) as error:
            if not skips:
                raise
            lost = ""
            if unit.group is not None:
                rows = read_footer(unit.path, unit.size).groups[unit.group].rows
                lost = f"; row group {unit.group} of {count_text(rows, 'row')} is not stored"
            reject(make_file_rejection(unit.path, error, lost))

    def _list_rows(self, file: ParquetReader, unit: ParquetUnit, reject: Reject) -> Iterator[Reference]:
        """Yield a reference with its image for each row of a row group."""
        number, columns = unit.first, self.columns
        for batch in () if unit.group is None else file.read_batches(unit.group, columns.read, _BATCH_ROWS):
            rows = [list(_iterate_images(batch.column(columns.image)))]
            rows += [convert_column(batch.column(columns.label))] if columns.label is not None else []
            objects = [None] * len(rows[0]) if columns.objects is None else batch.column(OBJECTS).to_pylist()
            texts = (STR, "strings")
            rows += [convert_column(batch.column(name), as_text=kind.kind in texts) for name, kind in columns.further]
            for listed, (image, elsewhere), *values in zip(objects, *rows, strict=True):
                origin, key = f"{unit.path} row {number}", f"{unit.name}:{number}"
                labels, further = ([], values) if columns.label is None else (values[:1], values[1:])
                try:
                    data = _check_bytes(image, elsewhere, origin)
                    names = tuple(self._resolve_class(value, origin) for value in labels)
                    features = self._read_further(further, origin)
                    if columns.objects is not None:
                        features = {ANNOTATION: self._make_annotation(listed, names, features, origin)}
                    yield make_reference(
                        self.options,
                        key,
                        path=unit.path,
                        offset=number,
                        size=len(data),
                        split=unit.split,
                        labels=names,
                        features=features,
                        data=data,
                    )
                except BadRecordError as error:
                    reject(add_key(error, key))
                number += 1

    def _make_annotation(
        self, objects: Any, classes: tuple[str, ...], further: Mapping[str, Any], origin: str
    ) -> CarriedAnnotation:
        """Return the annotation of a row with objects; BadRecordError if they are invalid."""
        assert self.columns.objects is not None
        place = Place(origin)
        try:
            names = self.columns.objects.names
            if names is None and (listed := self._pick_listed_labels(is_of_pictures=False)):
                names = listed.names
            objects_of_row = () if objects is None else read_objects(objects, names)
        except ValueError as error:
            raise place.make_error(str(error)) from None
        return CarriedAnnotation(
            ImageAnnotation("", place, objects=objects_of_row, classes=classes, values=tuple(further.items()))
        )

    def _read_further(self, values: Sequence[Any], origin: str) -> Mapping[str, Any]:
        """Return the values of the extra columns of a row; BadRecordError if a column cannot hold its value."""
        for (name, kind), value in zip(self.columns.further, values, strict=True):
            problem = _find_problem(value, kind)
            if problem:
                raise BadRecordError(origin, f"column {name!r} {problem}")
        declared = dict(self.columns.further)
        return further_values(dict(zip(declared, values, strict=True)), declared) if declared else NO_FEATURES

    def _resolve_class(self, value: Any, origin: str) -> str:
        """Return the class name of a row's label; BadRecordError if it is invalid."""
        if isinstance(value, UnreadableValue):
            raise BadRecordError(origin, f"its label cannot be read: {value.problem}, {value.detail}")
        if self.columns.names is None or isinstance(value, str):
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise BadRecordError(origin, f"its label is neither text nor a whole number: {value!r}")
            return self.classes.resolve(str(value), origin)
        if not isinstance(value, int) or not 0 <= value < len(self.columns.names):
            raise BadRecordError(origin, f"unknown label: {value!r}; labels go from 0 to {len(self.columns.names) - 1}")
        return self.classes.resolve(self.columns.names[value], origin)


def _check_objects(columns: ParquetColumns, classes: Classes, path: str) -> None:
    """Raise SourceError if a file has objects whose classes, or those of its pictures, are not known before they are read."""
    if columns.objects is None:
        return
    if columns.label is not None and columns.names is None:
        raise SourceError(
            f"{path}: it has objects, and the column {columns.label!r} of labels without names in the file's metadata. Pass"
            " --unlabelled to store the objects alone."
        )
    if columns.objects.has_classes and columns.objects.names is None and (columns.label or classes.labels is None):
        raise SourceError(
            f"{path}: the classes of its objects have no names in the file's metadata. Pass them with --labels FILE, a line each."
        )


def _find_problem(value: Any, kind: ColumnKind) -> str:
    """Return why an extra column cannot hold a value; an empty string if it can."""
    if isinstance(value, UnreadableValue):
        return f"cannot be read: {value.problem}, {value.detail}"
    items = value if isinstance(value, list) else [value]
    if value is None:
        is_missed = kind.kind == INT and kind.missing is None
        return "has no value; pass NAME=int=0 in --column-types to store 0 there" if is_missed else ""
    if None in items:
        return f"has a list whose item {items.index(None)} is null"
    if LIST_KINDS.get(kind.kind, kind.kind) not in (FLOAT, FLOAT32):
        return ""
    problems = ((number, float32_problem(number, rounds=kind.kind == FLOAT32)) for number in items)
    return next((f"is {number}, which {problem}" for number, problem in problems if problem), "")


def _iterate_images(column: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield the bytes of each image, and its path if there is one and no bytes."""
    if not pyarrow.types.is_struct(column.type):
        yield from ((data, None) for data in column.to_pylist())
        return
    data = pyarrow.compute.struct_field(column, "bytes")
    has_path = any(field.name == "path" and pyarrow.types.is_string(field.type) for field in column.type)
    if data.null_count == 0 or not has_path:
        yield from ((image, None) for image in data.to_pylist())
        return
    # Bytes, since a path need not be UTF-8.
    paths = pyarrow.compute.struct_field(column, "path").cast(pyarrow.binary())
    yield from zip(data.to_pylist(), paths.to_pylist(), strict=True)


def _check_bytes(data: bytes | None, path: bytes | None, origin: str) -> bytes:
    """Return the bytes of an image; BadRecordError if there are none. `origin` names the row."""
    if data is None and path:
        shown = path.decode("utf-8", "backslashreplace")
        raise BadRecordError(origin, f"no bytes, and only a path: {shown}; store the images' bytes in the Parquet file")
    if not data:
        raise BadRecordError(origin, "the image is empty" if data is not None else "no image: a null")
    return data

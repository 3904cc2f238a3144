"""Parquet files with the bytes of images, as Hugging Face's datasets are stored.

The column of images holds bytes, or structs of `bytes` and `path`. The schema's metadata may have names of classes under
`huggingface` (a feature of the type ClassLabel); without them, integers are labels themselves and strings are names. A column
`objects` with boxes is an annotation, whose classes need names there or in `--labels`. A key is FILE:ROW.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow.compute  # type: ignore[import-untyped]

from beam_jobs.annotations.annotation import ImageAnnotation, Place
from beam_jobs.annotations.contents import AREAS, CROWDS, OBJECT_CLASSES
from beam_jobs.annotations.contents import OBJECTS as OBJECT_CONTENTS
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
from beam_jobs.sources.lists.columns import convert_row, make_features
from beam_jobs.sources.named_splits import NamedSplits, find_file_split, find_split_in_file_name, take_first_names
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.parquet.columns import OBJECTS, ParquetColumns, find_columns
from beam_jobs.sources.source import Source, make_reference
from beam_jobs.values.column_kinds import FLOAT, FLOAT32, INT, STR, ColumnKind, float32_problem, get_item_kind
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, CorruptionError, SourceError, UsageError
from tpudata.format import Feature

# Number of rows whose images are in memory together, unless these exceed 64 MB.
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
    """A row group or, if bad records are skipped, a file that cannot be read.

    Attributes:
        path: the file.
        size: its size in bytes.
        name: prefix of keys.
        split: split that its name stands for; empty if there is none.
        group: index of the row group; None for a file that cannot be read.
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

    The command reads the footer of the first file; workers read the footers of the other files when they list them.

    Attributes:
        options: options with the splits and the seed of the order.
        source_options: options of columns and labels.
        files: the files.
        splits: splits that the names of the files stand for.
        columns: columns of the first file, which all files have.
        classes: mapping from labels to class names.
        note: called with the kind of a note and an example: a column that is not stored.
    """

    options: ConvertOptions
    source_options: SourceOptions
    files: InputFiles
    splits: NamedSplits
    columns: ParquetColumns
    classes: Classes
    note: Note = ignore_note

    def noting(self, note: Note) -> ParquetImages:
        """Return the source that calls `note` with columns that are not stored."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def open(cls, options: ConvertOptions, source_options: SourceOptions, files: InputFiles) -> ParquetImages:
        """Open the source, after reading the footer of the first file and looking at the first names.

        Args:
            options: options of the conversion.
            source_options: options of columns and labels.
            files: the files.

        Raises:
            SourceError: there is no column of images or labels, classes of objects have no names, only some names of files stand
                for splits, or the file of `--labels` is invalid.
            CorruptionError: the first file is truncated or damaged.
            UsageError: the options assign splits, but the names of the files stand for splits; or a flag is for lists.
        """
        first_files = take_first_names(files)
        first_path, _ = first_files[0]
        for name in ("split_column", "label_separator", "raw_tsv"):
            if getattr(source_options, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} is for lists, and {first_path} is a Parquet file. Omit it."
                )
        with open_parquet(first_path, file_size(first_path)) as file:
            columns = find_columns(file.schema, source_options, first_path)
        splits = NamedSplits.infer(
            options,
            [name for _, name in first_files],
            find_file_split,
            find_split_in_file_name,
            may_be_accidental=False,
        )
        # With class names in the metadata, integers are indices of the names, not labels themselves.
        classes = Classes.open(source_options, has_integers=columns.has_integer_labels and columns.class_names is None)
        _check_objects(columns, classes, first_path)
        return cls(options, source_options, files, splits, columns, classes)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The schema of the extra columns."""
        return make_features(dict(self.columns.extra))

    @property
    def annotations(self) -> AnnotationSchema | None:
        """The features of the objects and the extra columns; None without objects."""
        objects = self.columns.objects
        if objects is None:
            return None
        presence_by_kind = {
            OBJECT_CONTENTS: True,
            OBJECT_CLASSES: objects.has_classes,
            AREAS: objects.has_areas,
            CROWDS: objects.has_crowds,
        }
        return AnnotationSchema(
            tuple(sorted(kind for kind, is_present in presence_by_kind.items() if is_present)),
            object_labels=self._object_labels_of_file or Labels(objects.class_names or ()),
            class_labels=self._picture_labels_of_file or Labels(self.columns.class_names or ()),
            label_offset=self.options.label_offset,
            further=self.features,
        )

    @property
    def _picture_labels_of_file(self) -> Labels | None:
        """The classes of `--labels FILE` if there is a column of labels; otherwise None, since the file then names objects."""
        return None if self.columns.label is None else self.classes.labels

    @property
    def _object_labels_of_file(self) -> Labels | None:
        """The classes of `--labels FILE` if there is no column of labels; otherwise None, since the file then names pictures."""
        return self.classes.labels if self.columns.label is None else None

    @property
    def has_classes(self) -> bool:
        """Whether there is a column of labels, or a column of objects with classes."""
        objects = self.columns.objects
        return self.columns.label is not None or (objects is not None and objects.has_classes)

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the names of the files stand for."""
        return self.splits.named

    @property
    def labels(self) -> Labels | None:
        """The classes of the annotations if there are objects, else of `--labels` or the metadata; None if both lack names."""
        if self.annotations is not None:
            return self.annotations.labels
        return self.classes.labels or (None if self.columns.class_names is None else Labels(self.columns.class_names))

    @property
    def integer_labels(self) -> bool:
        """Whether class names are integers that are the labels themselves."""
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
            SourceError: the columns or class names of the file differ from those of the first one, or its name is ambiguous about
                splits.
            CorruptionError: the file is truncated or damaged, unless bad records are skipped.
        """
        del ignored
        size = file_size(part.path)
        split = self.splits.find_split(part.name)
        try:
            with open_parquet(part.path, size) as file:
                groups = file.footer.groups
        except (CorruptionError, SourceError):
            if self.options.on_bad_record != SKIP:
                raise
            # The listing of this unit rejects the file.
            yield ParquetUnit(part.path, size, part.name, split, group=None, first=0)
            return
        # The footer stays in memory after the file is closed.
        self._check_columns(file, part.path)
        # The closing table lists columns that are not converted.
        for name in file.schema.names:
            if name not in self.columns.column_names:
                self.note(IMAGE_COLUMNS, name)
        first_row = 0
        for group_index, group in enumerate(groups):
            yield ParquetUnit(part.path, size, part.name, split, group_index, first_row)
            first_row += group.row_count

    def _check_columns(self, file: ParquetReader, path: str) -> None:
        """Raise SourceError if the columns or class names of a file differ from those of the first one."""
        if find_columns(file.schema, self.source_options, path) != self.columns:
            raise SourceError(
                f"{path} and the first file of {self.options.input} have different columns or class names. Convert them one by one."
            )

    def references(
        self, unit: ParquetUnit, ignored: list[str], reject: Reject = raise_rejection
    ) -> Iterator[Reference]:
        """Yield a reference to the image of each row of a row group, with the image's bytes.

        If bad records are skipped, the row group is read once in advance, so that no row of a damaged row group is listed.

        Raises:
            CorruptionError, SourceError: the file cannot be read, or has changed since `units`, unless bad records are skipped.
        """
        del ignored
        rejects_damage = self.options.on_bad_record == SKIP
        try:
            with open_parquet(unit.path, unit.size) as file:
                if rejects_damage and unit.group is not None:
                    file.check(unit.group, self.columns.column_names, _BATCH_ROWS)
                yield from self._list_rows(file, unit, reject)
        except (CorruptionError, SourceError) as error:
            if not rejects_damage:
                raise
            suffix = ""
            if unit.group is not None:
                row_count = read_footer(unit.path, unit.size).groups[unit.group].row_count
                suffix = f"; row group {unit.group} of {count_text(row_count, 'row')} is not stored"
            reject(make_file_rejection(unit.path, error, suffix))

    def _list_rows(self, file: ParquetReader, unit: ParquetUnit, reject: Reject) -> Iterator[Reference]:
        """Yield a reference with its image for each row of a row group.

        Raises:
            SourceError: the file could not be read when its row groups were listed, and now it can.
        """
        if unit.group is None:
            raise SourceError(f"{unit.path}: changed during the run: it could not be read before. Convert again.")
        row = unit.first
        columns = self.columns
        for batch in file.read_batches(unit.group, columns.column_names, _BATCH_ROWS):
            images = list(_iterate_images(batch.column(columns.image)))
            no_values = [None] * len(images)
            labels = no_values if columns.label is None else convert_column(batch.column(columns.label))
            objects = no_values if columns.objects is None else batch.column(OBJECTS).to_pylist()
            extra_columns = [
                convert_column(batch.column(name), as_text=get_item_kind(column_kind.kind) == STR)
                for name, column_kind in columns.extra
            ]
            for (image, path), label, row_objects, *extra in zip(images, labels, objects, *extra_columns, strict=True):
                origin, key = f"{unit.path} row {row}", f"{unit.name}:{row}"
                try:
                    data = _require_bytes(image, path, origin)
                    classes = () if columns.label is None else (self._resolve_class(label, origin),)
                    features = self._convert_extra(extra, origin)
                    if columns.objects is not None:
                        features = {ANNOTATION: self._make_annotation(row_objects, classes, features, origin)}
                    yield make_reference(
                        self.options,
                        key,
                        path=unit.path,
                        # `data` has the bytes. Any offset but WHOLE_FILE makes messages name the row, not only the file.
                        offset=row,
                        size=len(data),
                        split=unit.split,
                        labels=classes,
                        features=features,
                        data=data,
                    )
                except BadRecordError as error:
                    reject(add_key(error, key))
                row += 1

    def _make_annotation(
        self, row_objects: Any, classes: tuple[str, ...], extra: Mapping[str, Any], origin: str
    ) -> CarriedAnnotation:
        """Return the annotation of a row with objects; BadRecordError if they are invalid.

        Args:
            row_objects: value of the column of objects; None for no objects.
            classes: class names of the picture.
            extra: values of the extra columns, by name.
            origin: file and row, for messages.
        """
        assert self.columns.objects is not None
        place = Place(origin)
        try:
            names = self.columns.objects.class_names
            if names is None and (file_labels := self._object_labels_of_file):
                names = file_labels.names
            objects = () if row_objects is None else read_objects(row_objects, names)
        except ValueError as error:
            raise place.make_error(str(error)) from None
        # The annotation has no picture's name: the reference has both the picture and this annotation.
        return CarriedAnnotation(
            ImageAnnotation("", place, objects=objects, classes=classes, values=tuple(extra.items()))
        )

    def _convert_extra(self, values: Sequence[Any], origin: str) -> Mapping[str, Any]:
        """Return the values of a row's extra columns by name; BadRecordError if a column cannot hold its value."""
        for (name, column_kind), value in zip(self.columns.extra, values, strict=True):
            problem = _find_problem(value, column_kind)
            if problem:
                raise BadRecordError(origin, f"column {name!r} {problem}")
        kinds = dict(self.columns.extra)
        return convert_row(dict(zip(kinds, values, strict=True)), kinds) if kinds else NO_FEATURES

    def _resolve_class(self, value: Any, origin: str) -> str:
        """Return the class name for a row's label; BadRecordError if it is invalid."""
        if isinstance(value, UnreadableValue):
            raise BadRecordError(origin, f"its label cannot be read: {value.problem}, {value.detail}")
        # Names in the metadata are for integers: a string is a class name even if the metadata has names.
        if self.columns.class_names is None or isinstance(value, str):
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise BadRecordError(origin, f"its label is neither text nor a whole number: {value!r}")
            return self.classes.resolve(str(value), origin)
        if not isinstance(value, int) or not 0 <= value < len(self.columns.class_names):
            raise BadRecordError(
                origin, f"unknown label: {value!r}; labels go from 0 to {len(self.columns.class_names) - 1}"
            )
        return self.classes.resolve(self.columns.class_names[value], origin)


def _check_objects(columns: ParquetColumns, classes: Classes, path: str) -> None:
    """Raise SourceError if a file has objects, and its metadata and --labels do not name the classes of objects and pictures."""
    if columns.objects is None:
        return
    if columns.label is not None and columns.class_names is None:
        raise SourceError(
            f"{path}: it has objects, and the column {columns.label!r} of labels without names in the file's metadata. Pass"
            " --unlabelled to store only the objects."
        )
    # If pictures have labels, the names in --labels FILE are for the pictures.
    if (
        columns.objects.has_classes
        and columns.objects.class_names is None
        and (columns.label or classes.labels is None)
    ):
        raise SourceError(
            f"{path}: the classes of its objects have no names in the file's metadata. Pass them with --labels FILE, a line each."
        )


def _find_problem(value: Any, column_kind: ColumnKind) -> str:
    """Return why an extra column cannot hold a value; an empty string if it can."""
    if isinstance(value, UnreadableValue):
        return f"cannot be read: {value.problem}, {value.detail}"
    if value is None:
        needs_value = column_kind.kind == INT and column_kind.missing is None
        return "has no value; pass NAME=int=0 in --column-types to store 0 there" if needs_value else ""
    elements = value if isinstance(value, list) else [value]
    if None in elements:
        return f"has a list whose item {elements.index(None)} is null"
    if get_item_kind(column_kind.kind) not in (FLOAT, FLOAT32):
        return ""
    problems = ((number, float32_problem(number, rounds=column_kind.kind == FLOAT32)) for number in elements)
    return next((f"is {number}, which {problem}" for number, problem in problems if problem), "")


def _iterate_images(column: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield (bytes, path) of each image; the path matters only if there are no bytes, and may be None otherwise."""
    if not pyarrow.types.is_struct(column.type):
        yield from ((data, None) for data in column.to_pylist())
        return
    images = pyarrow.compute.struct_field(column, "bytes")
    has_path = any(field.name == "path" and pyarrow.types.is_string(field.type) for field in column.type)
    if images.null_count == 0 or not has_path:
        yield from ((data, None) for data in images.to_pylist())
        return
    # The paths become bytes, since a path need not be UTF-8.
    paths = pyarrow.compute.struct_field(column, "path").cast(pyarrow.binary())
    yield from zip(images.to_pylist(), paths.to_pylist(), strict=True)


def _require_bytes(data: bytes | None, path: bytes | None, origin: str) -> bytes:
    """Return the bytes of an image; BadRecordError if there are none. `origin` names the row."""
    if data is None and path:
        path_text = path.decode("utf-8", "backslashreplace")
        raise BadRecordError(
            origin, f"no bytes, and only a path: {path_text}; store the images' bytes in the Parquet file"
        )
    if not data:
        raise BadRecordError(origin, "the image is empty" if data is not None else "no image: a null")
    return data

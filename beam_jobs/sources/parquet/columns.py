"""The columns of images and labels of a Parquet file."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import pyarrow  # type: ignore[import-untyped]

from beam_jobs.annotations.objects_column import CATEGORIES, CROWDS
from beam_jobs.parquet_files.class_names import describe_columns, find_class_names
from beam_jobs.parquet_files.values import is_supported_list, is_supported_type
from beam_jobs.sources.options import SourceOptions
from beam_jobs.values.column_kinds import INT, LIST_KINDS, STR, ColumnKind
from tpudata.console.nearest import did_you_mean
from tpudata.errors import SourceError

_IMAGES = ("image", "img", "bytes", "jpg", "png", "image_bytes", "image/encoded")
OBJECTS = "objects"
_LABELS = ("label", "labels", "class", "fine_label")


class ObjectsColumn(NamedTuple):
    """The column `objects` of a file, see `beam_jobs.annotations.objects_column`.

    Attributes:
        class_names: class names in the schema's metadata; None if classes are not numbers, or have no names there.
        has_classes: whether objects have classes.
        has_areas: whether objects have areas.
        has_crowds: whether objects are marked as single objects or crowds.
    """

    class_names: tuple[str, ...] | None
    has_classes: bool
    has_areas: bool
    has_crowds: bool


class ParquetColumns(NamedTuple):
    """The columns of a file to read.

    Attributes:
        image: name of the column of images.
        label: name of the column of labels; None if there is none.
        class_names: class names in the schema's metadata; None if it has none.
        has_integer_labels: whether labels are integers.
        extra: name and kind of each extra column, sorted by name.
        objects: the column of objects; None if there is none.
    """

    image: str
    label: str | None
    class_names: tuple[str, ...] | None
    has_integer_labels: bool
    extra: tuple[tuple[str, ColumnKind], ...] = ()
    objects: ObjectsColumn | None = None

    @property
    def column_names(self) -> list[str]:
        """Names of the columns to read."""
        label = [] if self.label is None else [self.label]
        objects = [] if self.objects is None else [OBJECTS]
        return [self.image, *label, *objects, *(name for name, _ in self.extra)]


def find_columns(schema: Any, options: SourceOptions, path: str) -> ParquetColumns:
    """Return the columns of images, labels, objects and extra features.

    Images and labels are in the columns that the options name, otherwise in those that Hugging Face's metadata or the usual names
    suggest. Only columns that the options name become extra features.

    Raises:
        SourceError: a column is missing, appears twice, or is of a type that does not fit.
    """
    descriptions = describe_columns(schema)
    types = {field.name: field.type for field in schema}
    repeated_names = {name for name in types if schema.names.count(name) > 1}

    def find_column(feature_type: str) -> str | None:
        """Return the first column whose feature in Hugging Face's metadata has this type."""
        names = (name for name, feature in descriptions.items() if feature.get("_type") == feature_type)
        return next((name for name in names if name in types), None)

    image = options.path_column or find_column("Image")
    image = image or next((name for name in _IMAGES if name in types and _holds_bytes(types[name])), None)
    columns_text = f"it has {', '.join(f'{name} ({column_type})' for name, column_type in types.items())}"
    if image is None or image not in types or not _holds_bytes(types[image]):
        problem = f"{image!r} is not a column of bytes" if image is not None else "no column of images"
        raise SourceError(
            f"{path}: {problem}; {columns_text}. Name the column of the images' bytes with --path-column."
        )
    _reject_repeated(image, repeated_names, path)
    objects = _find_objects(schema)
    extra = tuple(sorted(options.column_kinds.items()))
    for name, column_kind in extra:
        _check_extra(name, column_kind, types, repeated_names, path)
    columns_without_labels = ParquetColumns(
        image, label=None, class_names=None, has_integer_labels=False, extra=extra, objects=objects
    )
    if options.unlabelled:
        return columns_without_labels
    label = options.label_column or find_column("ClassLabel")
    label = label or next((name for name in _LABELS if name in types), None)
    # A file with objects needs no image labels.
    if label is None and objects is not None:
        return columns_without_labels
    if label is None or label not in types:
        raise SourceError(
            f"{path}: no column of labels; {columns_text}. Name it with --label-column, or pass --unlabelled."
        )
    _reject_repeated(label, repeated_names, path)
    if not is_supported_type(types[label]):
        raise SourceError(
            f"{path}: column {label!r} has an unsupported type (got {types[label]}, expected text or whole numbers). Name another"
            " one with --label-column, or pass --unlabelled."
        )
    has_integer_labels = pyarrow.types.is_integer(types[label])
    return ParquetColumns(
        image, label, find_class_names(descriptions.get(label, {})), has_integer_labels, extra, objects
    )


def _find_objects(schema: Any) -> ObjectsColumn | None:
    """Return the column `objects` if it is a list of structs, or a struct of lists, with `bbox`; None otherwise."""
    if schema.names.count(OBJECTS) != 1:
        return None
    column_type = schema.field(OBJECTS).type
    if pyarrow.types.is_list(column_type) or pyarrow.types.is_large_list(column_type):
        column_type = column_type.value_type
    if not pyarrow.types.is_struct(column_type):
        return None
    fields = {field.name for field in column_type}
    if "bbox" not in fields:
        return None
    category = next((name for name in CATEGORIES if name in fields), None)
    column_description = describe_columns(schema, with_lists=True).get(OBJECTS, {})
    # A list describes its structs in `feature`.
    struct_description = column_description.get("feature", column_description)
    description = struct_description.get(category) if isinstance(struct_description, dict) and category else None
    class_names = find_class_names(description) if isinstance(description, dict) else None
    return ObjectsColumn(
        class_names, has_classes=category is not None, has_areas="area" in fields, has_crowds=bool(fields & {*CROWDS})
    )


def _check_extra(
    name: str, column_kind: ColumnKind, types: Mapping[str, Any], repeated_names: Container[str], path: str
) -> None:
    """Raise SourceError if a declared extra column is missing, repeated, or of a type that does not fit its kind.

    Args:
        name: name of the column.
        column_kind: its declared kind.
        types: Arrow's type of each column, by name.
        repeated_names: names that several columns have.
        path: path of the file, for messages.
    """
    if name not in types:
        raise SourceError(
            f"{path}: --column-types: no column {name!r}; it has {', '.join(types)}.{did_you_mean(name, types)} Name one of them."
        )
    _reject_repeated(name, repeated_names, path)
    if not _fits(types[name], column_kind.kind):
        raise SourceError(
            f"{path}: --column-types: column {name!r} is {types[name]}, which cannot be read as {column_kind.kind}. Declare another"
            " type, or omit it."
        )


def _fits(column_type: Any, kind: str) -> bool:
    """Return whether values of an Arrow type can be read as this kind (of `--column-types`)."""
    if kind in LIST_KINDS:
        return is_supported_list(column_type) and _fits(column_type.value_type, LIST_KINDS[kind])
    if kind == STR:
        return is_supported_type(column_type)
    types = pyarrow.types
    if kind == INT:
        # Booleans are read as 0 and 1, dates and times as integers of their unit.
        return bool(types.is_integer(column_type) or types.is_boolean(column_type) or types.is_temporal(column_type))
    return bool(types.is_integer(column_type) or types.is_floating(column_type) or types.is_decimal(column_type))


def _reject_repeated(name: str, repeated_names: Container[str], path: str) -> None:
    """Raise SourceError if a column has one of the repeated names."""
    if name in repeated_names:
        raise SourceError(f"{path}: column {name!r} appears twice. Rename one.")


def _holds_bytes(column_type: Any) -> bool:
    """Return whether a type of Arrow is bytes, or a struct with `bytes`."""
    if pyarrow.types.is_struct(column_type):
        return any(field.name == "bytes" and _holds_bytes(field.type) for field in column_type)
    return bool(pyarrow.types.is_binary(column_type) or pyarrow.types.is_large_binary(column_type))

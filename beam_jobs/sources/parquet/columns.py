"""The columns of images and labels of a Parquet file."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import pyarrow  # type: ignore[import-untyped]

from beam_jobs.annotations.objects_column import CATEGORIES, CROWDS
from beam_jobs.parquet_files.class_names import describe_columns, find_class_names
from beam_jobs.parquet_files.values import is_list, is_supported_type
from beam_jobs.sources.options import SourceOptions
from beam_jobs.values.column_kinds import INT, LIST_KINDS, STR, ColumnKind
from tpudata.console.nearest import did_you_mean
from tpudata.errors import SourceError

_IMAGES = ("image", "img", "bytes", "jpg", "png", "image_bytes", "image/encoded")
OBJECTS = "objects"
_LABELS = ("label", "labels", "class", "fine_label")


class ObjectsColumn(NamedTuple):
    """The column `objects` of a file: see `beam_jobs.annotations.objects_column`.

    Attributes:
        names: class names that the schema's metadata give; None if classes are not numbers, or have no names there.
        has_classes: whether objects have classes.
        has_areas: whether they have areas.
        has_crowds: whether they say if they are groups.
    """

    names: tuple[str, ...] | None
    has_classes: bool
    has_areas: bool
    has_crowds: bool


class ParquetColumns(NamedTuple):
    """The columns of a file that are read.

    Attributes:
        image: name of the column of images.
        label: name of the column of labels, or None.
        names: class names that the schema's metadata give, or None.
        integers: whether labels are whole numbers.
        further: the columns that are features, by name in sorted order, with their kinds.
        objects: the column of objects, or None.
    """

    image: str
    label: str | None
    names: tuple[str, ...] | None
    integers: bool
    further: tuple[tuple[str, ColumnKind], ...] = ()
    objects: ObjectsColumn | None = None

    @property
    def read(self) -> list[str]:
        """Names of the columns that are read."""
        label = [] if self.label is None else [self.label]
        objects = [] if self.objects is None else [OBJECTS]
        return [self.image, *label, *objects, *(name for name, _ in self.further)]


def find_columns(schema: Any, options: SourceOptions, path: str) -> ParquetColumns:
    """Return the columns of images, labels and extra features.

    Raises:
        SourceError: there are no images or labels, or an extra column is missing or of another type.
    """
    described = describe_columns(schema)
    types = {field.name: field.type for field in schema}
    repeated_names = {name for name in types if schema.names.count(name) > 1}
    images = [name for name, feature in described.items() if feature.get("_type") == "Image" and name in types]
    image = options.path_column or next(iter(images), None)
    image = image or next((name for name in _IMAGES if name in types and _holds_bytes(types[name])), None)
    has = f"it has {', '.join(f'{name} ({kind})' for name, kind in types.items())}"
    if image is None or image not in types or not _holds_bytes(types[image]):
        problem = f"{image!r} is not a column of bytes" if image is not None else "no column of images"
        raise SourceError(f"{path}: {problem}; {has}. Name the column of the images' bytes with --path-column.")
    _check_once(image, repeated_names, path)
    objects = _find_objects(schema)
    further = tuple(sorted(options.column_kinds.items()))
    for name, kind in further:
        _check_further(name, kind, types, repeated_names, path)
    if options.unlabelled:
        return ParquetColumns(image, None, None, False, further, objects)
    by_type = [name for name, feature in described.items() if feature.get("_type") == "ClassLabel" and name in types]
    label = options.label_column or next(iter(by_type), None) or next((n for n in _LABELS if n in types), None)
    if label is None and objects is not None:
        return ParquetColumns(image, None, None, False, further, objects)
    if label is None or label not in types:
        raise SourceError(f"{path}: no column of labels; {has}. Name it with --label-column, or pass --unlabelled.")
    _check_once(label, repeated_names, path)
    if not is_supported_type(types[label]):
        raise SourceError(
            f"{path}: column {label!r} has an unsupported type (got {types[label]}, expected text or whole numbers). Name another"
            " one with --label-column, or pass --unlabelled."
        )
    integers = pyarrow.types.is_integer(types[label])
    return ParquetColumns(image, label, find_class_names(described.get(label, {})), integers, further, objects)


def _find_objects(schema: Any) -> ObjectsColumn | None:
    """Return the column of objects, a list of structs or a struct of lists with `bbox`; None without one."""
    if schema.names.count(OBJECTS) != 1:
        return None
    kind = schema.field(OBJECTS).type
    kind = kind.value_type if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) else kind
    if not pyarrow.types.is_struct(kind):
        return None
    fields = {field.name for field in kind}
    if "bbox" not in fields:
        return None
    category = next((name for name in CATEGORIES if name in fields), None)
    described = describe_columns(schema, with_lists=True).get(OBJECTS, {})
    described = described.get("feature", described)
    description = described.get(category) if isinstance(described, dict) and category else None
    names = find_class_names(description) if isinstance(description, dict) else None
    return ObjectsColumn(names, category is not None, "area" in fields, bool(fields & {*CROWDS}))


def _check_further(
    name: str, kind: ColumnKind, types: Mapping[str, Any], repeated_names: Container[str], path: str
) -> None:
    """Raise SourceError if a declared extra column is missing, repeated, or of a type that does not fit its kind."""
    if name not in types:
        raise SourceError(
            f"{path}: --column-types: no column {name!r}; it has {', '.join(types)}.{did_you_mean(name, types)} Name one of them."
        )
    _check_once(name, repeated_names, path)
    if not _fits(types[name], kind.kind):
        raise SourceError(
            f"{path}: --column-types: column {name!r} is {types[name]}, which cannot be read as {kind.kind}. Declare another type,"
            " or omit it."
        )


def _fits(column: Any, kind: str) -> bool:
    """Return whether the values of a column can be of a kind."""
    if kind in LIST_KINDS:
        return is_list(column) and _fits(column.value_type, LIST_KINDS[kind])
    if kind == STR:
        return is_supported_type(column)
    types = pyarrow.types
    if kind == INT:
        return bool(types.is_integer(column) or types.is_boolean(column) or types.is_temporal(column))
    return bool(types.is_integer(column) or types.is_floating(column) or types.is_decimal(column))


def _check_once(name: str, repeated_names: Container[str], path: str) -> None:
    if name in repeated_names:
        raise SourceError(f"{path}: column {name!r} appears twice. Rename one.")


def _holds_bytes(kind: Any) -> bool:
    if pyarrow.types.is_struct(kind):
        return any(field.name == "bytes" and _holds_bytes(field.type) for field in kind)
    return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))

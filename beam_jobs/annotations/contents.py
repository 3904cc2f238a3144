"""Contents of a set of annotations: what occurs in them, which determines the features of the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from beam_jobs.annotations.annotation import ImageAnnotation, ObjectAnnotation
from beam_jobs.annotations.form import ListedNames
from beam_jobs.annotations.segmentation import Polygons
from beam_jobs.references.labels import check_classes, is_integer_label, make_integer_labels
from beam_jobs.values.column_kinds import fits_int64
from tpudata.errors import SourceError
from tpudata.format import Feature

# Kinds of contents.
OBJECTS, OBJECT_CLASSES, CROWDS, DIFFICULT, AREAS = "objects", "object classes", "crowds", "difficult", "areas"
MASKS, POLYGONS = "masks", "polygons"
MAPS, WIDE_MAPS, SEGMENT_MAPS = "maps", "wide maps", "segment maps"
TARGETS, SOURCE_IDS = "targets", "source ids"
CAPTIONS, CLASSES, SEVERAL_CLASSES, NO_CLASS = "captions", "classes", "several classes", "no class"
# Maximum number of digits of an integer that is a label, so that it fits int64; longer ones are names.
_MAX_DIGITS = 18
# Kinds of features; _OTHER stands for values that no feature can hold.
_INT, _FLOAT, _TEXT, _OTHER = "int64", "float", "bytes", ""
# (dtype, encoding) of a feature, by its kind.
_TYPES_BY_KIND = {_INT: ("int64", None), _FLOAT: ("float32", None), _TEXT: ("string", "utf8")}


class ValueType(NamedTuple):
    """Type of an extra value in all annotations.

    Attributes:
        kind: kind of its feature: "int64", "float" or "bytes"; empty if records cannot hold it.
        is_list: whether it is a list.
    """

    kind: str
    is_list: bool


@dataclasses.dataclass
class Contents:
    """Names, kinds and types that occur in annotations. The contents of parts can be merged in any order.

    Attributes:
        names: names that the files list.
        kinds: kinds of contents that occur, such as `OBJECTS`.
        keypoint_count: number of keypoints of each object that has some; 0 if none has.
        object_classes: names of classes of objects that occur.
        classes: names of classes of pictures that occur.
        values: type of each extra value, by its name.
    """

    names: ListedNames = dataclasses.field(default_factory=ListedNames)
    kinds: set[str] = dataclasses.field(default_factory=set)
    keypoint_count: int = 0
    object_classes: set[str] = dataclasses.field(default_factory=set)
    classes: set[str] = dataclasses.field(default_factory=set)
    values: dict[str, ValueType] = dataclasses.field(default_factory=dict)

    def add(self, annotation: ImageAnnotation) -> None:
        """Add the annotation of a picture; SourceError if its objects and earlier ones have different numbers of keypoints."""
        for annotated_object in annotation.objects:
            self._add_object(annotated_object, annotation)
        self.classes.update(annotation.classes)
        if len(annotation.classes) > 1:
            self.kinds.add(SEVERAL_CLASSES)
        else:
            self.kinds.add(CLASSES if annotation.classes else NO_CLASS)
        if annotation.captions:
            self.kinds.add(CAPTIONS)
        if annotation.target:
            self.kinds.add(TARGETS)
        if annotation.source_id:
            self.kinds.add(SOURCE_IDS)
        if annotation.map_file is not None:
            self.kinds.add(SEGMENT_MAPS if annotation.map_file.holds_segments else MAPS)
            if annotation.map_file.is_wide:
                self.kinds.add(WIDE_MAPS)
        for name, value in annotation.values:
            # An empty list fits lists of any kind, so it does not decide the type.
            if value != []:
                self._add_value_type(name, _find_value_type(value))

    def merge(self, other: Contents) -> None:
        """Add the contents of another part; SourceError if the parts differ in listed names or numbers of keypoints."""
        for field in dataclasses.fields(ListedNames):
            own_names, other_names = getattr(self.names, field.name), getattr(other.names, field.name)
            if own_names and other_names and own_names != other_names:
                raise SourceError(
                    f"the annotation files list different names of {field.name}: {len(own_names)} and {len(other_names)}, from"
                    f" {', '.join(own_names[:3])} and from {', '.join(other_names[:3])}. Pass files with the same names."
                )
            setattr(self.names, field.name, own_names or other_names)
        if self.keypoint_count and other.keypoint_count and self.keypoint_count != other.keypoint_count:
            raise SourceError(_describe_keypoint_counts(self.keypoint_count, other.keypoint_count))
        self.keypoint_count = self.keypoint_count or other.keypoint_count
        self.kinds |= other.kinds
        self.object_classes |= other.object_classes
        self.classes |= other.classes
        for name, value_type in other.values.items():
            self._add_value_type(name, value_type)

    @property
    def object_names(self) -> tuple[str, ...]:
        """Names of the classes of objects: all that the files list or, if they list none, all that occur."""
        return self.names.objects or _order_names(self.object_classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of pictures: all that the files list or, if they list none, all that occur."""
        return self.names.pictures or _order_names(self.classes)

    @property
    def several_classes(self) -> bool:
        """Whether a picture may have any number of classes, instead of one."""
        return SEVERAL_CLASSES in self.kinds or {CLASSES, NO_CLASS} <= self.kinds

    @property
    def value_features(self) -> tuple[Feature, ...]:
        """Features of the extra values, sorted by name, without values of kind `_OTHER`, which records cannot hold."""
        features = []
        for name, (kind, is_list) in sorted(self.values.items()):
            if kind != _OTHER:
                dtype, encoding = _TYPES_BY_KIND[kind]
                features.append(Feature(name, kind, dtype, (None,) if is_list else (), encoding=encoding))
        return tuple(features)

    @property
    def ignored_values(self) -> tuple[str, ...]:
        """Sorted names of extra values that records cannot hold, such as nested values or values of several kinds."""
        return tuple(sorted(name for name, (kind, _) in self.values.items() if kind == _OTHER))

    def _add_object(self, annotated_object: ObjectAnnotation, annotation: ImageAnnotation) -> None:
        """Add the attributes and the class of an object; SourceError if earlier objects have a different number of keypoints."""
        self.kinds.add(OBJECTS)
        if annotated_object.class_name:
            self.kinds.add(OBJECT_CLASSES)
            self.object_classes.add(annotated_object.class_name)
        if annotated_object.is_crowd is not None:
            self.kinds.add(CROWDS)
        if annotated_object.is_difficult is not None:
            self.kinds.add(DIFFICULT)
        if annotated_object.area is not None:
            self.kinds.add(AREAS)
        if annotated_object.segmentation is not None:
            self.kinds.add(MASKS)
            if isinstance(annotated_object.segmentation, Polygons):
                self.kinds.add(POLYGONS)
        if annotated_object.keypoints:
            count = len(annotated_object.keypoint_array)
            if self.keypoint_count not in (0, count):
                raise SourceError(f"{annotation.place.path}: {_describe_keypoint_counts(self.keypoint_count, count)}")
            self.keypoint_count = count

    def _add_value_type(self, name: str, value_type: ValueType) -> None:
        """Merge the type of an extra value into that of earlier values of this name."""
        earlier_type = self.values.get(name, value_type)
        kind = _OTHER
        # A feature is either a list in all records or in none.
        if earlier_type.is_list == value_type.is_list:
            kind = _merge_kinds({earlier_type.kind, value_type.kind})
        self.values[name] = earlier_type._replace(kind=kind)


def _order_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return class names in sorted order. If all are integers of at most 18 digits, the names are labels, and every
    number up to the largest is a class.

    Raises:
        SourceError: the largest number is so large that almost all classes would be empty.
    """
    unordered = set(names)
    if unordered and all(is_integer_label(name) and len(name) <= _MAX_DIGITS for name in unordered):
        fix = "Correct it, or pass --labels FILE with a name for each class."
        check_classes(max(map(int, unordered)), len(unordered), "the annotations", fix)
        return make_integer_labels(unordered).names
    return tuple(sorted(unordered))


def _describe_keypoint_counts(first_count: int, second_count: int) -> str:
    return (
        f"objects have different numbers of keypoints ({first_count} and {second_count}). Keep the annotations of one kind of"
        " object."
    )


def _find_value_type(value: Any) -> ValueType:
    """Return the type of an extra value, which is not an empty list."""
    is_list = isinstance(value, list | tuple)
    return ValueType(_merge_kinds({_find_scalar_kind(scalar) for scalar in (value if is_list else [value])}), is_list)


def _merge_kinds(kinds: set[str]) -> str:
    """Return the kind that holds values of all `kinds`: a float holds an int too, other mixtures cannot be stored."""
    if kinds == {_INT, _FLOAT}:
        return _FLOAT
    return kinds.pop() if len(kinds) == 1 else _OTHER


def _find_scalar_kind(value: Any) -> str:
    """Return the kind of a feature that holds a value; empty if records cannot hold it, such as None or an int beyond int64."""
    if isinstance(value, str):
        return _TEXT
    if isinstance(value, bool | int):
        return _INT if fits_int64(value) else _OTHER
    return _FLOAT if isinstance(value, float) else _OTHER

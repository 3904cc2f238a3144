"""Annotations in records, recognized by the names of features: boxes of objects, the lists that belong to them, and captions.

Boxes are four lists of floats, `PREFIX/bbox/ymin`, `xmin`, `ymax` and `xmax`, as TensorFlow's object detection names them, or one,
`PREFIX/bbox` of shape (None, 4), as TFDS stores them: (ymin, xmin, ymax, xmax). All are fractions of the picture's sides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from tpudata.format.example.wire import Value
from tpudata.format.manifest.features import Feature

# Edges ymin, xmin, ymax and xmax, as fractions of the picture's sides.
Box: TypeAlias = tuple[float, float, float, float]

# Prefix of the tables that conversions write.
OBJECTS = "image/object"
_BOX, _POINT, _MASK = "bbox", "keypoint", "mask"
_EDGES = ("ymin", "xmin", "ymax", "xmax")
_CAPTIONS = ("caption", "captions")
_FLOATS = ("float16", "float32", "float64")


@dataclasses.dataclass(frozen=True)
class ObjectTable:
    """Lists of a record that have one entry for each of its objects.

    Attributes:
        prefix: common beginning of the features' names, such as `image/object`; empty for boxes without one.
        columns: the features, in the order of the manifest.
    """

    prefix: str
    columns: tuple[Feature, ...]

    @property
    def box_columns(self) -> tuple[Feature, ...]:
        """The feature of whole boxes or, if there is none, those of all four edges (ymin, xmin, ymax, xmax); otherwise empty."""
        features_by_name = {feature.name: feature for feature in self.columns}
        box_feature = features_by_name.get(self._join_name(_BOX))
        if box_feature is not None:
            return (box_feature,)
        edge_names = [self._join_name(f"{_BOX}/{edge}") for edge in _EDGES]
        edge_features = tuple(features_by_name[name] for name in edge_names if name in features_by_name)
        return edge_features if len(edge_features) == len(_EDGES) else ()

    @property
    def label(self) -> Feature | None:
        """The feature with the numbers of the objects' classes, or None."""
        return next((f for f in self.columns if f.kind == "int64" and _take_last_part(f.name) == "label"), None)

    @property
    def masks(self) -> Feature | None:
        """The feature with the encoded masks of the objects, or None."""
        return next(filter(is_mask, self.columns), None)

    @property
    def class_text(self) -> Feature | None:
        """The feature with the names of the objects' classes, or None."""
        return next((f for f in self.columns if f.kind == "bytes" and f.name.endswith("class/text")), None)

    def count(self, example: Mapping[str, Value]) -> int:
        """Return the number of objects in a record: the number of entries of its longest list."""
        return max(count_entries(feature, example.get(feature.name, ())) for feature in self.columns)

    def boxes(self, example: Mapping[str, Value]) -> list[Box]:
        """Return the boxes of a record: ymin, xmin, ymax and xmax of each; empty without `box_columns`.

        Values must be floats, and lists equally long.
        """
        columns = [_convert_to_numbers(feature, example.get(feature.name, ())) for feature in self.box_columns]
        if not columns:
            return []
        # A single list has the four edges of every box; otherwise each of four lists has one edge of every box.
        rows = columns[0].reshape(-1, 4) if len(columns) == 1 else np.stack(columns, axis=1)
        return [(ymin, xmin, ymax, xmax) for ymin, xmin, ymax, xmax in rows.tolist()]

    def class_names(self, example: Mapping[str, Value], dataset_names: Sequence[str]) -> list[str]:
        """Return the class of each object of a record: its name, or its number in digits if it has no name; empty without classes.

        Args:
            example: the record.
            dataset_names: class names of the dataset; not used if the objects' labels have a different number of classes.
        """
        if self.class_text is not None and (stored_names := example.get(self.class_text.name)):
            return [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in stored_names]
        if self.label is None:
            return []
        names = dataset_names if self.label.num_classes in (None, len(dataset_names)) else ()
        numbers = [value for value in example.get(self.label.name, ()) if isinstance(value, int)]
        indices = [number - self.label.label_offset for number in numbers]
        return [
            names[index] if 0 <= index < len(names) else str(number)
            for index, number in zip(indices, numbers, strict=True)
        ]

    def _join_name(self, part: str) -> str:
        return f"{self.prefix}/{part}" if self.prefix else part


def object_tables(features: Iterable[Feature]) -> tuple[ObjectTable, ...]:
    """Return the tables of objects of a dataset, longest prefix first; a list belongs to the longest prefix that fits."""
    features = tuple(features)
    lists = [feature for feature in features if feature.shape[:1] == (None,) and not feature.is_image_file]
    prefixes = {prefix for feature in lists if (prefix := _find_box_prefix(feature)) is not None}
    # The table of a conversion may have no boxes.
    if any(feature.name.startswith(f"{OBJECTS}/") for feature in lists):
        prefixes.add(OBJECTS)
    picture_prefixes = {feature.name.rpartition("/")[0] for feature in features if feature.is_image}
    columns_by_prefix: dict[str, list[Feature]] = {prefix: [] for prefix in sorted(prefixes, key=len, reverse=True)}
    for feature in lists:
        for prefix, columns in columns_by_prefix.items():
            if _is_column(feature, prefix, is_picture_prefix=prefix in picture_prefixes):
                columns.append(feature)
                break
    return tuple(ObjectTable(prefix, tuple(columns)) for prefix, columns in columns_by_prefix.items() if columns)


def is_mask(feature: Feature) -> bool:
    """Return whether a feature holds the encoded masks of objects."""
    return (
        feature.kind == "bytes"
        and feature.encoding is None
        and feature.shape == (None,)
        and _take_last_part(feature.name) == _MASK
    )


def caption_feature(features: Iterable[Feature]) -> Feature | None:
    """Return the feature that holds the captions of pictures, or None."""
    text_features = (
        f for f in features if f.kind == "bytes" and f.encoding in (None, "utf8") and f.shape in ((), (None,))
    )
    return next((feature for feature in text_features if _take_last_part(feature.name) in _CAPTIONS), None)


def count_entries(feature: Feature, values: Value | Sequence[object]) -> int:
    """Return the number of entries of a feature's list in a record: the size of the first dimension of its shape.

    Args:
        feature: the feature.
        values: its values in the record; bytes of the entries if its encoding is `raw`.
    """
    # A further size that varies, or is 0, counts as 1, since the number of values cannot be divided by it.
    entry_size = math.prod(size or 1 for size in feature.shape[1:])
    if feature.encoding == "raw":
        entry_size *= np.dtype(feature.dtype).itemsize
        return sum(len(value) for value in values if isinstance(value, bytes)) // entry_size
    return len(values) // entry_size


def _convert_to_numbers(
    feature: Feature, values: Value | Sequence[object]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the values of a feature in a record as float64 [values]; raw bytes are decoded."""
    if feature.encoding == "raw":
        data = b"".join(value for value in values if isinstance(value, bytes))
        return np.frombuffer(data, np.dtype(feature.dtype).newbyteorder("<")).astype(np.float64)
    return np.asarray(values, np.float64)


def _find_box_prefix(feature: Feature) -> str | None:
    """Return the prefix of a feature that holds boxes or one of their edges; None for other features."""
    if feature.dtype not in _FLOATS:
        return None
    parent, _, part = feature.name.rpartition("/")
    if part == _BOX and feature.shape[1:] == (4,):
        return parent
    if part in _EDGES and _take_last_part(parent) == _BOX and feature.shape == (None,):
        return parent.rpartition("/")[0]
    return None


def _is_column(feature: Feature, prefix: str, *, is_picture_prefix: bool) -> bool:
    """Return whether a list has an entry for each object of a prefix.

    Args:
        feature: the list.
        prefix: the prefix; if it is empty or a picture's, lists of other things, such as captions, also have it.
        is_picture_prefix: whether a picture has this prefix.
    """
    if _find_box_prefix(feature) == prefix:
        return True
    if not prefix or is_picture_prefix or not feature.name.startswith(f"{prefix}/"):
        return False
    # In TensorFlow's object detection, a flat list has the keypoints of all objects, several for each, so it is no column.
    return f"/{_POINT}/" not in feature.name or feature.shape != (None,)


def _take_last_part(name: str) -> str:
    return name.rpartition("/")[2]

"""Check of a record against the manifest: exactly its features, each of its kind, shape, size and range, and annotations.

Some writers omit a list without values, so a feature of shape (None,) may be absent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np

from tpudata.format.example.decode import read_list_kinds
from tpudata.format.example.wire import Value
from tpudata.format.manifest.features import Feature
from tpudata.format.manifest.manifest import Manifest
from tpudata.format.manifest.model_features import LABEL_NAMES
from tpudata.format.verification.annotation_check import AnnotationCheck
from tpudata.format.verification.defect import CLASSES, Problem

_TYPE_BY_KIND = {"bytes": bytes, "int64": int, "float": float}
_KIND_BY_TYPE = {value_type: kind for kind, value_type in _TYPE_BY_KIND.items()}
# Label of the objects. The manifest's classes are the classes of the objects if pictures have none.
_OBJECT_LABEL = "image/object/class/label"


class RecordCheck:
    """Compares records with the schema of a dataset.

    Args:
        manifest: manifest of the dataset.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._feature_checks = {
            feature.name: _FeatureCheck.from_feature(feature, manifest) for feature in manifest.features
        }
        self._annotation_check = AnnotationCheck(manifest.features)

    def find_problems(self, example: Mapping[str, Value]) -> Iterator[Problem]:
        """Yield the problems of a record's features, and of its annotations if the features allow a check."""
        # Without annotations to check, `_find_feature_problems` yields the same problems in less time.
        if self._annotation_check.is_needed:
            return self._find_all_problems(example)
        return self._find_feature_problems(example)

    def find_empty_list_problems(self, example: Mapping[str, Value], record: bytes) -> Iterator[Problem]:
        """Yield the problems of empty lists, whose kind only the serialized record shows: TensorFlow's parser also compares theirs.

        Args:
            example: values of the record by feature name.
            record: the record.
        """
        # Most records have no empty list.
        if all(example.values()):
            return
        for name, kind in read_list_kinds(record).items():
            check = self._feature_checks.get(name)
            if check is not None and not example[name] and kind != check.feature.kind:
                yield Problem(
                    f"feature {name!r} is an empty list of kind {kind}; the manifest says {check.feature.kind}"
                )

    def _find_all_problems(self, example: Mapping[str, Value]) -> Iterator[Problem]:
        """Yield the problems of a record's features, then the problems of its annotations.

        Annotations are not checked if a feature is unknown, missing, or of the wrong kind or shape.
        """
        can_check_annotations = True
        for problem in self._find_feature_problems(example):
            # Annotations can be checked in spite of a label out of range, but not with values of another kind or shape.
            can_check_annotations = can_check_annotations and problem.kind == CLASSES
            yield problem
        if can_check_annotations:
            yield from self._annotation_check.find_problems(example)

    def _find_feature_problems(self, example: Mapping[str, Value]) -> Iterator[Problem]:
        """Yield the problems of a record's features: unfit values, and unknown and missing features."""
        checks = self._feature_checks
        known_count = 0
        for name, values in example.items():
            check = checks.get(name)
            if check is None:
                yield Problem(f"feature {name!r} is not in the manifest")
                continue
            known_count += 1
            problem = check.find_problem(values)
            if problem is not None:
                yield problem._replace(reason=f"feature {name!r} {problem.reason}")
        # Most records have every feature, and need no second loop.
        if known_count < len(checks):
            for name, check in checks.items():
                if name not in example and not check.may_be_absent:
                    yield Problem(f"feature {name!r} is missing")


@dataclasses.dataclass(frozen=True)
class _FeatureCheck:
    """Rule for the values of one feature.

    Attributes:
        feature: the feature in the manifest.
        type: type of every value.
        fixed_size: number of values (of bytes for raw values) in the fixed dimensions of the shape.
        allows_multiples: whether any multiple of `fixed_size` is allowed, because a dimension varies.
        low: smallest allowed label; None if the feature has no classes, or holds bytes.
        high: largest allowed label; None if the feature has no classes, or holds bytes.
    """

    feature: Feature
    type: type
    fixed_size: int
    allows_multiples: bool
    low: int | None
    high: int | None

    @property
    def may_be_absent(self) -> bool:
        """Whether a record may lack the feature, which TensorFlow's parser then takes for an empty list."""
        return self.allows_multiples and self.feature.shape == (None,) and self.feature.encoding != "raw"

    @classmethod
    def from_feature(cls, feature: Feature, manifest: Manifest) -> _FeatureCheck:
        """Return the rule for a feature; for some labels, only the manifest gives the number of classes."""
        # An image file is one bytes value, whatever the shape of its pixels.
        shape = () if feature.is_image_file else feature.shape
        fixed_size = math.prod(size for size in shape if size is not None)
        if feature.encoding == "raw":
            fixed_size *= np.dtype(feature.dtype).itemsize
        num_classes, offset = feature.num_classes, feature.label_offset
        if num_classes is None and feature.kind == "int64" and _uses_manifest_classes(manifest, feature):
            num_classes, offset = manifest.labels, int(manifest.options.get("label_offset", 0))
        # A schema may also give text or raw values a number of classes; only the numbers of a list are compared with a range.
        holds_bytes = feature.kind == "bytes"
        low, high = (None, None) if num_classes is None or holds_bytes else (offset, offset + num_classes - 1)
        return cls(feature, _TYPE_BY_KIND[feature.kind], fixed_size, allows_multiples=None in shape, low=low, high=high)

    def find_problem(self, values: Value) -> Problem | None:
        """Return the problem of the feature's values in a record, or None; its reason continues the words "feature NAME"."""
        if self.feature.encoding == "raw":
            return self._find_raw_problem(values)
        count = len(values)
        if count != self.fixed_size and not self._is_allowed_multiple(count):
            return Problem(f"has {count} values, which do not match the manifest's shape {self._shape_text}")
        for value in values:
            if type(value) is not self.type:
                return self._make_kind_problem(value)
            if self.low is not None and not self.low <= value <= self.high:  # type: ignore[operator]
                return Problem(f"is {value!r}; the manifest's labels go from {self.low} to {self.high}", CLASSES)
        return None

    def _find_raw_problem(self, values: Value) -> Problem | None:
        """Return the problem of a feature in the encoding `raw`, which must be one bytes value of the shape's size; or None."""
        if len(values) != 1:
            return Problem(f"has {len(values)} values; raw values of the manifest's shape {self._shape_text} are one")
        (value,) = values
        if not isinstance(value, bytes):
            return self._make_kind_problem(value)
        size = len(value)
        if size != self.fixed_size and not self._is_allowed_multiple(size):
            return Problem(
                f"has {size} bytes, which do not match the manifest's {self.feature.dtype} of shape {self._shape_text}"
            )
        return None

    def _is_allowed_multiple(self, count: int) -> bool:
        """Return whether a varying dimension allows this number of values (bytes for raw values): a multiple of `fixed_size`."""
        if not self.allows_multiples:
            return False
        # If a fixed dimension is 0, the list is always empty.
        return count % self.fixed_size == 0 if self.fixed_size else count == 0

    def _make_kind_problem(self, value: bytes | int | float) -> Problem:
        return Problem(f"is of kind {_KIND_BY_TYPE[type(value)]}; the manifest says {self.feature.kind}")

    @property
    def _shape_text(self) -> str:
        """The feature's shape for messages, with `any` for a dimension that varies."""
        return f"({', '.join('any' if size is None else str(size) for size in self.feature.shape)})"


def _uses_manifest_classes(manifest: Manifest, feature: Feature) -> bool:
    """Return whether a feature without a number of classes holds labels of the classes that the manifest counts."""
    # A feature for several labels of a record has no number of classes.
    if feature.name in LABEL_NAMES:
        return True
    # The manifest counts the classes of the objects, unless another feature has labels.
    has_other_classes = any(other.num_classes is not None or other.name in LABEL_NAMES for other in manifest.features)
    return feature.name == _OBJECT_LABEL and not has_other_classes

"""Checks of the values that a source returns: a source of an installed package may return anything.

`check_attributes` checks a source's attributes; the `list_` functions call its methods for parts, units and references. All report
a wrong value in one line that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from beam_jobs.references.labels import NO_CLASS_NAME, Labels, is_class_name
from beam_jobs.references.reference import NO_FEATURES, Payload, Reference
from beam_jobs.references.rejection import Reject
from beam_jobs.sources.source import Source, SourcePart, SourceUnit
from tpudata.checks import format_bound, is_integer
from tpudata.error_text.values import format_value
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import Feature

_FIX = "Change the source."
# Number of checked combinations of classes that are remembered.
_MAX_LABELS = 1 << 12
_BOOLEAN_ATTRIBUTES = (
    "has_classes",
    "several_labels",
    "integer_labels",
    "folder_classes",
    "takes_label_type",
    "takes_label_from",
)
_MAX_CRC32, _MAX_INT64 = 2**32 - 1, 2**63 - 1
# Minimum and maximum of the integers of a Reference.
_FIELD_RANGES: Mapping[str, tuple[int, int]] = {
    "offset": (-_MAX_INT64, _MAX_INT64),
    "size": (0, _MAX_INT64),
    "crc32": (0, _MAX_CRC32),
}
# Types of other fields of a Reference.
_FIELD_TYPES: Mapping[str, type] = {
    "key": str,
    "split": str,
    "path": str,
    "payload": Payload,
    "features": Mapping,
    "data": bytes,
}


def check_attributes(source: Source) -> None:
    """Raise UsageError if `features`, `labels` or a boolean attribute of a source is not of the type that `Source` declares."""
    # Descriptions of the expected types, by the name of each attribute that is not of its type.
    expected_types: dict[str, str] = {}
    features: Any = source.features
    if not isinstance(features, tuple) or not all(isinstance(feature, Feature) for feature in features):
        expected_types["features"] = "a tuple of tpudata.format.Feature"
    labels: Any = source.labels
    if labels is not None and not isinstance(labels, Labels):
        expected_types["labels"] = "Labels or None"
    expected_types |= {name: "bool" for name in _BOOLEAN_ATTRIBUTES if not isinstance(getattr(source, name), bool)}
    if expected_types:
        name, expected = next(iter(expected_types.items()))
        value = getattr(source, name)
        raise UsageError(
            f"{_format_source_name(source)}.{name}: of another type (got {value!r}, expected {expected}). {_FIX}"
        )


def list_parts(source: Source) -> Iterable[SourcePart]:
    """Return the parts of a source; UsageError if its method does not return an iterable."""
    return _require_iterable(source, "parts", source.parts())


def list_units(source: Source, part: SourcePart, ignored: list[str]) -> Iterable[SourceUnit]:
    """Return the units of a part, see `Source.units`; UsageError if the method does not return an iterable."""
    return _require_iterable(source, "units", source.units(part, ignored))


def list_references(
    source: Source, unit: SourceUnit, ignored: list[str], reject: Reject, *, stores_classes: bool = True
) -> Iterator[Reference]:
    """Yield the references of a unit, see `Source.references`; reject references without a class or with an invalid one.

    Args:
        source: source of the unit.
        unit: one of `list_units`.
        ignored: see `Source.references`.
        reject: see `Source.references`.
        stores_classes: whether records store classes; otherwise a reference is not rejected for its class.

    Raises:
        UsageError: an object is not a reference, or a reference has classes or features that the source's attributes do not
            declare, which its record would silently lack; or `reject` is called with anything but a BadRecordError.
    """
    method_name = f"{_format_source_name(source)}.references"

    def check_and_reject(error: Any) -> None:
        """Call `reject`; UsageError for anything but a BadRecordError. The source gets this function as its `reject`."""
        if not isinstance(error, BadRecordError):
            raise UsageError(
                f"{method_name}: not an error to reject with (got {type(error).__name__}, expected BadRecordError). {_FIX}"
            )
        reject(error)

    check = _ReferenceCheck(source, method_name, stores_classes=stores_classes)
    references = source.references(unit, ignored, check_and_reject)
    for reference in _require_iterable(source, "references", references):
        reason = None if check.is_usual(reference) else check.find_rejection_reason(reference)
        if reason is None:
            yield reference
        else:
            reject(BadRecordError(reference.origin, reason, key=reference.key))


class _ReferenceCheck:
    """Check of a unit's references. A reference like earlier ones takes half a microsecond, any other several.

    Args:
        source: source of the unit.
        method_name: name of the source's method, which begins the messages.
        stores_classes: whether records store classes; otherwise a reference is not rejected for its class.
    """

    def __init__(self, source: Source, method_name: str, *, stores_classes: bool) -> None:
        columns = source.record_columns
        self._method_name = method_name
        self._has_classes = source.has_classes
        self._stores_classes = stores_classes
        self._has_annotations = columns.annotations is not None
        has_one_class = source.has_classes and not columns.several_labels and not self._has_annotations
        self._needs_class = stores_classes and has_one_class
        self._feature_names = {feature.name for feature in columns.features}
        # The last payload that `find_rejection_reason` accepted, None with annotations, and up to `_MAX_LABELS` combinations of
        # labels that it accepted; a full set is cleared.
        self._last_payload: Payload | None = None
        self._accepted_labels: set[tuple[str, ...]] = set()

    def is_usual(self, reference: Any) -> bool:
        """Return whether a reference is so similar to earlier references that it needs no other check."""
        if type(reference) is not Reference:
            return False
        # Neither this method nor `_check_types` checks the field `spool`, which `make_reference` does not take.
        key, split, labels, path, offset, size, payload, crc32, features, data, _ = reference
        try:
            has_accepted_labels = labels in self._accepted_labels
        except TypeError:
            # The labels are not hashable.
            return False
        return (
            has_accepted_labels
            and payload is self._last_payload
            and type(key) is type(split) is type(path) is str
            and type(offset) is type(size) is int
            and abs(offset) <= _MAX_INT64
            and 0 <= size <= _MAX_INT64
            and (crc32 is None or (type(crc32) is int and 0 <= crc32 <= _MAX_CRC32))
            and type(data) is bytes
            and (features is NO_FEATURES or (type(features) is dict and features.keys() <= self._feature_names))
        )

    def find_rejection_reason(self, reference: Any) -> str | None:
        """Return why to reject a reference; None for a valid one, whose labels and payload are remembered for `is_usual`.

        Raises:
            UsageError: the object is not a reference, or it has classes or features that the source's attributes do not declare.
        """
        _check_types(reference, self._method_name)
        labels, features = reference.labels, reference.features
        if labels and not self._has_classes:
            raise UsageError(
                f"{self._method_name}: {reference.key!r} has a class, but the source's `has_classes` is False. {_FIX}"
            )
        if not self._has_annotations and not features.keys() <= self._feature_names:
            undeclared = min(map(str, features.keys() - self._feature_names))
            raise UsageError(
                f"{self._method_name}: {reference.key!r} has the feature {undeclared!r}, which the source's `features` lack. {_FIX}"
            )
        # The converter rejects several labels, but accepts a reference without any, as in a dataset without classes.
        if self._needs_class and not labels:
            # The converter's words for a record without exactly one label, see `ImageConverter`.
            return "not exactly one label: 0 labels []"
        invalid_name = next((name for name in labels if not is_class_name(name)), None)
        if invalid_name is not None and self._stores_classes:
            return f"its class name is {NO_CLASS_NAME}: {invalid_name!r}; rename it"
        if len(self._accepted_labels) >= _MAX_LABELS:
            self._accepted_labels.clear()
        self._accepted_labels.add(labels)
        # Annotations are features that no schema of the source has, so each reference with annotations is checked in full.
        self._last_payload = None if self._has_annotations else reference.payload
        return None


def _format_source_name(source: Source) -> str:
    return f"{type(source).__module__}.{type(source).__qualname__}"


def _require_iterable(source: Source, method: str, returned: Any) -> Iterable[Any]:
    """Return what a method has returned; UsageError if it is not iterable, or is a string or bytes."""
    if not isinstance(returned, Iterable) or isinstance(returned, (str, bytes)):
        raise UsageError(
            f"{_format_source_name(source)}.{method}: no {method} (got {type(returned).__name__}, expected an iterable). {_FIX}"
        )
    return returned


def _check_types(reference: Any, method_name: str) -> None:
    """Raise UsageError if an object is not a reference, or a field has another type or is out of range.

    Packing it would fail later, with an error that does not name the source.
    """
    if not isinstance(reference, Reference):
        raise UsageError(
            f"{method_name}: not a reference (got {type(reference).__name__}, expected the result of make_reference). {_FIX}"
        )
    labels = reference.labels
    if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
        raise UsageError(
            f"{method_name}: the labels of {reference.key!r} are of another type (got {labels!r}, expected a tuple of str). {_FIX}"
        )
    for name, (least, most) in _FIELD_RANGES.items():
        value = getattr(reference, name)
        if not is_integer(value, least, most) and not (name == "crc32" and value is None):
            raise UsageError(
                f"{method_name}: the {name} of {reference.key!r} is invalid (got {format_value(value)}, expected an integer"
                f" from {least} to {format_bound(most)}). {_FIX}"
            )
    for name, field_type in _FIELD_TYPES.items():
        value = getattr(reference, name)
        if not isinstance(value, field_type):
            raise UsageError(
                f"{method_name}: the {name} of {reference.key!r} is of another type (got {type(value).__name__}, expected"
                f" {field_type.__name__}). {_FIX}"
            )

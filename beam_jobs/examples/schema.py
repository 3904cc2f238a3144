"""The schema of a user's examples, merged from the features of all records."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable
from typing import Any

from beam_jobs.converter import InputConverter
from beam_jobs.examples.example_record import ExampleRecord
from beam_jobs.feature_values.values import decoded_size, describe
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from tpudata.errors import FeatureError
from tpudata.format import Feature


def signature(features: Iterable[Feature]) -> str:
    """Return the features of a record as a string that travels with its reference; equal features give equal strings."""
    return _sign(tuple(sorted(features, key=lambda feature: feature.name)))


@functools.lru_cache(maxsize=4096)
def _sign(features: tuple[Feature, ...]) -> str:
    return json.dumps([feature.to_json() for feature in features], separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def _parse_signature(text: str) -> tuple[Feature, ...]:
    return tuple(map(Feature.from_json, json.loads(text)))


@dataclasses.dataclass
class ExampleSummary:
    """The schema of some records, which can be merged with that of others in any order.

    Attributes:
        decoded_bytes: size of all records as tensors; strings count with the size of their record.
        features: by name, the merged feature and the key of a record that has it.
    """

    decoded_bytes: int = 0
    features: dict[str, tuple[Feature, str]] = dataclasses.field(default_factory=dict)
    _last: str = dataclasses.field(default="", compare=False)

    def add(self, text: str, key: str, size: int) -> None:
        """Count one record.

        Args:
            text: signature of the record.
            key: key of the record.
            size: size of the record in bytes.

        Raises:
            FeatureError: its features do not fit those of earlier records.
        """
        features = _parse_signature(text)
        sizes = [decoded_size(feature) for feature in features]
        self.decoded_bytes += sum(size_of_value for size_of_value in sizes if size_of_value is not None) + (
            size if None in sizes else 0
        )
        if text != self._last:
            self._merge({feature.name: (feature, key) for feature in features})
            self._last = text

    def merge(self, other: ExampleSummary) -> None:
        """Add another summary; FeatureError as in `add`."""
        self.decoded_bytes += other.decoded_bytes
        if other.features:
            self._merge(other.features)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        features = [{"feature": feature.to_json(), "key": key} for feature, key in self.features.values()]
        return {"decoded_bytes": self.decoded_bytes, "features": features}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ExampleSummary:
        """Return the summary that `to_json` wrote."""
        pairs = [(Feature.from_json(entry["feature"]), entry["key"]) for entry in value["features"]]
        return cls(value["decoded_bytes"], {feature.name: (feature, key) for feature, key in pairs})

    def _merge(self, other: dict[str, tuple[Feature, str]]) -> None:
        """Merge the features of other examples; FeatureError if they differ in names or kinds."""
        if not self.features:
            self.features = dict(other)
            return
        for name in sorted(self.features.keys() ^ other.keys()):
            have, lack = (self.features, other) if name in self.features else (other, self.features)
            without = next((key for _, key in lack.values()), "")
            raise FeatureError(
                f"Feature {name!r}: record {have[name][1]!r} has it, record {without!r} has not. Every record needs the"
                " same features: give it a value everywhere, such as an empty list, or pass defaults=."
            )
        for name, (feature, key) in other.items():
            before, first = self.features[name]
            if before == feature:
                continue
            merged = _merge_features(before, feature)
            if merged is None:
                raise FeatureError(
                    f"Feature {name!r}: record {first!r} has {describe(before)}, record {key!r} has {describe(feature)}."
                    " A feature is of one kind and rank in every record: convert the values, or pass features=."
                )
            self.features[name] = merged, first


@dataclasses.dataclass(frozen=True)
class ExampleConverter(InputConverter):
    """Converter that passes on encoded records, and keeps their schema.

    Attributes:
        schema: the features if they were passed; None if they are inferred.
    """

    schema: tuple[Feature, ...] | None = None

    @property
    def record_overhead(self) -> int:
        """0: the bytes that are read are the record."""
        return 0

    def new_summary(self) -> ExampleSummary:
        """Return an empty summary."""
        return ExampleSummary()

    def summary_from_json(self, value: dict[str, Any]) -> ExampleSummary:
        """Return the summary that `ExampleSummary.to_json` wrote."""
        return ExampleSummary.from_json(value)

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: ExampleSummary) -> bytes:
        """Return the record, which is the data itself."""
        del labels
        assert isinstance(reference.payload, ExampleRecord)
        summary.add(reference.payload.signature, reference.key, len(data))
        return data

    def features(self, summary: ExampleSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema of a dataset.

        Args:
            summary: summary of all records.
            labels: the classes, whose number the features have already.

        Raises:
            FeatureError: the schema is inferred, and a feature is empty in all records or varies in several dimensions.
        """
        del labels
        if self.schema is not None:
            return self.schema
        inferred = tuple(feature for feature, _ in summary.features.values())
        for feature in inferred:
            if _is_empty(feature) and feature.kind == "bytes":
                raise FeatureError(
                    f"Feature {feature.name!r}: it is empty in every record, so its kind is unknown. Omit it, or pass features=."
                )
            if feature.shape.count(None) > 1:
                raise FeatureError(
                    f"Feature {feature.name!r}: shape {feature.shape} varies (None) in more than one dimension, and a record"
                    " has a flat list, which does not determine such shapes. Store it flat, with its shape as another"
                    ' feature; or pass features= with encoding="image" to store arrays of pixels as PNGs.'
                )
        return inferred


def _is_empty(feature: Feature) -> bool:
    # On disk a list without values has no kind, so it fits lists of every kind.
    return feature.shape == (0,) and feature.encoding != "raw"


def _merge_features(first: Feature, other: Feature) -> Feature | None:
    """Return the feature that fits both, or None."""
    if len(first.shape) != len(other.shape):
        return None
    shape = tuple(a if a == b else None for a, b in zip(first.shape, other.shape, strict=True))
    if (first.kind, first.dtype, first.encoding, first.num_classes) == (
        other.kind,
        other.dtype,
        other.encoding,
        other.num_classes,
    ):
        return dataclasses.replace(first, shape=shape)
    if "raw" in (first.encoding, other.encoding):
        return None
    if _is_empty(first) or _is_empty(other):
        # An empty list counts as bytes, so any other kind is more precise.
        filled = [feature for feature in (first, other) if not _is_empty(feature)] or [first, other]
        fuller = max(filled, key=lambda feature: (feature.kind, feature.encoding or ""))
        return dataclasses.replace(fuller, shape=shape)
    if first.dtype == other.dtype == "string":
        # Text in some records and bytes in others is bytes.
        return dataclasses.replace(first, shape=shape, encoding=None)
    return None

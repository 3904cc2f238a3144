"""The schema of a user's examples, merged from the features of all records."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable
from typing import Any

from beam_jobs.converter import InputConverter
from beam_jobs.examples.example_record import ExampleRecord
from beam_jobs.feature_values.values import compute_decoded_size, describe
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from tpudata.errors import FeatureError
from tpudata.format import Feature


def make_signature(features: Iterable[Feature]) -> str:
    """Return the features of a record as a string that travels with its reference; equal features give equal strings."""
    return _format_signature(tuple(sorted(features, key=lambda feature: feature.name)))


@functools.lru_cache(maxsize=4096)
def _format_signature(features: tuple[Feature, ...]) -> str:
    return json.dumps([feature.to_json() for feature in features], separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def _parse_signature(signature: str) -> tuple[Feature, ...]:
    return tuple(map(Feature.from_json, json.loads(signature)))


@dataclasses.dataclass
class ExampleSummary:
    """The merged schema of some records. Summaries can be merged in any order.

    Attributes:
        decoded_bytes: size of all records as tensors. For values of unknown size, such as strings, a record counts its stored
            bytes.
        features: by name, the merged feature and the key of a record that has it.
    """

    decoded_bytes: int = 0
    features: dict[str, tuple[Feature, str]] = dataclasses.field(default_factory=dict)
    _last_signature: str = dataclasses.field(default="", compare=False)

    def add(self, signature: str, key: str, record_bytes: int) -> None:
        """Count one record, and merge its features into the schema.

        Args:
            signature: signature of the record.
            key: key of the record.
            record_bytes: size of the record.

        Raises:
            FeatureError: its features do not fit those of earlier records.
        """
        features = _parse_signature(signature)
        decoded_sizes = [compute_decoded_size(feature) for feature in features]
        self.decoded_bytes += sum(feature_size for feature_size in decoded_sizes if feature_size is not None)
        # Values whose feature does not determine their size, such as strings, count as the bytes of the record.
        if None in decoded_sizes:
            self.decoded_bytes += record_bytes
        # Most records have the features of the one before.
        if signature != self._last_signature:
            self._merge({feature.name: (feature, key) for feature in features})
            self._last_signature = signature

    def merge(self, other: ExampleSummary) -> None:
        """Add another summary; FeatureError if its features do not fit those of this one."""
        self.decoded_bytes += other.decoded_bytes
        if other.features:
            self._merge(other.features)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        features = [{"feature": feature.to_json(), "key": key} for feature, key in self.features.values()]
        return {"decoded_bytes": self.decoded_bytes, "features": features}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ExampleSummary:
        """Return the summary that `to_json` has made."""
        pairs = [(Feature.from_json(entry["feature"]), entry["key"]) for entry in value["features"]]
        return cls(value["decoded_bytes"], {feature.name: (feature, key) for feature, key in pairs})

    def _merge(self, other: dict[str, tuple[Feature, str]]) -> None:
        """Merge the features of other examples; FeatureError if they differ in names, kinds or ranks."""
        if not self.features:
            self.features = dict(other)
            return
        unshared_names = sorted(self.features.keys() ^ other.keys())
        if unshared_names:
            name = unshared_names[0]
            having, lacking = (self.features, other) if name in self.features else (other, self.features)
            _, key_with = having[name]
            key_without = next((key for _, key in lacking.values()), "")
            raise FeatureError(
                f"Feature {name!r}: record {key_with!r} has it, record {key_without!r} has not. Every record needs the"
                " same features: give it a value everywhere, such as an empty list, or pass defaults=."
            )
        for name, (feature, key) in other.items():
            earlier_feature, earlier_key = self.features[name]
            if earlier_feature == feature:
                continue
            merged = _merge_features(earlier_feature, feature)
            if merged is None:
                raise FeatureError(
                    f"Feature {name!r}: record {earlier_key!r} has {describe(earlier_feature)}, record {key!r} has"
                    f" {describe(feature)}. A feature is of one kind and rank in every record: convert the values, or pass"
                    " features=."
                )
            self.features[name] = merged, earlier_key


@dataclasses.dataclass(frozen=True)
class ExampleConverter(InputConverter):
    """Converter that passes on encoded records, and keeps their schema.

    Attributes:
        schema: the features if they were passed; None if they are inferred.
    """

    schema: tuple[Feature, ...] | None = None

    @property
    def record_overhead(self) -> int:
        """0: the bytes that are read are the whole record."""
        return 0

    def new_summary(self) -> ExampleSummary:
        """Return an empty summary."""
        return ExampleSummary()

    def summary_from_json(self, value: dict[str, Any]) -> ExampleSummary:
        """Return the summary that `ExampleSummary.to_json` has made."""
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
            labels: the classes; not used, since the features have their number already.

        Raises:
            FeatureError: the schema is inferred, and a feature varies in several dimensions, or is empty and of unknown kind in all
                records.
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
    """Return whether a feature was inferred from an empty list, which has no kind on disk and so fits lists of every kind."""
    return feature.shape == (0,) and feature.encoding != "raw"


def _merge_features(feature: Feature, other: Feature) -> Feature | None:
    """Return the feature that describes the values of both features, in any order; None if no feature does."""
    if len(feature.shape) != len(other.shape):
        return None
    shape = tuple(
        size if size == other_size else None for size, other_size in zip(feature.shape, other.shape, strict=True)
    )
    feature_type, other_type = ((each.kind, each.dtype, each.encoding, each.num_classes) for each in (feature, other))
    if feature_type == other_type:
        return dataclasses.replace(feature, shape=shape)
    if "raw" in (feature.encoding, other.encoding):
        return None
    if _is_empty(feature) or _is_empty(other):
        # The list with values decides; if both are empty, the order of kinds, so that any order of merging gives the same feature.
        candidates = [each for each in (feature, other) if not _is_empty(each)] or [feature, other]
        chosen = max(candidates, key=lambda candidate: (candidate.kind, candidate.encoding or ""))
        return dataclasses.replace(chosen, shape=shape)
    if feature.dtype == other.dtype == "string":
        # Text in some records and bytes in others is bytes.
        return dataclasses.replace(feature, shape=shape, encoding=None)
    return None

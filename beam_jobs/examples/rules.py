"""Rules for turning a user's example into its record."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from beam_jobs.examples.schema import make_signature
from beam_jobs.feature_values.values import fit_feature, infer_feature
from beam_jobs.references.labels import Labels, is_utf8
from tpudata.error_text.values import format_value
from tpudata.errors import BadRecordError, FeatureError, UsageError
from tpudata.format import Feature, encode_example


def flatten_features(example: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of an example by feature; nested dicts are joined, as in `image/height`.

    Raises:
        FeatureError: a name is not text, a nested dict is empty, or two values have the same name.
    """
    values: dict[str, Any] = {}
    _add_features(values, "", example)
    return values


def _add_features(values: dict[str, Any], prefix: str, example: Mapping[Any, Any]) -> None:
    """Add the features of an example to `values`, with `prefix` before their names; raise what `flatten_features` raises."""
    for key, value in example.items():
        if not isinstance(key, str) or not is_utf8(key):
            raise FeatureError(f"The feature name {key!r} is not text in UTF-8. Pass a str.")
        name = prefix + key
        if isinstance(value, Mapping):
            if not value:
                raise FeatureError(f"Feature {name!r}: a dict without features (expected 1 or more). Omit it.")
            _add_features(values, f"{name}/", value)
        elif name in values:
            raise FeatureError(f"Feature {name!r}: the example has it twice, in a dict and by its full name. Omit one.")
        else:
            values[name] = value


@dataclasses.dataclass(frozen=True)
class ExampleRules:
    """Rules for turning examples into records.

    Attributes:
        key: function from an example to its key; None if elements are (key, example) pairs or have no key.
        split_of: function from an example to its split; None takes the split of the options.
        schema: the features, or None to infer them.
        label: name of the feature with the class.
        classes: class names, or None without classes.
        defaults: by feature, the value that replaces None and a missing one.
    """

    key: Callable[[Any], Any] | None
    split_of: Callable[[Any], str] | None
    schema: tuple[Feature, ...] | None
    label: str
    classes: tuple[str, ...] | None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def encode(self, example: Mapping[str, Any], origin: str) -> tuple[bytes, str]:
        """Return the serialized record of an example, and the signature of its features.

        Args:
            example: values by feature name.
            origin: name of the example in messages.

        Raises:
            BadRecordError: its class is missing or unknown.
            FeatureError: `flatten_features` raises it, a value is of an unsupported kind, the features do not fit the schema, or
                the example has no features.
        """
        values = flatten_features(example)
        for name, default in self.defaults.items():
            if values.get(name) is None:
                values[name] = default
        if self.classes is not None:
            values[self.label] = self._resolve_label(values, origin)
        # `pairs` has (feature, value to encode) by name.
        if self.schema is None:
            pairs = {name: infer_feature(name, value) for name, value in values.items()}
        else:
            schema_features = {feature.name: feature for feature in self.schema}
            unmatched_names = sorted(schema_features.keys() ^ values.keys())
            if unmatched_names:
                name = unmatched_names[0]
                problem = (
                    "is in the schema but not in the example" if name in schema_features else "is not in the schema"
                )
                raise FeatureError(
                    f"Feature {name!r}: it {problem}. Give every example the features of the schema, or pass defaults=."
                )
            pairs = {name: fit_feature(schema_features[name], value) for name, value in values.items()}
        # A schema that was passed has the number of classes already.
        if self.classes is not None and self.schema is None:
            label_feature, label = pairs[self.label]
            pairs[self.label] = dataclasses.replace(label_feature, num_classes=len(self.classes)), label
        if not pairs:
            raise FeatureError("The example has no features (expected 1 or more). Filter such examples.")
        data = encode_example({name: value for name, (_, value) in pairs.items()})
        return data, make_signature(feature for feature, _ in pairs.values())

    def check_defaults(self) -> None:
        """Raise UsageError if a default is not a value of its feature."""
        schema_features = None if self.schema is None else {feature.name: feature for feature in self.schema}
        for name, value in self.defaults.items():
            try:
                if name == self.label and self.classes is not None:
                    self._resolve_label({name: value}, "defaults")
                elif schema_features is None:
                    infer_feature(name, value)
                elif name in schema_features:
                    fit_feature(schema_features[name], value)
                else:
                    raise FeatureError(f"Feature {name!r}: it is not in the schema. Omit it.")
            except BadRecordError as error:
                raise UsageError(str(error)) from None
            except FeatureError as error:
                raise UsageError(f"defaults: {error}") from None

    def _resolve_label(self, values: dict[str, Any], origin: str) -> int:
        """Return the number of an example's class from the feature `self.label`, which holds the class's name or number.

        Raises:
            BadRecordError: the feature is missing, or the class is unknown.
        """
        classes = self.classes or ()
        if self.label not in values:
            raise BadRecordError(origin, f"no feature {self.label!r} with the class")
        label = values[self.label]
        if isinstance(label, (bytes, bytearray)):
            label = label.decode("utf-8", "surrogateescape")
        if isinstance(label, str):
            try:
                return Labels(classes).find_label(label)
            except ValueError as error:
                raise BadRecordError(origin, str(error)) from None
        try:
            number = int(label)
            is_whole_number = number == label
        except (TypeError, ValueError, OverflowError):
            is_whole_number = False
        if not is_whole_number or not 0 <= number < len(classes):
            raise BadRecordError(
                origin,
                f"unknown label: {format_value(label)}; it is a class name, or a number from 0 to {len(classes) - 1}",
            )
        return number

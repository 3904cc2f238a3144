"""Steps for the weights of a batch: of records, of padding in evaluation, and of tokens."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpudata.console.tables import count_text
from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import ensure, without_autograph
from tpudata.input.elements import get_features, replace_features
from tpudata.input.graph.steps.step import Extras, Step
from tpudata.input.text.sequence import multiply_row_weights, split_token_weights

WEIGHTS = "weights"
# Extra of a record: its weight.
_RECORD_WEIGHT = "record_weight"
# Least weight of a record in evaluation: the smallest float32 that no device takes for 0, which stands for padding.
_LEAST_WEIGHT = 2.0**-126


def weigh_records(field: Field) -> Step:
    """Return the step that adds the weights of records, from their column, as an extra."""

    @without_autograph
    def take_weights(columns: dict[str, tf.Tensor], extras: Extras) -> tuple[dict[str, tf.Tensor], Extras]:
        weight = tf.cast(columns[field.feature.name], tf.float32)
        message = (
            f"Feature {field.feature.name}: a record has a weight that is negative or no number. Correct the records."
        )
        is_weight = tf.reduce_all((weight >= 0) & tf.math.is_finite(weight))
        return columns, {**extras, _RECORD_WEIGHT: ensure(weight, is_weight, message)}

    return take_weights


def make_weights_check(option: str, records: int, per_step: int) -> Step:
    """Return the step that raises UsageError if evaluation needs weights for padding and the elements cannot have them.

    Args:
        option: the option `weights`.
        records: number of records.
        per_step: rows of a global batch.
    """

    @without_autograph
    def check(element: Any, extras: Extras) -> tuple[Any, Extras]:
        if option == "sample_weight":
            if not isinstance(element, tuple) or len(element) != 2:
                raise UsageError(
                    'weights="sample_weight": (features, labels, weights) needs labels, and there are features alone. Omit it.'
                )
        elif not has_room(element) and records % per_step:
            raise UsageError(
                f"{count_text(records, 'record')} in batches of {per_step}: the last one would be padded, and features that are not"
                ' a dict have no place for its weights. Feed a dict, pass weights="sample_weight" for (features, labels,'
                " weights), or choose a batch size that divides the number of records."
            )
        return element, extras

    return check


def add_weights(option: str, field: Field | None, *, has_targets: bool) -> Step:
    """Return the step that adds the weights of its rows to a batch.

    Args:
        option: the option `weights`.
        field: the weight of records; None without one.
        has_targets: whether tokens have weights.
    """

    @without_autograph
    def add(element: Any, extras: Extras) -> tuple[Any, Extras]:
        weights = _take_row_weights(extras, field)
        if weights is not None:
            element = multiply_row_weights(element, weights)
        if option == "sample_weight" and has_targets:
            element = split_token_weights(element)
        elif weights is not None and option == "sample_weight":
            element = (*element, weights)
        elif weights is not None and has_room(element):
            element = add_weights_feature(element, weights)
        elif weights is not None and field is not None:
            raise FeatureError(
                f"weight={field.name!r}: features that are not a dict have no place for weights. Let transform return"
                ' a dict, or pass weights="sample_weight".'
            )
        return element, extras

    return add


def has_room(spec: Any) -> bool:
    """Return whether the features are a dict, to which weights can be added.

    Raises:
        FeatureError: a feature is already called "weights".
    """
    features = get_features(spec)
    if not isinstance(features, dict):
        return False
    if WEIGHTS in features:
        raise FeatureError(f"Feature {WEIGHTS!r}: evaluation puts the weights of padding there. Give it another name.")
    return True


def add_weights_feature(element: Any, weights: tf.Tensor) -> Any:
    """Return (features, labels), or features alone, with `features["weights"]`."""
    return replace_features(element, {**get_features(element), WEIGHTS: weights})


def _take_row_weights(extras: Extras, field: Field | None) -> tf.Tensor | None:
    """Return the weights of a batch's rows, float32 [B]: 0 for padding; None in training without weights of records."""
    real = extras.get("weights")
    if field is None or real is None:
        return real if field is None else extras[_RECORD_WEIGHT]
    return real * tf.maximum(extras[_RECORD_WEIGHT], _LEAST_WEIGHT)

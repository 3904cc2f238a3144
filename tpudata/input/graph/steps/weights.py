"""Steps for the weights of a batch: of records, of padding in evaluation, and of tokens."""

from __future__ import annotations

import tensorflow as tf

from tpudata.console.tables import count_text
from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import ensure, without_autograph
from tpudata.input.elements import get_features, replace_features
from tpudata.input.graph.steps.step import Extras, Step
from tpudata.input.text.sequence import multiply_token_weights, split_token_weights
from tpudata.tensor_types import Element

WEIGHTS = "weights"
# Extra of a record: its weight.
_RECORD_WEIGHT = "record_weight"
# Minimum weight of a record in evaluation: the smallest float32 that no device takes for 0, which stands for padding.
_MIN_WEIGHT = 2.0**-126


def make_record_weight_step(field: Field) -> Step:
    """Return the step that checks the weights of records and adds them as an extra, float32, from the column of `field`."""

    @without_autograph
    def take_weights(columns: dict[str, tf.Tensor], extras: Extras) -> tuple[dict[str, tf.Tensor], Extras]:
        """Return the columns unchanged, and the extras with the weights; fail at run time if one is not valid."""
        weight = tf.cast(columns[field.feature.name], tf.float32)
        message = (
            f"Feature {field.feature.name}: a record has a weight that is negative, infinite or not a number."
            " Correct the records."
        )
        are_valid = tf.reduce_all((weight >= 0) & tf.math.is_finite(weight))
        return columns, {**extras, _RECORD_WEIGHT: ensure(weight, are_valid, message)}

    return take_weights


def make_weights_check_step(option: str, num_records: int, batch_size: int) -> Step:
    """Return the step that raises UsageError if the batches of an evaluation cannot take the weights of their rows.

    "sample_weight" needs labels; "feature" needs a dict of features, unless there is no padding.

    Args:
        option: the option `weights`: "feature" or "sample_weight".
        num_records: number of records.
        batch_size: rows of a global batch.
    """

    @without_autograph
    def check(element: Element, extras: Extras) -> tuple[Element, Extras]:
        """Return the element and its extras unchanged if the element can take weights."""
        if option == "sample_weight":
            if not isinstance(element, tuple) or len(element) != 2:
                raise UsageError(
                    'weights="sample_weight": (features, labels, weights) needs labels, and there are only features. Omit it.'
                )
        elif not takes_weights(element) and num_records % batch_size:
            raise UsageError(
                f"{count_text(num_records, 'record')} in batches of {batch_size}: the last one would be padded, and features that"
                ' are not a dict have no place for its weights. Feed a dict, pass weights="sample_weight" for (features, labels,'
                " weights), or choose a batch size that divides the number of records."
            )
        return element, extras

    return check


def make_weights_step(option: str, field: Field | None, *, has_targets: bool) -> Step:
    """Return the step that adds to a batch the weights of its rows, if it has any, and multiplies weights of tokens by them.

    The step raises FeatureError if features cannot take the weights of records, or if one is already called "weights".

    Args:
        option: the option `weights`: "feature" or "sample_weight".
        field: field with the weights of records; None if they have none.
        has_targets: whether the labels are next tokens, whose weights are among the features.
    """

    @without_autograph
    def add(element: Element, extras: Extras) -> tuple[Element, Extras]:
        """Add the weights to the features, or after the labels for "sample_weight"."""
        weights = _compute_row_weights(extras, field)
        if weights is not None:
            element = multiply_token_weights(element, weights)
        # The weights of tokens, multiplied by the weights of the rows, become sample_weight.
        if option == "sample_weight" and has_targets:
            element = split_token_weights(element)
        elif weights is not None and option == "sample_weight":
            element = (*element, weights)
        elif weights is not None and takes_weights(element):
            element = replace_features(element, {**get_features(element), WEIGHTS: weights})
        elif weights is not None and field is not None:
            # Weights of records must not be lost. Without them, all weights are 1: `make_weights_check_step` has rejected padding.
            raise FeatureError(
                f"weight={field.name!r}: features that are not a dict have no place for weights. Let transform return"
                ' a dict, or pass weights="sample_weight".'
            )
        return element, extras

    return add


def takes_weights(element: Element) -> bool:
    """Return whether the features of an element are a dict, so that weights can be added to it.

    Raises:
        FeatureError: a feature is already called "weights", or a key of the dict is not a str.
    """
    features = get_features(element)
    if not isinstance(features, dict):
        return False
    # TensorFlow sorts the keys, and cannot compare other types with the name of the weights.
    for key in features:
        if not isinstance(key, str):
            raise FeatureError(
                f"features have the key {key!r}, which is not a str, and the weights have a name. Name features by str."
            )
    if WEIGHTS in features:
        raise FeatureError(f"Feature {WEIGHTS!r}: evaluation puts the weights of padding there. Give it another name.")
    return True


def _compute_row_weights(extras: Extras, field: Field | None) -> tf.Tensor | None:
    """Return the weights of a batch's rows, float32 [B]: 0 for padding; None in training without weights of records."""
    # float32 1 for records and 0 for padding in evaluation; None in training.
    padding_weights = extras.get("weights")
    if field is None:
        return padding_weights
    if padding_weights is None:
        return extras[_RECORD_WEIGHT]
    # A record's weight of 0 is raised to the minimum, since 0 stands for padding.
    return padding_weights * tf.maximum(extras[_RECORD_WEIGHT], _MIN_WEIGHT)

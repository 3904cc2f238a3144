"""Batches of one static shape: the last one padded, with weights that say which rows are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tpudata.errors import FeatureError
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import checked

WEIGHTS = "weights"
_RECORD_WEIGHT = "record_weight"
# Least weight of a record in evaluation: the smallest float32 that no device takes for 0, which stands for padding.
_LEAST_WEIGHT = 2.0**-126


def with_rows(batch: Any, batch_size: int) -> Any:
    """Return the same tensors, with `batch_size` rows in their static shapes."""
    return tf.nest.map_structure(lambda tensor: tf.ensure_shape(tensor, (batch_size, *tensor.shape[1:])), batch)


def has_room(spec: Any) -> bool:
    """Return whether weights can be added to a dataset's elements: their features are a dict.

    Raises:
        FeatureError: another feature has that name.
    """
    features = spec[0] if isinstance(spec, tuple) else spec
    if not isinstance(features, dict):
        return False
    if WEIGHTS in features:
        raise FeatureError(f"Feature {WEIGHTS!r}: evaluation puts the weights of padding there. Give it another name.")
    return True


def with_weights(element: Any, weights: tf.Tensor) -> Any:
    """Return (features, labels), or features alone, with `features["weights"]`."""
    if isinstance(element, tuple):
        return ({**element[0], WEIGHTS: weights}, *element[1:])
    return {**element, WEIGHTS: weights}


def with_record_weight(
    parsed: dict[str, tf.Tensor], extras: dict[str, tf.Tensor], field: Field | None
) -> dict[str, tf.Tensor]:
    """Return the extras of a record, or of several, with its weight.

    Args:
        parsed: the parsed columns.
        extras: the extras.
        field: the weight; None without one.
    """
    if field is None:
        return extras
    weight = tf.cast(parsed[field.feature.name], tf.float32)
    message = f"Feature {field.feature.name}: a record has a weight that is negative or no number. Correct the records."
    is_weight = tf.reduce_all((weight >= 0) & tf.math.is_finite(weight))
    return {**extras, _RECORD_WEIGHT: checked(weight, is_weight, message)}


def row_weights(extras: dict[str, tf.Tensor], field: Field | None) -> tf.Tensor | None:
    """Return the weights of a batch's rows, float32 [B]: 0 for padding; None in training without weights of records."""
    real = extras.get("weights")
    if field is None or real is None:
        return real if field is None else extras[_RECORD_WEIGHT]
    return real * tf.maximum(extras[_RECORD_WEIGHT], _LEAST_WEIGHT)


def named_leaves(structure: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (name as in `features['image']`, leaf) of nested dicts, tuples and lists."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):  # As tf.nest orders them.
            yield from named_leaves(structure[key], f"{name}[{key!r}]")
    elif isinstance(structure, (tuple, list)):
        for number, value in enumerate(structure):
            yield from named_leaves(value, f"{name}[{number}]")
    else:
        yield name, structure


def map_named(function: Callable[[str, Any], Any], structure: Any, name: str) -> Any:
    """Return the structure with `function(name, leaf)` in place of each leaf."""
    leaves = [function(leaf_name, leaf) for leaf_name, leaf in named_leaves(structure, name)]
    return tf.nest.pack_sequence_as(structure, leaves)


def check_static(spec: Any, name: str) -> None:
    """Check that every tensor has a static shape.

    Args:
        spec: a dataset's `element_spec`, a part of it, or such tensors.
        name: its name in the message.

    Raises:
        FeatureError: a dimension is unknown; names the tensor.
    """
    for leaf_name, leaf in named_leaves(spec, name):
        if not isinstance(leaf, tf.TensorSpec | tf.Tensor) or not leaf.shape.is_fully_defined():
            raise FeatureError(
                f"{leaf_name} is {leaf}: its shape is not static, and a TPU takes no other. Fix it with tf.ensure_shape or"
                " tf.reshape, or omit it."
            )

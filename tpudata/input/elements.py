"""Elements of datasets, features or (features, labels): their tensors by name, and their static shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tpudata.errors import FeatureError


def get_features(element: Any) -> Any:
    """Return the features of an element."""
    return element[0] if isinstance(element, tuple) else element


def replace_features(element: Any, features: Any) -> Any:
    """Return an element with other features."""
    return (features, *element[1:]) if isinstance(element, tuple) else features


def set_row_count(batch: Any, batch_size: int) -> Any:
    """Return the same tensors, with `batch_size` rows in their static shapes."""
    return tf.nest.map_structure(lambda tensor: tf.ensure_shape(tensor, (batch_size, *tensor.shape[1:])), batch)


def named_leaves(structure: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (name as in `features['image']`, leaf) of nested dicts, tuples and lists."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):  # As tf.nest orders them.
            yield from named_leaves(structure[key], f"{name}[{key!r}]")
    elif isinstance(structure, (tuple, list)):
        for index, value in enumerate(structure):
            yield from named_leaves(value, f"{name}[{index}]")
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

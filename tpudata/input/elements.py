"""Elements of datasets, features or (features, labels): their tensors by name, and their static shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from tpudata.errors import FeatureError
from tpudata.tensor_types import Element, Specs, Tensors


def get_features(element: Element) -> Tensors:
    """Return the features of an element."""
    return element[0] if isinstance(element, tuple) else element


def join_element(parts: tuple[Tensors, ...]) -> Element:
    """Return the element that tf.data passed to a function as arguments: one for each part of a tuple, or just the element."""
    return parts[0] if len(parts) == 1 else parts


def replace_features(element: Element, features: Tensors) -> Element:
    """Return an element with its features replaced by `features`, and the same labels and weights."""
    return (features, *element[1:]) if isinstance(element, tuple) else features


def ensure_row_count(batch: Tensors, batch_size: int) -> Tensors:
    """Return the same tensors, with `batch_size` rows in their static shapes."""
    return tf.nest.map_structure(lambda tensor: tf.ensure_shape(tensor, (batch_size, *tensor.shape[1:])), batch)


def name_leaves(structure: Tensors | Specs, name: str) -> Iterator[tuple[str, Tensors | Specs]]:
    """Yield (name, leaf) of nested dicts, tuples and lists, in the order of tf.nest; names such as `features['image']`.

    Args:
        structure: structure of tensors or of their specs.
        name: name of the whole, with which the names of its leaves begin.
    """
    if isinstance(structure, Mapping):
        for key in sorted(structure):  # As tf.nest orders them.
            yield from name_leaves(structure[key], f"{name}[{key!r}]")
    elif isinstance(structure, (tuple, list)):
        for index, part in enumerate(structure):
            yield from name_leaves(part, f"{name}[{index}]")
    else:
        yield name, structure


def map_named(function: Callable[[str, Tensors], tf.Tensor], structure: Tensors, name: str) -> Tensors:
    """Return the structure with `function(leaf_name, leaf)` in place of each leaf; `name_leaves` gives the names."""
    leaves = [function(leaf_name, leaf) for leaf_name, leaf in name_leaves(structure, name)]
    return tf.nest.pack_sequence_as(structure, leaves)


def check_static_shapes(structure: Specs | Tensors, name: str) -> None:
    """Check that every tensor has a static shape.

    Args:
        structure: a dataset's `element_spec` or a part of it; or tensors.
        name: name of the structure in the message.

    Raises:
        FeatureError: a dimension is unknown; the message names the tensor.
    """
    for leaf_name, leaf in name_leaves(structure, name):
        if not isinstance(leaf, tf.TensorSpec | tf.Tensor) or not leaf.shape.is_fully_defined():
            raise FeatureError(
                f"{leaf_name} is {leaf}: its shape is not static, and a TPU takes no other. Fix it with tf.ensure_shape or"
                " tf.reshape, or omit it."
            )

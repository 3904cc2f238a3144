"""Fetches of hooks: nested structures of tensors and operations, and of their values."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


class Fetches:
    """The tensors and operations of a nested structure of fetches.

    Args:
        element: function from a fetch to its tensor or operation.
        structure: nested structure as for `tf.compat.v1.Session.run`.
    """

    def __init__(self, element: Callable[[Any], Any], structure: Any) -> None:
        self._structure = structure
        self._leaves = [
            [item.indices, item.values, item.dense_shape] if isinstance(item, tf.SparseTensor) else element(item)
            for item in tf.nest.flatten(structure)
        ]
        self.elements = tf.nest.flatten(self._leaves)

    def pack(self, values: Mapping[str, Any]) -> Any:
        """Return the structure with the values, given by name of the tensor; None for operations."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, list):
                return tf.compat.v1.SparseTensorValue(*(values[item.name] for item in leaf))
            return values[leaf.name] if isinstance(leaf, tf.Tensor) else None

        found = [value(leaf) for leaf in self._leaves]
        rest = iter(found)
        # Not flattened: a sparse value is a tuple, but one leaf.
        return tf.nest.map_structure(lambda _: next(rest), self._structure)

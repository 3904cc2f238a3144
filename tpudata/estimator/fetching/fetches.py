"""Fetches of hooks: nested structures of tensors and operations, and of their values."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.tensor_types import Array, Arrays, GraphElement

# Fetch of a hook: a tensor or an operation of the graph, its name, or a variable.
Fetch: TypeAlias = Any


class Fetches:
    """The tensors and operations of a nested structure of fetches.

    Attributes:
        elements: the tensors and operations, in the order of `tf.nest.flatten`.

    Args:
        find_element: function from a fetch to its tensor or operation.
        structure: nested structure as for `tf.compat.v1.Session.run`.
    """

    def __init__(self, find_element: Callable[[Fetch], GraphElement], structure: object) -> None:
        self._structure = structure
        self._leaves = [
            [fetch.indices, fetch.values, fetch.dense_shape]  # `pack` joins their values to one sparse value again.
            if isinstance(fetch, tf.SparseTensor)
            else find_element(fetch)
            for fetch in tf.nest.flatten(structure)
        ]
        self.elements = tf.nest.flatten(self._leaves)

    def pack(self, values: Mapping[str, Array]) -> Arrays:
        """Return the structure of the fetches with their values, and None for operations.

        Args:
            values: values by name of the tensor.
        """

        def get_value(leaf: "GraphElement | list[tf.Tensor]") -> Array:
            if isinstance(leaf, list):  # The parts of a sparse tensor.
                return tf.compat.v1.SparseTensorValue(*(values[part.name] for part in leaf))
            return values[leaf.name] if isinstance(leaf, tf.Tensor) else None

        remaining_values = map(get_value, self._leaves)
        # pack_sequence_as would flatten a sparse value, which is a tuple, but one leaf.
        return tf.nest.map_structure(lambda _: next(remaining_values), self._structure)

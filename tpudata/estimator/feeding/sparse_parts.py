"""Sparse features and labels, which are passed from input_fn to model_fn as their three dense tensors.

Everything in between, such as placeholders, loops and hooks, only handles dense tensors.
"""

import collections
import copy
import functools
from collections.abc import Callable, Mapping
from typing import ClassVar

import tensorflow as tf

from tpudata.tensor_types import Tensors


class _Parts(collections.namedtuple("_Parts", ("indices", "values", "dense_shape"))):
    """The tensors of a sparse tensor, or their specs.

    Attributes:
        static_shape: static shape of the sparse tensor; None if its rank is unknown.
    """

    static_shape: ClassVar[tuple[int | None, ...] | None]


@functools.cache
def _make_parts_class(static_shape: tuple[int | None, ...] | None) -> type[_Parts]:
    """Return the class of sparse parts with this static shape, the same class at each call, since tf.nest compares classes."""
    return type("SparseParts", (_Parts,), {"static_shape": static_shape})


def are_sparse_parts(leaf: object) -> bool:
    """Return whether a value holds the parts of a sparse tensor, or their specs."""
    return isinstance(leaf, _Parts)


def split_sparse(structure: Tensors) -> Tensors:
    """Replace each `tf.SparseTensor` of a structure by its parts."""
    return tf.nest.map_structure(_split_leaf, structure)


def _split_leaf(leaf: object) -> Tensors:
    """Return the parts of a sparse tensor, or any other leaf unchanged."""
    if not isinstance(leaf, tf.SparseTensor):
        return leaf
    shape = leaf.shape
    parts_class = _make_parts_class(None if shape.rank is None else tuple(shape.as_list()))
    return parts_class(leaf.indices, leaf.values, leaf.dense_shape)


def join_sparse(structure: Tensors) -> Tensors:
    """Replace sparse parts in a structure by their `tf.SparseTensor`."""
    return _map_structure(structure, _join_parts, lambda leaf: leaf)


def _join_parts(parts: _Parts) -> tf.SparseTensor:
    """Return the sparse tensor of these parts, with its static shape."""
    tensor = tf.SparseTensor(*parts)
    if parts.static_shape is not None:
        tensor.set_shape(parts.static_shape)
    return tensor


def drop_sparse(structure: Tensors) -> Tensors:
    """Replace sparse parts in a structure by None."""
    return _map_structure(structure, lambda _: None, lambda leaf: leaf)


def list_roles(structure: Tensors) -> list[str]:
    """Return the role of each tensor, in the order of `tf.nest.flatten`: "dense", or the name of its field in sparse parts.

    The fields are "indices", "values" and "dense_shape".
    """

    def name_fields(parts: _Parts) -> _Parts:
        """Return parts whose tensors are replaced by the names of their fields."""
        return type(parts)(*_Parts._fields)

    roles: list[str] = tf.nest.flatten(_map_structure(structure, name_fields, lambda _: "dense"))
    return roles


def _map_structure(
    structure: Tensors, map_parts: Callable[[Tensors], Tensors], map_leaf: Callable[[Tensors], Tensors]
) -> Tensors:
    """Return a structure with each sparse tensor's parts replaced by `map_parts`, and each other leaf by `map_leaf`."""
    if are_sparse_parts(structure):
        return map_parts(structure)
    map_child = functools.partial(_map_structure, map_parts=map_parts, map_leaf=map_leaf)
    if isinstance(structure, Mapping):
        copied = copy.copy(structure)  # Keeps the class.
        for key, child in structure.items():
            copied[key] = map_child(child)  # type: ignore[index]
        return copied
    if isinstance(structure, tuple | list):
        children = map(map_child, structure)
        # The constructor of a namedtuple takes its fields one by one.
        return type(structure)(*children) if hasattr(structure, "_fields") else type(structure)(children)
    return map_leaf(structure)

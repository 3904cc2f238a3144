"""Sparse features and labels, which travel from input_fn to model_fn as their three dense tensors.

Everything in between, such as placeholders, loops and hooks, handles dense tensors alone.
"""

import collections
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

_Parts = collections.namedtuple("_Parts", ("indices", "values", "dense_shape"))


@functools.cache
def _parts_class(static_shape: tuple[int | None, ...] | None) -> Any:
    """Return the class of the parts of sparse tensors whose shape is known so far; one class for each, as tf.nest compares them."""
    return type("SparseParts", (_Parts,), {"static_shape": static_shape})


def are_sparse_parts(value: Any) -> bool:
    """Return whether a value is the parts of a sparse tensor, or of its spec."""
    return isinstance(value, _Parts)


def split_sparse(structure: Any) -> Any:
    """Return a structure with the parts of each `tf.SparseTensor` in its place."""
    return tf.nest.map_structure(_split, structure)


def _split(value: Any) -> Any:
    if not isinstance(value, tf.SparseTensor):
        return value
    shape = value.shape
    made = _parts_class(None if shape.rank is None else tuple(shape.as_list()))
    return made(value.indices, value.values, value.dense_shape)


def join_sparse(structure: Any) -> Any:
    """Return a structure with a `tf.SparseTensor` in the place of its parts."""
    return _mapped(structure, _join, lambda value: value)


def _join(parts: Any) -> Any:
    tensor = tf.SparseTensor(*parts)
    if parts.static_shape is not None:
        tensor.set_shape(parts.static_shape)
    return tensor


def drop_sparse(structure: Any) -> Any:
    """Return a structure with None in the place of the parts of sparse tensors."""
    return _mapped(structure, lambda _: None, lambda value: value)


def roles(structure: Any) -> list[str]:
    """Return "dense" or the field of the parts for each tensor, in the order of `tf.nest.flatten`."""
    found: list[str] = tf.nest.flatten(
        _mapped(structure, lambda parts: type(parts)(*_Parts._fields), lambda _: "dense")
    )
    return found


def _mapped(structure: Any, of_parts: Callable[[Any], Any], of_leaf: Callable[[Any], Any]) -> Any:
    if are_sparse_parts(structure):
        return of_parts(structure)
    follow = functools.partial(_mapped, of_parts=of_parts, of_leaf=of_leaf)
    if isinstance(structure, Mapping):
        made = copy.copy(structure)
        for key, value in structure.items():
            made[key] = follow(value)  # type: ignore[index]
        return made
    if isinstance(structure, tuple | list):
        items = map(follow, structure)
        return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)
    return of_leaf(structure)

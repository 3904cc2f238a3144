"""input_fns from arrays in memory, with the names of `tf.compat.v1.estimator.inputs`."""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tpudata.checks import require, require_positive_int
from tpudata.tensor_types import Array, Arrays

__all__ = ["numpy_input_fn"]


def numpy_input_fn(
    x: Arrays,
    y: Arrays = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], tf.data.Dataset]:
    """Return an input_fn over arrays.

    Batches continue across epochs: a batch may contain rows of two epochs, and the last one may be shorter.

    Args:
        x: an array [rows, ...], or a dict of arrays.
        y: labels: None, an array [rows, ...], or a dict of arrays.
        batch_size: number of rows in a batch.
        num_epochs: number of times that each row is used; None for no end.
        shuffle: whether rows are in random order; required, as in TensorFlow 1.
        queue_capacity: number of rows that a shuffle draws from; at least batch_size are used.
        num_threads: a positive int, as in TensorFlow 1; it has no effect.

    Returns:
        A function without arguments that returns a `tf.data.Dataset` of features or of (features, labels), for an Estimator.
        For a TPUEstimator, write `lambda params: numpy_input_fn(..., batch_size=params["batch_size"])()`.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: shuffle is not a bool, a number is not positive, there are no rows, or arrays have different lengths.
    """
    require("numpy_input_fn", "shuffle", shuffle, isinstance(shuffle, bool), "True or False", ValueError)
    for name, number in (("batch_size", batch_size), ("queue_capacity", queue_capacity), ("num_threads", num_threads)):
        require_positive_int("numpy_input_fn", name, number)
    features = _convert_arrays("x", x)
    labels = None if y is None else _convert_arrays("y", y)
    # Numbers of rows, by the names that messages use for the arrays.
    lengths = {name: len(array) for name, array in _name_arrays("x", features) + _name_arrays("y", labels)}
    if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise ValueError(f"numpy_input_fn: arrays must have the same number of rows, at least one, got {lengths}.")
    elements = features if labels is None else (features, labels)
    num_rows = next(iter(lengths.values()))
    buffer_size = min(max(queue_capacity, batch_size), num_rows)

    def input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(elements)
        if shuffle:
            dataset = dataset.shuffle(buffer_size)
        return dataset.repeat(num_epochs).batch(batch_size)

    return input_fn


def _convert_arrays(name: str, arrays: Arrays) -> Arrays:
    """Return an array, or a dict of arrays, as NumPy arrays; `name` is the name of the argument, for messages.

    Raises:
        TypeError: there are no arrays (None).
        ValueError: the dict is empty.
    """
    if isinstance(arrays, Mapping):
        if not arrays:
            raise ValueError(f"numpy_input_fn({name}=...) is an empty dict (expected arrays). Add one.")
        return {key: np.asarray(array) for key, array in arrays.items()}
    if arrays is None:
        raise TypeError(f"numpy_input_fn({name}=...) must be an array or a dict of arrays, got None.")
    return np.asarray(arrays)


def _name_arrays(name: str, arrays: Arrays) -> list[tuple[str, Array]]:
    """Return pairs (name for messages, array) of the arrays in the argument `name`, such as "x['image']"; [] for None."""
    if arrays is None:
        return []
    if isinstance(arrays, dict):
        return [(f"{name}[{key!r}]", array) for key, array in arrays.items()]
    return [(name, arrays)]

"""Operations on datasets and tensors: checks, casts, counts and ranges in graphs, and iteration in any mode of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Arguments of `Dataset.map`: tf.data calls the function for several elements at once, and keeps their order.
PARALLEL = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


def without_autograph(function: _Function) -> _Function:
    """Return a function that AutoGraph does not convert. It must not branch or loop on tensors in Python.

    AutoGraph would take a second to convert the functions of the first dataset that a process makes.
    """
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted


def ensure(value: tf.Tensor, condition: tf.Tensor, message: str) -> tf.Tensor:
    """Return a tensor once a condition holds; otherwise fail with `tf.errors.InvalidArgumentError` and a message.

    `tf.debugging.assert_equal` traces two more functions each time, which print the values: four of them took a quarter of the
    time in which the graph of a dataset is made.

    Args:
        value: any tensor.
        condition: bool, scalar.
        message: message of the error.
    """
    with tf.control_dependencies([tf.debugging.Assert(condition, [message])]):
        return tf.identity(value)


def cast_to_int32(name: str, value: tf.Tensor) -> tf.Tensor:
    """Return an int64 tensor as int32, which a TPU needs; return other tensors unchanged.

    A value that does not fit fails at run time with `tf.errors.InvalidArgumentError`, which names the feature.
    """
    if not isinstance(value, tf.Tensor) or value.dtype != tf.int64:
        return value
    narrow = tf.cast(value, tf.int32)
    # Without quotes: TensorFlow would print them with backslashes.
    message = (
        f"Feature {name}: a value does not fit int32, which is what a TPU takes. Omit the feature, or store"
        " smaller numbers."
    )
    return ensure(narrow, tf.reduce_all(tf.equal(tf.cast(narrow, tf.int64), value)), message)


def count_up_to(ascending: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return how many of ascending numbers are at most each value.

    `tf.searchsorted(ascending, values, "right")` gives the same with four times as many operations, each of which takes time at the
    start of every pass.

    Args:
        ascending: int64 [n].
        values: int64 [m].

    Returns:
        int64 [m].
    """
    # The operation takes matrices, and counts row by row.
    sorted_row, value_row = tf.expand_dims(ascending, 0), tf.expand_dims(values, 0)
    return tf.squeeze(tf.raw_ops.UpperBound(sorted_inputs=sorted_row, values=value_row, out_type=tf.int64), 0)


def list_range_numbers(firsts: tf.Tensor, stops: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the numbers of several ranges, one range after the other.

    Args:
        firsts: first number of each range, int64 [ranges].
        stops: the number after each range's last one, int64 [ranges].

    Returns:
        (splits, numbers): the indices in `numbers` at which the ranges begin, and its length, int64 [ranges + 1]; and the numbers,
        int64 [n].
    """
    ranges = tf.raw_ops.RaggedRange(starts=firsts, limits=stops, deltas=tf.constant(1, tf.int64), Tsplits=tf.int64)
    return ranges.rt_nested_splits, ranges.rt_dense_values


def iterate_numpy(make: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    """Yield the elements of a dataset as numpy arrays, even if eager execution is switched off.

    Args:
        make: function that makes the dataset, in the graph in which it is iterated.
    """
    if tf.executing_eagerly():
        yield from make().as_numpy_iterator()
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        element = tf.compat.v1.data.make_one_shot_iterator(make()).get_next()
        while True:
            try:
                yield session.run(element)
            except tf.errors.OutOfRangeError:
                return

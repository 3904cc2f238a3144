"""How the functions of a dataset run."""

from __future__ import annotations

import tensorflow as tf

# Functions without Python control flow over tensors; AutoGraph would take a second to convert those of the first dataset.
as_written = tf.autograph.experimental.do_not_convert
PARALLEL = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


def checked(value: tf.Tensor, condition: tf.Tensor, message: str) -> tf.Tensor:
    """Return a tensor once a condition holds; otherwise fail with `tf.errors.InvalidArgumentError` and a message.

    `tf.debugging.assert_equal` traces two more functions each time, which print the values: four of them took a quarter of the
    time in which the graph of a dataset is made.

    Args:
        value: any tensor.
        condition: bool, scalar.
        message: for the error.
    """
    with tf.control_dependencies([tf.debugging.Assert(condition, [message])]):
        return tf.identity(value)

"""Means over what counts: rows and tokens have weights, and padding has the weight 0."""

from typing import Any

import tensorflow as tf

from tpudata.models.training.replicas import num_replicas, sum_over_replicas


def weighted_mean(losses: tf.Tensor, weights: tf.Tensor, training: bool) -> tf.Tensor:
    """Return the mean of the losses by weight, 0 where all weights are 0.

    In training on several replicas the weights of all of them count: the mean of what the replicas get is that of one replica
    with all rows, also where their rows weigh differently.

    Args:
        losses: floats.
        weights: float32, of the same shape.
        training: as above; else the mean of this replica's alone.

    Returns:
        A float32 scalar.
    """
    total = tf.reduce_sum(weights)
    if training:
        total = sum_over_replicas([total])[0] / num_replicas()
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), total)


def row_weights(features: Any, rows: tf.Tensor) -> tf.Tensor:
    """Return features["weights"] as float32, or ones like `rows`, a tensor with a value for each row."""
    weights = features.get("weights") if isinstance(features, dict) else None
    return tf.ones_like(rows, tf.float32) if weights is None else tf.cast(weights, tf.float32)

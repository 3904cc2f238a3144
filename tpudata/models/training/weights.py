"""Weighted means over rows and tokens; padding has the weight 0."""

import tensorflow as tf

from tpudata.models.training.replicas import count_replicas, sum_over_replicas
from tpudata.tensor_types import Tensors


def compute_weighted_mean(losses: tf.Tensor, weights: tf.Tensor, training: bool) -> tf.Tensor:
    """Return the weighted mean of the losses, or 0 if all weights are 0.

    Training on several replicas divides by the replicas' mean sum of weights. The mean of the replicas' losses then equals the loss
    of one replica with all rows, even if some replicas have more padding.

    Args:
        losses: floats of any shape.
        weights: float32 of the same shape.
        training: whether to divide by the weights of all replicas; otherwise by this replica's weights.

    Returns:
        A float32 scalar.
    """
    weight_sum = tf.reduce_sum(weights)
    if training:
        weight_sum = sum_over_replicas([weight_sum])[0] / count_replicas()
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), weight_sum)


def get_weights_or_ones(features: Tensors, rows: tf.Tensor) -> tf.Tensor:
    """Return features["weights"] as float32 [batch]; without them, ones in the shape of `rows`, which has a value for each row."""
    weights = features.get("weights") if isinstance(features, dict) else None
    return tf.ones_like(rows, tf.float32) if weights is None else tf.cast(weights, tf.float32)

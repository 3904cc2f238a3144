"""Batch and layer normalization."""

import tensorflow as tf

from tpudata.models.layers.linear import variable

_v1 = tf.compat.v1


def batch_norm(
    inputs: tf.Tensor, training: bool, name: str, momentum: float, epsilon: float = 1e-5, zero_gamma: bool = False
) -> tf.Tensor:
    """Normalize each channel by mean and variance.

    Training uses the statistics of this replica's rows, and adds updates of the moving averages to the collection UPDATE_OPS. Other
    modes use the moving averages, which follow the rows of the first replica.

    Args:
        inputs: floats [batch, height, width, channels].
        training: whether to use the statistics of the batch.
        name: name of the variable scope.
        momentum: decay of the moving averages.
        epsilon: number added to the variance.
        zero_gamma: whether the scale is initially 0 instead of 1.

    Returns:
        Floats of the inputs' shape and dtype.
    """
    shape = [inputs.shape[3]]
    with _v1.variable_scope(name):
        gamma = variable("gamma", shape, _v1.zeros_initializer() if zero_gamma else _v1.ones_initializer())
        beta = variable("beta", shape, _v1.zeros_initializer())
        mean = variable("moving_mean", shape, _v1.zeros_initializer(), trainable=False)
        variance = variable("moving_variance", shape, _v1.ones_initializer(), trainable=False)
        if not training:
            return _v1.nn.fused_batch_norm(
                inputs, gamma, beta, mean=mean, variance=variance, epsilon=epsilon, is_training=False
            )[0]
        outputs, batch_mean, batch_variance = _v1.nn.fused_batch_norm(inputs, gamma, beta, epsilon=epsilon)
        for average, statistic in ((mean, batch_mean), (variance, batch_variance)):
            update = average.assign_sub((average - statistic) * (1 - momentum))
            _v1.add_to_collection(_v1.GraphKeys.UPDATE_OPS, update)
        return outputs


def layer_norm(inputs: tf.Tensor, name: str, epsilon: float = 1e-5) -> tf.Tensor:
    """Normalize the last axis to mean 0 and variance 1, in float32, and scale and shift it.

    Args:
        inputs: floats [..., size].
        name: name of the variable scope.
        epsilon: number added to the variance.

    Returns:
        Floats of the inputs' shape and dtype.
    """
    with _v1.variable_scope(name):
        gamma = variable("gamma", [inputs.shape[-1]], _v1.ones_initializer())
        beta = variable("beta", [inputs.shape[-1]], _v1.zeros_initializer())
    values = tf.cast(inputs, tf.float32)
    mean = tf.reduce_mean(values, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(values, mean), axis=-1, keepdims=True)
    return tf.cast((values - mean) * tf.math.rsqrt(variance + epsilon) * gamma + beta, inputs.dtype)

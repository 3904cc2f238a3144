"""Layers over `tf.compat.v1.get_variable`: variables are float32, and are computed with in the dtype of the inputs."""

from typing import Any

import tensorflow as tf

_v1 = tf.compat.v1


def dense(inputs: tf.Tensor, units: int, name: str, kernel_initializer: Any = None, use_bias: bool = True) -> tf.Tensor:
    """Multiply the last axis by a kernel (by default of Glorot's uniform values) and add a bias of zeros.

    Args:
        inputs: floats [..., size].
        units: number of outputs.
        name: of the variable scope.
        kernel_initializer: another initializer.
        use_bias: False leaves the bias out.

    Returns:
        Floats [..., units] of the inputs' dtype.
    """
    with _v1.variable_scope(name):
        kernel = variable("kernel", [inputs.shape[-1], units], kernel_initializer or _v1.glorot_uniform_initializer())
        # One matrix product, whatever the number of axes before the last.
        rows = tf.reshape(inputs, [-1, inputs.shape[-1]]) if inputs.shape.rank > 2 else inputs
        outputs = tf.matmul(rows, tf.cast(kernel, inputs.dtype))
        if use_bias:
            outputs += tf.cast(variable("bias", [units], _v1.zeros_initializer()), inputs.dtype)
    if inputs.shape.rank > 2:
        outputs = tf.reshape(outputs, [*_sizes(inputs)[:-1], units])
    return outputs


def conv(
    inputs: tf.Tensor,
    filters: int,
    kernel_size: int,
    name: str,
    strides: int = 1,
    kernel_initializer: Any = None,
    use_bias: bool = True,
) -> tf.Tensor:
    """Convolve images with a square kernel; the padding is (kernel_size - 1) / 2 on each side, whatever the stride.

    Args:
        inputs: floats [batch, height, width, channels].
        filters: number of output channels.
        kernel_size: odd.
        name: of the variable scope.
        strides: along height and width.
        kernel_initializer: by default Glorot's uniform one.
        use_bias: False leaves the bias out.

    Returns:
        Floats [batch, ceil(height / strides), ceil(width / strides), filters] of the inputs' dtype.
    """
    with _v1.variable_scope(name):
        shape = [kernel_size, kernel_size, inputs.shape[3], filters]
        kernel = variable("kernel", shape, kernel_initializer or _v1.glorot_uniform_initializer())
        if strides > 1 and kernel_size > 1:
            # SAME would pad by the size of the image, and more at its end than at its begin.
            sides = [(kernel_size - 1) // 2, kernel_size // 2]
            inputs = tf.pad(inputs, [[0, 0], sides, sides, [0, 0]])
        padding = "SAME" if strides == 1 else "VALID"
        outputs = tf.nn.conv2d(inputs, tf.cast(kernel, inputs.dtype), strides=strides, padding=padding)
        if use_bias:
            outputs += tf.cast(variable("bias", [filters], _v1.zeros_initializer()), inputs.dtype)
        return outputs


def batch_norm(
    inputs: tf.Tensor, training: bool, name: str, momentum: float, epsilon: float = 1e-5, zero_gamma: bool = False
) -> tf.Tensor:
    """Normalize each channel, by the mean and variance of this replica's rows in training, else by their moving averages.

    The updates of the moving averages go to the collection UPDATE_OPS. Of several replicas, their mean is stored.

    Args:
        inputs: floats [batch, height, width, channels].
        training: which statistics to take.
        name: of the variable scope.
        momentum: of the moving averages.
        epsilon: is added to the variance.
        zero_gamma: whether the scale begins at 0 in place of 1.

    Returns:
        Floats of the inputs' shape and dtype.
    """
    channels = [inputs.shape[3]]
    averaged = {
        "trainable": False,
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": tf.VariableAggregation.MEAN,
    }
    with _v1.variable_scope(name):
        gamma = variable("gamma", channels, _v1.zeros_initializer() if zero_gamma else _v1.ones_initializer())
        beta = variable("beta", channels, _v1.zeros_initializer())
        mean = variable("moving_mean", channels, _v1.zeros_initializer(), **averaged)
        variance = variable("moving_variance", channels, _v1.ones_initializer(), **averaged)
        if not training:
            return _v1.nn.fused_batch_norm(
                inputs, gamma, beta, mean=mean, variance=variance, epsilon=epsilon, is_training=False
            )[0]
        outputs, batch_mean, batch_variance = _v1.nn.fused_batch_norm(inputs, gamma, beta, epsilon=epsilon)
        for average, value in ((mean, batch_mean), (variance, batch_variance)):
            update = average.assign_sub((average - value) * (1 - momentum))
            _v1.add_to_collection(_v1.GraphKeys.UPDATE_OPS, update)
        return outputs


def layer_norm(inputs: tf.Tensor, name: str, epsilon: float = 1e-5) -> tf.Tensor:
    """Normalize the last axis to mean 0 and variance 1, in float32, and scale and shift it.

    Args:
        inputs: floats [..., size].
        name: of the variable scope.
        epsilon: is added to the variance.

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


def variable(name: str, shape: list[int], initializer: Any, **kwargs: Any) -> Any:
    """Return the float32 variable of that name in the variable scope."""
    return _v1.get_variable(name, shape, tf.float32, initializer, **kwargs)


def _sizes(inputs: tf.Tensor) -> list[Any]:
    dynamic = tf.shape(inputs)
    return [dynamic[i] if size is None else size for i, size in enumerate(inputs.shape)]

"""Dense and convolutional layers; variables are float32, and are cast to the dtype of the inputs."""

from collections.abc import Callable

import tensorflow as tf

_v1 = tf.compat.v1


def dense(
    inputs: tf.Tensor,
    num_units: int,
    name: str,
    kernel_initializer: Callable[..., tf.Tensor] | None = None,
    use_bias: bool = True,
) -> tf.Tensor:
    """Multiply the last axis by a kernel and add a bias, which is initially 0.

    Args:
        inputs: floats [..., size].
        num_units: number of outputs.
        name: name of the variable scope.
        kernel_initializer: function of a shape and a dtype that returns the initial kernel; None for Glorot's uniform one.
        use_bias: whether there is a bias.

    Returns:
        Floats [..., num_units] of the inputs' dtype.
    """
    with _v1.variable_scope(name):
        kernel = variable(
            "kernel", [inputs.shape[-1], num_units], kernel_initializer or _v1.glorot_uniform_initializer()
        )
        # One matrix product for any number of axes.
        rows = tf.reshape(inputs, [-1, inputs.shape[-1]]) if inputs.shape.rank > 2 else inputs
        outputs = tf.matmul(rows, tf.cast(kernel, inputs.dtype))
        if use_bias:
            outputs += tf.cast(variable("bias", [num_units], _v1.zeros_initializer()), inputs.dtype)
    if inputs.shape.rank > 2:
        outputs = tf.reshape(outputs, [*_list_sizes(inputs)[:-1], num_units])
    return outputs


def conv(
    inputs: tf.Tensor,
    filters: int,
    kernel_size: int,
    name: str,
    stride: int = 1,
    kernel_initializer: Callable[..., tf.Tensor] | None = None,
    use_bias: bool = True,
) -> tf.Tensor:
    """Convolve images with a square kernel; the padding is kernel_size - 1, half on each side, for every stride.

    Args:
        inputs: floats [batch, height, width, channels].
        filters: number of output channels.
        kernel_size: height and width of the kernel; if it is even, the end has one more row and column of padding.
        name: name of the variable scope.
        stride: stride along height and width.
        kernel_initializer: function of a shape and a dtype that returns the initial kernel; None for Glorot's uniform one.
        use_bias: whether there is a bias, which is initially 0.

    Returns:
        Floats [batch, ceil(height / stride), ceil(width / stride), filters] of the inputs' dtype.
    """
    with _v1.variable_scope(name):
        shape = [kernel_size, kernel_size, inputs.shape[3], filters]
        kernel = variable("kernel", shape, kernel_initializer or _v1.glorot_uniform_initializer())
        if stride > 1 and kernel_size > 1:
            # With a stride, the padding of SAME depends on the image's size, and may be larger at the end than at the beginning.
            margins = [(kernel_size - 1) // 2, kernel_size // 2]
            inputs = tf.pad(inputs, [[0, 0], margins, margins, [0, 0]])
        padding = "SAME" if stride == 1 else "VALID"
        outputs = tf.nn.conv2d(inputs, tf.cast(kernel, inputs.dtype), strides=stride, padding=padding)
        if use_bias:
            outputs += tf.cast(variable("bias", [filters], _v1.zeros_initializer()), inputs.dtype)
        return outputs


def variable(name: str, shape: list[int], initializer: Callable[..., tf.Tensor], **kwargs: object) -> tf.Variable:
    """Return the float32 variable `name` of the current scope, made by the first call; `kwargs` go to get_variable."""
    return _v1.get_variable(name, shape, tf.float32, initializer, **kwargs)


def _list_sizes(inputs: tf.Tensor) -> list[int | tf.Tensor]:
    """Return the size of each axis: a number if it is static, else a scalar tensor."""
    dynamic_sizes = tf.shape(inputs)
    return [dynamic_sizes[axis] if size is None else size for axis, size in enumerate(inputs.shape)]

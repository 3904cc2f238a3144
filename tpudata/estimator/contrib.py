"""Functions of `tf.contrib.layers` that TensorFlow no longer has, with the same results and names."""

import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

__all__ = ["flatten", "l1_regularizer", "l2_regularizer", "layer_norm"]

# Epsilon of tf.contrib.layers.layer_norm for float32, and for float16.
_EPSILON = 1e-12
_HALF_EPSILON = 1e-3


def flatten(
    inputs: tf.Tensor, outputs_collections: str | Sequence[str] | None = None, scope: str | None = None
) -> tf.Tensor:
    """Flatten each row as `tf.contrib.layers.flatten` did; `tf.layers.flatten` needs the old Keras.

    Args:
        inputs: a tensor of shape (rows, ...), of a static rank.
        outputs_collections: a name, or a list of names, of collections for the result, or None.
        scope: name scope of the operations; None for Flatten.

    Returns:
        A tensor of shape (rows, product of the other sizes), of the dtype of `inputs`.

    Raises:
        ValueError: the rank is unknown or 0.
    """
    v1 = tf.compat.v1
    with v1.name_scope(scope, "Flatten", [inputs]):
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.rank
        if not rank:
            raise ValueError(f"flatten: {inputs.name} has the rank {rank} (expected 1 or more). Set its shape.")
        sizes = inputs.shape[1:]
        if sizes.is_fully_defined():
            # The number of rows is passed, since reshape cannot compute it (-1) if a size is 0.
            outputs = tf.reshape(inputs, [tf.shape(inputs)[0], math.prod(sizes)])
            outputs.set_shape([inputs.shape[0], math.prod(sizes)])
        else:
            shape = tf.shape(inputs)
            outputs = tf.reshape(inputs, [shape[0], tf.reduce_prod(shape[1:])])
        if outputs_collections:
            v1.add_to_collections(outputs_collections, outputs)
        return outputs


def l1_regularizer(scale: float, scope: str | None = None) -> Callable[[tf.Tensor], tf.Tensor | None]:
    """Return a function that computes `scale * sum(abs(weights))`, as `tf.contrib.layers.l1_regularizer` did.

    Args:
        scale: factor, 0 or more; 0.0 for no regularization.
        scope: name scope of the operations, or None.

    Raises:
        ValueError: the scale is an integer or negative.
    """
    return _make_regularizer("l1_regularizer", scale, scope, lambda weights: tf.reduce_sum(tf.abs(weights)))


def l2_regularizer(scale: float, scope: str | None = None) -> Callable[[tf.Tensor], tf.Tensor | None]:
    """Return a function that computes `scale * sum(weights ** 2) / 2`, as `tf.contrib.layers.l2_regularizer` did.

    Args:
        scale: factor, 0 or more; 0.0 for no regularization.
        scope: name scope of the operations, or None.

    Raises:
        ValueError: the scale is an integer or negative.
    """
    return _make_regularizer("l2_regularizer", scale, scope, tf.nn.l2_loss)


def layer_norm(
    inputs: tf.Tensor,
    center: bool = True,
    scale: bool = True,
    activation_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
    reuse: object = None,
    variables_collections: str | Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    outputs_collections: str | Sequence[str] | None = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: str | tf.compat.v1.VariableScope | None = None,
) -> tf.Tensor:
    """Normalize over the axes from begin_norm_axis on, with the results and variable names of `tf.contrib.layers.layer_norm`.

    Args:
        inputs: floats of a static rank, with static sizes from begin_params_axis on.
        center: whether to add the variable SCOPE/beta.
        scale: whether to multiply by the variable SCOPE/gamma.
        activation_fn: function applied to the result, or None.
        reuse: whether to reuse the variables of the scope, as in tf.compat.v1.variable_scope.
        variables_collections: a name or a list of names of collections for the variables, or a dict of these by "beta" and
            "gamma"; or None.
        outputs_collections: a name, or a list of names, of collections for the result, or None.
        trainable: whether the variables are trainable.
        begin_norm_axis: first of the axes over which mean and variance are computed.
        begin_params_axis: first axis of beta and gamma.
        scope: name of the variable scope; None for LayerNorm.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Raises:
        ValueError: the rank or a size is unknown, or an axis does not exist.
    """
    v1 = tf.compat.v1
    inputs = tf.convert_to_tensor(inputs)
    with v1.variable_scope(scope, "LayerNorm", [inputs], reuse=reuse):
        rank = inputs.shape.rank
        if rank is None:
            raise ValueError(f"layer_norm: {inputs.name} has an unknown rank (expected a known one). Set its shape.")
        # As in NumPy, negative axes count from the end.
        norm_axis = begin_norm_axis + rank if begin_norm_axis < 0 else begin_norm_axis
        params_axis = begin_params_axis + rank if begin_params_axis < 0 else begin_params_axis
        if not 0 <= norm_axis < rank or not 0 <= params_axis < rank:
            raise ValueError(
                f"layer_norm(begin_norm_axis={begin_norm_axis}, begin_params_axis={begin_params_axis}): no such axis of "
                f"{inputs.name} (it has {rank}). Pass one below."
            )
        shape = inputs.shape[params_axis:]
        if not shape.is_fully_defined():
            raise ValueError(
                f"layer_norm: {inputs.name} must have known sizes from axis {params_axis} on, got {inputs.shape}. Set its shape."
            )

        def make_variable(name: str, initializer: Callable[[], object]) -> tf.Variable:
            """Return the variable SCOPE/`name`, with the sizes of `inputs` from begin_params_axis on."""
            return v1.get_variable(
                name,
                shape,
                inputs.dtype,
                initializer(),
                trainable=trainable,
                collections=_list_collections(variables_collections, name),
            )

        beta = make_variable("beta", v1.zeros_initializer) if center else None
        gamma = make_variable("gamma", v1.ones_initializer) if scale else None
        mean, variance = tf.nn.moments(inputs, list(range(norm_axis, rank)), keepdims=True)
        epsilon = _HALF_EPSILON if inputs.dtype == tf.float16 else _EPSILON
        outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)
        outputs.set_shape(inputs.shape)
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        if outputs_collections:
            v1.add_to_collections(outputs_collections, outputs)
        return outputs


def _make_regularizer(
    function_name: str, scale: float, scope: str | None, penalty: Callable[[tf.Tensor], tf.Tensor]
) -> Callable[[tf.Tensor], tf.Tensor | None]:
    """Return a function that computes `scale * penalty(weights)`, or returns None if the scale is 0.

    Args:
        function_name: name of the public function, for messages and as the default name scope.
        scale: factor, a float of 0 or more.
        scope: name scope of the operations, or None.
        penalty: function from the weights to a scalar.

    Raises:
        ValueError: the scale is an integer or negative.
    """
    if isinstance(scale, int) or scale < 0:
        raise ValueError(
            f"{function_name}: wrong scale (got {scale!r}, expected a float of 0 or more). Pass another one."
        )
    if scale == 0:
        return lambda _: None

    def regularize(weights: tf.Tensor, name: str | None = None) -> tf.Tensor:
        with tf.compat.v1.name_scope(scope, function_name, [weights]) as scope_name:
            factor = tf.convert_to_tensor(scale, weights.dtype.base_dtype, name="scale")
            return tf.multiply(factor, penalty(weights), name=name or scope_name)

    return regularize


def _list_collections(
    collections: str | Sequence[str] | Mapping[str, Sequence[str]] | None, name: str
) -> list[str] | None:
    """Return get_variable's `collections`: the chosen ones and GLOBAL_VARIABLES; None, its default, if none are chosen.

    Args:
        collections: a name or a list of names of collections, the same for all variables; or a dict of these by variable name.
        name: name of the variable, such as "beta".
    """
    if isinstance(collections, Mapping):
        collections = collections.get(name)
    if not collections:
        return None
    names = [collections] if isinstance(collections, str) else list(collections)
    return [*names, tf.compat.v1.GraphKeys.GLOBAL_VARIABLES]

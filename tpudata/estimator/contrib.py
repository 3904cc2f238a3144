"""Layers of `tf.contrib` that programs cannot do without: their variables are in everybody's checkpoints."""

from typing import Any

import tensorflow as tf

__all__ = ["layer_norm"]

# Of tf.contrib.layers.layer_norm for float32; 1e-3 for float16.
_EPSILON = 1e-12
_HALF_EPSILON = 1e-3


def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Any:
    """Normalize each row, as `tf.contrib.layers.layer_norm` did (BERT and its kin), under the same names of variables.

    Args:
        inputs: floats of a static rank, and of static sizes from begin_params_axis on.
        center: whether to add the variable SCOPE/beta.
        scale: whether to multiply by the variable SCOPE/gamma.
        activation_fn: applied to the result, or None.
        reuse: of the variable scope.
        variables_collections: names of collections for the variables, or None.
        outputs_collections: a name, or a list of names, of collections for the result, or None.
        trainable: whether the variables are.
        begin_norm_axis: the first axis that mean and variance are taken over.
        begin_params_axis: the first axis of beta and gamma.
        scope: name of the variable scope; by default LayerNorm.

    Returns:
        A tensor like `inputs`.

    Raises:
        ValueError: an unknown rank or size, or an axis that is not there.
    """
    v1 = tf.compat.v1
    inputs = tf.convert_to_tensor(inputs)
    with v1.variable_scope(scope, "LayerNorm", [inputs], reuse=reuse):
        rank = inputs.shape.rank
        if rank is None:
            raise ValueError(f"layer_norm: {inputs.name} has an unknown rank. Set its shape.")
        norm, params = (axis + rank if axis < 0 else axis for axis in (begin_norm_axis, begin_params_axis))
        if not 0 <= norm < rank or not 0 <= params < rank:
            raise ValueError(
                f"layer_norm(begin_norm_axis={begin_norm_axis}, begin_params_axis={begin_params_axis}): {inputs.name} has {rank} "
                "axes."
            )
        shape = inputs.shape[params:]
        if not shape.is_fully_defined():
            raise ValueError(
                f"layer_norm: {inputs.name} has the shape {inputs.shape}; sizes from axis {params} on must be known."
            )

        def parameter(name: str, initializer: Any) -> Any:
            return v1.get_variable(
                name,
                shape,
                inputs.dtype,
                initializer(),
                trainable=trainable,
                collections=_collections(variables_collections, name),
            )

        beta = parameter("beta", v1.zeros_initializer) if center else None
        gamma = parameter("gamma", v1.ones_initializer) if scale else None
        mean, variance = tf.nn.moments(inputs, list(range(norm, rank)), keepdims=True)
        epsilon = _HALF_EPSILON if inputs.dtype == tf.float16 else _EPSILON
        outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)
        outputs.set_shape(inputs.shape)
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        if outputs_collections:
            v1.add_to_collections(outputs_collections, outputs)
        return outputs


def _collections(given: Any, name: str) -> list[str] | None:
    if isinstance(given, dict):
        given = given.get(name)
    if not given:
        return None
    names = [given] if isinstance(given, str) else list(given)
    return [*names, tf.compat.v1.GraphKeys.GLOBAL_VARIABLES]

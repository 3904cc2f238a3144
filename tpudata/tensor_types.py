"""Names in signatures for tensors, their specs and their values, each also in nested structures.

TensorFlow has no type stubs, so to type checkers these names are `Any`. They tell readers whether a signature takes tensors, specs
or NumPy values. A structure is one leaf or a dict, list or tuple of structures, as in `tf.nest`; None stands for an absent one.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf

# Structure of tensors: `tf.Tensor`s, sparse or ragged ones, variables, and other values that TensorFlow converts to tensors.
Tensors: TypeAlias = Any
# Element of a dataset: features, (features, labels) or (features, labels, weights), each a structure of tensors or of their specs.
Element: TypeAlias = Any
# Scalar: a Python number, or a tensor if it is computed in a graph.
Scalar: TypeAlias = "float | tf.Tensor"
# Structure of `tf.TypeSpec`s, mostly `tf.TensorSpec`s, which describe tensors.
Specs: TypeAlias = Any
# Value of a tensor in NumPy: an array, a scalar, or bytes for a scalar string.
Array: TypeAlias = Any
# Structure of `Array`s.
Arrays: TypeAlias = Any
# Structure of global `jax.Array`s.
DeviceArrays: TypeAlias = Any
# Tensor or operation of a graph.
GraphElement: TypeAlias = "tf.Tensor | tf.Operation"

"""Values of several replicas, joined to values of the whole batch."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.processes.topology import Topology
from tpudata.estimator.api.spec import HostTensors
from tpudata.tensor_types import Array, Specs, Tensors


class ReplicaValues:
    """Rules by which values of several replicas become one.

    Attributes:
        is_broadcast: whether all replicas get the same rows.

    Args:
        topology: devices that run the steps.
        specs: the `tf.TensorSpec` structures of one replica's (features, labels).
        is_broadcast: whether all replicas get the same rows.
    """

    def __init__(self, topology: Topology, specs: tuple[Specs, Specs], *, is_broadcast: bool) -> None:
        self.is_broadcast = is_broadcast
        self._topology = topology
        self._specs = specs

    def concatenate(self, values: list[Array]) -> Array:
        """Concatenate the replicas' values (NumPy, in order) along axis 0; if all got the same rows, return the first value."""
        return values[0] if len(values) == 1 or self.is_broadcast else np.concatenate(values)

    def join(self, values: list[Array]) -> Array:
        """Join the replicas' values (NumPy, in order) of a fetch.

        If all replicas got the same rows, the result is the first replica's value. Otherwise, rows are concatenated, other floats
        are averaged, and all other values are the first replica's.
        """
        first_value = values[0]
        if len(values) == 1 or self.is_broadcast:
            return first_value
        if self._has_rows(first_value.shape):
            return np.concatenate(values)
        # TensorFlow's dtype, since bfloat16 is not a floating dtype in NumPy.
        if tf.as_dtype(first_value.dtype).is_floating:
            return (np.sum(values, axis=0) / len(values)).astype(first_value.dtype)
        return first_value

    def _has_rows(self, shape: tuple[int, ...]) -> bool:
        """Return whether a replica's value of this shape has as many rows as its batch, and so probably a row for each."""
        batch_shapes = [spec.shape for spec in tf.nest.flatten(self._specs) if spec is not None and spec.shape.rank]
        return bool(shape and batch_shapes and shape[0] == batch_shapes[0][0])

    def convert_host_tensors(self, pair: tuple[Callable[..., object], HostTensors] | None, field: str) -> Tensors:
        """Convert the arguments of a host function to tensors of one replica, in the default graph; () without a function.

        Args:
            pair: a spec's `host_call` or `eval_metrics`, a function and its tensors; or None.
            field: name of the spec's field, for messages.

        Raises:
            ModelFnValueError: there are several replicas, or a TPU, and a tensor is a scalar or of unknown rank.
        """
        if pair is None:
            return ()
        _, host_tensors = pair
        tensors = tf.nest.map_structure(tf.convert_to_tensor, host_tensors)
        for tensor in tf.nest.flatten(tensors):
            if self._topology.is_sharded and tensor.shape.rank is None:
                raise ModelFnValueError(
                    f"TPUEstimatorSpec({field}=...): tensors of all replicas are concatenated along their first axis (got "
                    f"{tensor.name!r} of unknown rank, expected a value for each row, or the shape [1]). Set its shape."
                )
            if self._topology.is_sharded and tensor.shape.rank == 0:
                raise ModelFnValueError(
                    f"TPUEstimatorSpec({field}=...): tensors of all replicas are concatenated along their first axis (got the "
                    f"scalar {tensor.name!r}, expected a value for each row, or the shape [1]). Reshape it to [1]."
                )
        return tensors


def concatenate_specs(tensors: Tensors, num_replicas: int) -> Specs:
    """Return the specs of the tensors of all replicas, concatenated along their first axis; scalars keep their spec.

    Args:
        tensors: a structure of tensors of one replica.
        num_replicas: number of replicas.
    """

    def make_spec(tensor: tf.Tensor) -> tf.TensorSpec:
        """Return the spec of the concatenated tensors."""
        shape = tensor.shape
        if shape.rank:
            shape = [None if shape[0] is None else shape[0] * num_replicas, *shape[1:]]
        return tf.TensorSpec(shape, tensor.dtype)

    return tf.nest.map_structure(make_spec, tensors)

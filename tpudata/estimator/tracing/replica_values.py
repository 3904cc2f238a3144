"""Values of several replicas, joined to values of the whole batch."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.graph.structure import batch_function


class ReplicaValues:
    """Rules by which values of several replicas become one.

    Args:
        topology: topology that runs the steps.
        specs: the `tf.TensorSpec` structures of one replica's (features, labels).
        broadcast: whether all replicas get the same rows.
    """

    def __init__(self, topology: Topology, specs: tuple[Any, Any], *, broadcast: bool) -> None:
        self.broadcast = broadcast
        self._topology = topology
        self._specs = specs

    def parts(self, value: Any) -> list[Any]:
        """Return the tensors of a per-replica value, in the order of replicas; one if all replicas have the same rows."""
        parts = self._topology.strategy.experimental_local_results(value)
        return list(parts[:1] if self.broadcast else parts)

    def concatenated(self, structure: Any) -> Any:
        """Return a structure of per-replica values, each concatenated along its first axis."""
        return tf.nest.map_structure(lambda value: _concatenated(self.parts(value)), structure)

    def joined(self, value: Any) -> Any:
        """Return one tensor for a fetched value: rows concatenated, other floats averaged, and the first replica's for the rest."""
        parts = self.parts(value)
        if len(parts) == 1:
            return parts[0]
        if self._has_rows(parts[0].shape):
            return tf.concat(parts, axis=0)
        return tf.add_n(parts) / len(parts) if parts[0].dtype.is_floating else parts[0]

    def joined_spec(self, tensor: Any) -> tf.TensorSpec:
        """Return the `tf.TensorSpec` of the result of `joined` for a tensor of one replica."""
        shape = tensor.shape
        if self._topology.is_sharded and not self.broadcast and self._has_rows(shape):
            shape = joined_shape(shape, self._topology.local_replicas)
        return tf.TensorSpec(shape, tensor.dtype)

    def _has_rows(self, shape: Any) -> bool:
        specs = [item.shape for item in tf.nest.flatten(self._specs) if item is not None and item.shape.rank]
        return bool(shape.rank and specs and shape[0] == specs[0][0])

    def host_tensors(self, pair: tuple[Any, Any] | None, field: str) -> Any:
        """Return the tensors of one replica for a function of the host, in their graph; `()` if there is no function.

        Args:
            pair: a spec's `host_call` or `eval_metrics`, a function and its tensors; or None.
            field: name of the field.

        Raises:
            ModelFnValueError: a tensor is a scalar, and there are several replicas.
        """
        if pair is None:
            return ()
        converted = tf.nest.map_structure(tf.convert_to_tensor, pair[1])
        for tensor in tf.nest.flatten(converted) if self._topology.is_sharded else ():
            if not tensor.shape.rank:
                raise ModelFnValueError(
                    f"TPUEstimatorSpec({field}=...): tensors of all replicas are concatenated along their first axis (got the "
                    f"scalar {tensor.name!r}, expected a value for each row, or the shape [1]). Reshape it to [1]."
                )
        return converted

    def compiled(self, function: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
        """Return a function of batches as a `tf.function`.

        Args:
            function: function of features, and of labels if `specs` has them.
            specs: specs of one replica's arguments.
        """
        if self._topology.is_sharded:  # All batches have one shape; arguments are per-replica values.
            compiled: Callable[..., Any] = tf.function(function, autograph=False)
            return compiled
        return batch_function(function, specs)


def joined_shape(shape: Any, replicas: int) -> Any:
    """Return the shape of tensors of `shape`, concatenated along their first axis."""
    if not shape.rank:
        return shape
    rows = None if shape[0] is None else shape[0] * replicas
    return tf.TensorShape([rows, *shape[1:]])


def _concatenated(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)

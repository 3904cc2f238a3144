"""Values of several replicas, joined into those of the whole batch."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.graph.structure import batch_function


class ReplicaValues:
    """The rules by which values of replicas become one.

    Args:
        topology: runs the steps.
        specs: the `tf.TensorSpec` structures of (features, labels), as one replica gets them.
        broadcast: whether all replicas get the same rows.
    """

    def __init__(self, topology: Topology, specs: tuple[Any, Any], *, broadcast: bool) -> None:
        self.broadcast = broadcast
        self._topology = topology
        self._specs = specs

    def parts(self, value: Any) -> list[Any]:
        """Return the tensors of one value of all replicas, in their order; one if all have the same rows."""
        parts = self._topology.strategy.experimental_local_results(value)
        return list(parts[:1] if self.broadcast else parts)

    def concatenated(self, structure: Any) -> Any:
        """Return a structure of per-replica values with each joined along its first axis."""
        return tf.nest.map_structure(lambda value: _concatenated(self.parts(value)), structure)

    def joined(self, value: Any) -> Any:
        """Return one tensor for a fetched value: rows are joined, other floats averaged, of the rest the first replica's counts."""
        parts = self.parts(value)
        if len(parts) == 1:
            return parts[0]
        if self._has_rows(parts[0].shape):
            return tf.concat(parts, axis=0)
        return tf.add_n(parts) / len(parts) if parts[0].dtype.is_floating else parts[0]

    def joined_spec(self, tensor: Any) -> tf.TensorSpec:
        """Return the `tf.TensorSpec` of what `joined` gives for a tensor of one replica."""
        shape = tensor.shape
        if self._topology.is_sharded and not self.broadcast and self._has_rows(shape):
            shape = joined_shape(shape, self._topology.local_replicas)
        return tf.TensorSpec(shape, tensor.dtype)

    def _has_rows(self, shape: Any) -> bool:
        specs = [item.shape for item in tf.nest.flatten(self._specs) if item is not None and item.shape.rank]
        return bool(shape.rank and specs and shape[0] == specs[0][0])

    def host_tensors(self, pair: tuple[Any, Any] | None, field: str) -> Any:
        """Return the tensors for a function of the host, in the graph that they belong to; `()` if there is no function.

        Args:
            pair: a spec's `host_call` or `eval_metrics`: the function, and its tensors as one replica has them; or None.
            field: its name.

        Raises:
            ModelFnValueError: on several replicas, one is a scalar.
        """
        if pair is None:
            return ()
        converted = tf.nest.map_structure(tf.convert_to_tensor, pair[1])
        for tensor in tf.nest.flatten(converted) if self._topology.is_sharded else ():
            if not tensor.shape.rank:
                raise ModelFnValueError(
                    f"TPUEstimatorSpec({field}=...): {tensor.name!r} is a scalar, and the tensors of all replicas are "
                    "joined along their first axis (expected a value for each row, or the shape [1]). Reshape it to [1]."
                )
        return converted

    def compiled(self, function: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
        """Return a function of batches as a `tf.function`.

        Args:
            function: of features, and of labels if `specs` has them.
            specs: of one replica's.
        """
        if self._topology.is_sharded:  # One shape for all batches, and values of several replicas.
            compiled: Callable[..., Any] = tf.function(function, autograph=False)
            return compiled
        return batch_function(function, specs)


def joined_shape(shape: Any, replicas: int) -> Any:
    """Return the shape of tensors of `shape`, joined along their first axis."""
    if not shape.rank:
        return shape
    rows = None if shape[0] is None else shape[0] * replicas
    return tf.TensorShape([rows, *shape[1:]])


def _concatenated(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)

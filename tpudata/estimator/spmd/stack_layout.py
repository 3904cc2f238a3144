"""Layout of stacks on the devices: arrays [capacity, replicas, ...], each device with the column of its replica."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.estimator.feeding.signature import leaves, split_element
from tpudata.input.devices.global_arrays import global_array


class StackLayout:
    """Layout of one feed's stacks.

    Args:
        specs: spec of each tensor of an element, from `device_specs`.
        mesh: `jax.sharding.Mesh` of the devices in the order of the replicas, with one axis.
        local_replicas: number of this process's replicas.
        capacity: number of steps in a stack.

    Raises:
        ValueError: the mesh has another number of this process's devices.
    """

    def __init__(self, specs: Sequence[Any], mesh: Any, local_replicas: int, capacity: int) -> None:
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        self._specs = specs
        self._capacity = capacity
        self._sharding = NamedSharding(mesh, PartitionSpec(None, mesh.axis_names[0]))
        devices = enumerate(mesh.devices.flat)
        own = [replica for replica, device in devices if device.process_index == jax.process_index()]
        # The local number of each replica of this process.
        self._columns = {replica: column for column, replica in enumerate(own)}
        if len(own) != local_replicas:
            raise ValueError(
                f"StackFeed: the mesh has other devices of this process (got {len(own)}, expected {local_replicas}). Use the "
                "devices of the topology."
            )

    def place(self, columns: Sequence[Sequence[Any]] | None) -> list[Any]:
        """Return the global arrays of a stack.

        Args:
            columns: for each replica of this process its arrays [capacity, ...], which nobody writes to any more; None for zeros.
        """
        import jax

        with jax.enable_x64(True), jax.profiler.TraceAnnotation("tpudata: place a stack"):
            return [self._placed(number, columns) for number in range(len(self._specs))]

    def _placed(self, number: int, columns: Sequence[Sequence[Any]] | None) -> Any:
        spec = self._specs[number]
        dtype = spec.dtype.as_numpy_dtype

        def part(replica: int, _: int) -> Any:
            shape = (self._capacity, 1, *spec.shape)
            return np.zeros(shape, dtype) if columns is None else columns[self._columns[replica]][number].reshape(shape)

        shape = (self._capacity, self._sharding.mesh.size, *spec.shape)
        return global_array(shape, dtype, self._sharding, 1, part)


def device_specs(element_spec: Any) -> list[Any]:
    """Return the spec of each tensor of an element, in the order of `tf.nest.flatten` without None.

    Raises:
        ValueError: devices do not take a tensor, because of its kind, dtype or shape.
    """
    for path, spec in leaves(split_element(element_spec)):
        if spec.is_compatible_with(None):  # TensorFlow 2.20 has no tf.NoneTensorSpec.
            continue
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(
                f"input_fn: devices take dense tensors (got {path} as a {type(spec).__name__}, expected a tf.Tensor). Use "
                "to_dense or to_tensor in the dataset's map."
            )
        if spec.dtype in (tf.string, tf.variant, tf.resource) or spec.dtype.is_quantized:
            raise ValueError(
                f"input_fn: devices take numbers (got {path} as {spec.dtype.name}, expected a number or bool). Omit it in the "
                "dataset's map, or turn it into numbers."
            )
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"input_fn: devices take static shapes (got {path} as {spec.shape}, expected no None). Use set_shape in the "
                "dataset's map, or batch(..., drop_remainder=True)."
            )
    return [spec for spec in tf.nest.flatten(element_spec) if isinstance(spec, tf.TensorSpec)]

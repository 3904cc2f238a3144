"""Layout of stacks on the devices: arrays [capacity, replicas, ...], each device with the column of its replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tpudata.devices.batches.global_arrays import make_global_array
from tpudata.tensor_types import Array

if TYPE_CHECKING:
    import jax
    import tensorflow as tf
    from jax.sharding import Mesh


class StackLayout:
    """Layout of one feed's stacks.

    Args:
        specs: spec of each tensor of an element: numbers of static shape.
        mesh: `jax.sharding.Mesh` of the devices in the order of the replicas, with one axis.
        num_local_replicas: number of this process's replicas.
        capacity: number of steps in a stack.

    Raises:
        ValueError: the mesh has a different number of this process's devices.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], mesh: Mesh, num_local_replicas: int, capacity: int) -> None:
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        self._specs = specs
        self._capacity = capacity
        self._sharding = NamedSharding(mesh, PartitionSpec(None, mesh.axis_names[0]))
        process_index = jax.process_index()
        process_replicas = [
            replica for replica, device in enumerate(mesh.devices.flat) if device.process_index == process_index
        ]
        # For each replica of this process, its index among them.
        self._local_indices = {replica: index for index, replica in enumerate(process_replicas)}
        if len(process_replicas) != num_local_replicas:
            raise ValueError(
                f"StackFeed: the mesh has other devices of this process (got {len(process_replicas)}, expected "
                f"{num_local_replicas}). Use the devices of the topology."
            )

    def place(self, columns: Sequence[Sequence[Array]] | None) -> list[jax.Array]:
        """Return the global arrays of a stack.

        Args:
            columns: the arrays [capacity, ...] of each replica of this process, which must not be written to afterwards; None to
                fill the stack with zeros.
        """
        import jax

        # Otherwise jax would make 64-bit numbers 32-bit ones.
        with jax.enable_x64(True), jax.profiler.TraceAnnotation("tpudata: place a stack"):
            return [self._place_tensor(index, columns) for index in range(len(self._specs))]

    def _place_tensor(self, tensor_index: int, columns: Sequence[Sequence[Array]] | None) -> jax.Array:
        """Return the global array of the element's tensor `tensor_index`, of zeros if `columns` is None; see `place`."""
        spec = self._specs[tensor_index]
        dtype = spec.dtype.as_numpy_dtype

        # Each device has one replica, so the end of its range is not needed.
        def make_part(replica: int, _: int) -> Array:
            shape = (self._capacity, 1, *spec.shape)
            if columns is None:
                return np.zeros(shape, dtype)
            return columns[self._local_indices[replica]][tensor_index].reshape(shape)

        shape = (self._capacity, self._sharding.mesh.size, *spec.shape)
        return make_global_array(shape, dtype, self._sharding, axis=1, make_part=make_part)

"""The devices of a run as a mesh, and arrays on them."""

import itertools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpudata.tensor_types import Array

AXIS = "replicas"


def make_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """Return the mesh of the devices, in the order of the replicas."""
    return Mesh(np.asarray(devices), (AXIS,))


def list_local_devices(mesh: Mesh) -> list[jax.Device]:
    """Return the devices of this process, in the order of the replicas."""
    process_index = jax.process_index()
    return [device for device in mesh.devices.flat if device.process_index == process_index]


def replicate(mesh: Mesh, value: Array) -> jax.Array:
    """Return an array with a copy of `value` (NumPy) on every device; all processes must pass the same value."""
    # Copied: on CPUs jax may share the memory of an array, and a step writes to donated arrays.
    copies = [jax.device_put(np.array(value), device) for device in list_local_devices(mesh)]
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.make_array_from_single_device_arrays(np.shape(value), sharding, copies)


def split_rows(mesh: Mesh, rows: Sequence[Array]) -> jax.Array:
    """Return an array [replicas, ...] with a row on each device.

    Args:
        mesh: the devices, in the order of the replicas.
        rows: values (NumPy) of this process's replicas, in order.
    """
    parts = [
        jax.device_put(np.array(row)[np.newaxis], device)
        for row, device in zip(rows, list_local_devices(mesh), strict=True)
    ]
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    return jax.make_array_from_single_device_arrays((mesh.size, *np.shape(rows[0])), sharding, parts)


def get_first_copy(array: jax.Array) -> jax.Array:
    """Return a replicated array's copy on the first device of this process."""
    return array.addressable_data(0)


def wait_on_cpus(mesh: Mesh, *results: object) -> None:
    """Wait for the program that computes `results` if the devices are several CPUs: concurrent programs can deadlock there."""
    if mesh.size > 1 and mesh.devices.flat[0].platform == "cpu":
        # Wait for one array: all are ready together, and waiting for each of 1,800 variables on 8 devices takes 20 ms.
        first_array = next(itertools.chain.from_iterable(map(jax.tree.leaves, results)), None)
        if first_array is not None:
            first_array.block_until_ready()


def list_local_parts(array: jax.Array, axis: int = 0) -> list[Array]:
    """Return this process's parts of an array that is split along `axis`: for each replica, a NumPy array without that axis."""
    # A shard that is the whole array has no start.
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return [np.asarray(shard.data).squeeze(axis) for shard in shards]

"""A user's function, compiled for some devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpudata.estimator.spmd.lowering import lower
from tpudata.estimator.system.traced_function import NUMBERS, TracedFunction

AXIS = "replicas"
WHOLE = PartitionSpec()
SPLIT = PartitionSpec(AXIS)


class DeviceFunction:
    """A function of the user's that a mesh of devices runs, one replica on each.

    Attributes:
        mesh: the devices.
        variables: the `tf.Variable`s that it uses, by name.

    Args:
        function: a Python function or a `tf.function`.
        structure: structure of its arguments, a jax `PyTreeDef`.
        specs: specs of the tensors of one replica.
        splits: whether the rows of each tensor are split over the replicas.
        mesh: the devices.

    Raises:
        ModelFnValueError: XLA cannot compile an operation.
        UsageError: the function uses a resource other than variables.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        structure: Any,
        specs: Sequence[tf.TensorSpec],
        splits: Sequence[bool],
        mesh: Mesh,
    ) -> None:
        traced = TracedFunction(function, structure, specs, mesh.size)
        program = lower(traced, [*NUMBERS, *specs], traced.variables, "tpu_system")
        self.mesh = mesh
        self._splits = tuple(splits)
        self._results = traced.results
        self._read = [name for name in program.variables if name not in program.updates]
        self._updates = program.updates
        self.variables = {name: traced.variables[name] for name in program.variables}

        def run(number: Any, tensors: Any, read: Any, written: Any) -> tuple[Any, Any]:
            replica = lax.axis_index(AXIS).astype(np.int32)
            results, updates = program([replica, number, *tensors], {**read, **written})
            return [value[None] for value in results], {
                name: _of_first_replica(value, replica) for name, value in updates.items()
            }

        inputs = [SPLIT if split else WHOLE for split in self._splits]
        mapped = jax.shard_map(
            run, mesh=mesh, in_specs=(WHOLE, inputs, WHOLE, WHOLE), out_specs=(SPLIT, WHOLE), check_vma=False
        )
        self._run = jax.jit(mapped, donate_argnums=3)

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the variables that it changes."""
        return self._updates

    def __call__(self, number: int, tensors: Sequence[Any], values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Run the function on all devices of the mesh.

        Args:
            number: number of this call.
            tensors: arrays of this process: rows of its replicas together, or whole.
            values: values of the variables on the devices, by name; those of `writes` are used up.

        Returns:
            The results, in the structure that the function returns, as numpy arrays with an axis of this process's replicas
            before their own; and the new values of the variables.
        """
        with jax.enable_x64(True):
            arrays = [
                _split_rows(tensor, self.mesh) if split else put_whole(tensor, self.mesh)
                for tensor, split in zip(tensors, self._splits, strict=True)
            ]
            read = {name: values[name] for name in self._read}
            written = {name: values[name] for name in self._updates}
            results, updates = self._run(np.int64(number), arrays, read, written)
            if self.mesh.devices.flat[0].platform == "cpu":
                # Several executions in flight can wait for each other's threads in a collective.
                jax.block_until_ready((results, updates))
            return jax.tree.unflatten(self._results, map(_local_values, results)), updates


def put_whole(value: Any, mesh: Mesh) -> jax.Array:
    """Return an array with the same value on all devices of a mesh."""
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, WHOLE), lambda index: value[index])


def _split_rows(value: np.ndarray, mesh: Mesh) -> jax.Array:
    return jax.make_array_from_process_local_data(NamedSharding(mesh, SPLIT), value)


def _local_values(array: jax.Array) -> np.ndarray:
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def _of_first_replica(value: Any, replica: Any) -> Any:
    """Return the first replica's value of a variable, which the others may compute differently."""
    number = value.astype(np.int32) if value.dtype == bool else value
    return lax.psum(jax.numpy.where(replica == 0, number, jax.numpy.zeros_like(number)), AXIS).astype(value.dtype)

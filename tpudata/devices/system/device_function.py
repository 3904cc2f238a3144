"""A user's function, compiled for some devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import NamedSharding, PartitionSpec

from tpudata.devices.batches.global_arrays import global_array
from tpudata.devices.graphs.traced_code import tracing_function
from tpudata.devices.spmd.lowering import ReplicaProgram, lower
from tpudata.devices.spmd.mesh import AXIS, local_devices, local_parts, wait
from tpudata.devices.spmd.programs import Layout, compile_call
from tpudata.devices.spmd.variables import DeviceVariables
from tpudata.devices.system.traced_function import NUMBERS, TracedFunction, name_of


class DeviceFunction:
    """A function of the user's that a mesh of devices runs, one replica on each.

    Attributes:
        variables: the `tf.Variable`s that it uses, by name.
        writes: names of those that it changes.

    Args:
        function: a Python function or a `tf.function`.
        structure: structure of its arguments, a jax `PyTreeDef`.
        specs: specs of the tensors of one replica.
        splits: whether the rows of each tensor are split over the replicas.
        state: values of variables on the devices.

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
        state: DeviceVariables,
    ) -> None:
        self._splits = tuple(splits)
        # A compiled call takes first what is split, and then what all replicas get.
        self._order = sorted(range(len(specs)), key=lambda place: not splits[place])
        with tracing_function(name_of(function)):
            traced = TracedFunction(function, structure, specs, state.mesh.size)
            program = self._lower(traced, specs)
        # The function's own collectives are not seen through, so the first replica decides on each variable.
        self._layout = Layout.of(program, (), program.updates)
        self._call = compile_call(program, self._layout, state.mesh)
        self._results = traced.results
        self._state = state
        self.variables = {name: traced.variables[name] for name in program.variables}
        self.writes = self._layout.written

    def _lower(self, traced: TracedFunction, specs: Sequence[tf.TensorSpec]) -> ReplicaProgram:
        def run(replica: Any, *inputs: Any) -> list[Any]:
            *tensors, number = inputs
            found = dict(zip(self._order, tensors, strict=True))
            return traced(replica, number, *(found[place] for place in range(len(specs))))

        of_replica, of_call = NUMBERS
        inputs = [of_replica, *(specs[place] for place in self._order), of_call]
        return lower(run, inputs, traced.variables)

    def __call__(self, number: int, tensors: Sequence[Any]) -> Any:
        """Run the function on all devices of the mesh.

        Args:
            number: number of this call.
            tensors: arrays (NumPy) of this process: rows of its replicas together, or whole.

        Returns:
            The results, in the structure that the function returns, as NumPy arrays with an axis of this process's replicas before
            their own.
        """
        state, layout = self._state, self._layout
        # Copies: the caller may write to its arrays while they are transferred, or used by a function without results.
        split = tuple(self._stack(tensors[place]) for place in self._order if self._splits[place])
        whole = tuple(np.array(tensors[place]) for place in self._order if not self._splits[place])
        written, _, results = self._call(
            state.arrays(layout.written), state.arrays(layout.read), (), split, (*whole, np.int64(number))
        )
        state.replace(layout.written, written)
        wait(state.mesh, results, written)
        return jax.tree.unflatten(self._results, [np.stack(local_parts(item)) for item in results])

    def _stack(self, rows: Any) -> jax.Array:
        """Return an array [1, replicas, rows, ...] from the rows of this process's replicas."""
        mesh = self._state.mesh
        own = local_devices(mesh)
        first = list(mesh.devices.flat).index(own[0])
        parts = np.array(rows).reshape(1, len(own), -1, *rows.shape[1:])
        shape = (1, mesh.size, *parts.shape[2:])
        sharding = NamedSharding(mesh, PartitionSpec(None, AXIS))
        return global_array(shape, parts.dtype, sharding, 1, lambda begin, end: parts[:, begin - first : end - first])

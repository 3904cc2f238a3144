"""A user's function, compiled for the devices of a mesh."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import NamedSharding, PartitionSpec

from tpudata.devices.batches.global_arrays import make_global_array
from tpudata.devices.graphs.traced_code import tracing_function
from tpudata.devices.spmd.lowering import ReplicaProgram, lower
from tpudata.devices.spmd.mesh import AXIS, list_local_devices, list_local_parts, wait_on_cpus
from tpudata.devices.spmd.programs import Layout, compile_call
from tpudata.devices.spmd.variables import DeviceVariables
from tpudata.devices.system.traced_function import INDEX_SPECS, TracedFunction, find_function_name
from tpudata.tensor_types import Array, Arrays, Tensors


class DeviceFunction:
    """A user's function that a mesh of devices runs, one replica on each device.

    Attributes:
        variables: the `tf.Variable`s that the function uses, by name.
        writes: names of the variables that the function changes.

    Args:
        function: a Python function or a `tf.function`.
        structure: structure of its arguments, a jax `PyTreeDef`.
        specs: specs of the tensors of one replica.
        split_flags: for each tensor, whether its rows are split over the replicas.
        device_variables: the values of variables on the devices.

    Raises:
        ModelFnValueError: the function cannot be traced or compiled for the devices, see `TracedFunction` and `lower`.
        UsageError: the function uses a resource other than variables, or this version of jax is not supported.
    """

    def __init__(
        self,
        function: Callable[..., Tensors],
        structure: jax.tree_util.PyTreeDef,
        specs: Sequence[tf.TensorSpec],
        split_flags: Sequence[bool],
        device_variables: DeviceVariables,
    ) -> None:
        self._split_flags = tuple(split_flags)
        # A compiled call takes the split tensors before the tensors that all replicas get.
        self._argument_order = sorted(range(len(specs)), key=lambda index: not split_flags[index])
        with tracing_function(find_function_name(function)):
            traced = TracedFunction(function, structure, specs, device_variables.mesh.size)
            program = self._lower(traced, specs)
        # Whether replicas assign equal values is unknown, so each written variable takes the first replica's.
        self._layout = Layout.make(program, per_replica=(), diverging=program.updates)
        self._call = compile_call(program, self._layout, device_variables.mesh)
        self._result_structure = traced.result_structure
        self._device_variables = device_variables
        self.variables = {name: traced.variables[name] for name in program.variables}
        self.writes = self._layout.written

    def _lower(self, traced: TracedFunction, specs: Sequence[tf.TensorSpec]) -> ReplicaProgram:
        """Return the program of one replica: a function of its index, the tensors in `_argument_order`, and the call's index."""

        def run(replica: tf.Tensor, *inputs: tf.Tensor) -> list[tf.Tensor]:
            *tensors, call_index = inputs
            tensors_by_index = dict(zip(self._argument_order, tensors, strict=True))
            return traced(replica, call_index, *(tensors_by_index[index] for index in range(len(specs))))

        replica_spec, call_spec = INDEX_SPECS
        input_specs = [replica_spec, *(specs[index] for index in self._argument_order), call_spec]
        return lower(run, input_specs, traced.variables)

    def __call__(self, call_index: int, tensors: Sequence[Array]) -> Arrays:
        """Run the function on all devices of the mesh.

        Args:
            call_index: index of this call.
            tensors: arrays (NumPy) in the arguments, in the order of `specs`: the rows of all replicas of this process if the
                rows are split, else the array that each replica gets.

        Returns:
            The results, in the structure that the function returns, as NumPy arrays [replicas of this process, ...].
        """
        device_variables, layout = self._device_variables, self._layout
        # Copies: the caller may write to its arrays while they are transferred or in use.
        split_arrays = tuple(self._stack(tensors[index]) for index in self._argument_order if self._split_flags[index])
        whole_arrays = tuple(np.array(tensors[index]) for index in self._argument_order if not self._split_flags[index])
        written_arrays, _, results = self._call(
            device_variables.get_arrays(layout.written),
            device_variables.get_arrays(layout.read),
            (),  # No variable has a separate value on each replica.
            split_arrays,
            (*whole_arrays, np.int64(call_index)),
        )
        device_variables.replace(layout.written, written_arrays)
        wait_on_cpus(device_variables.mesh, results, written_arrays)
        return jax.tree.unflatten(self._result_structure, [np.stack(list_local_parts(result)) for result in results])

    def _stack(self, rows: Array) -> jax.Array:
        """Return a global array [1, replicas, rows of a replica, ...] from the rows of this process's replicas."""
        mesh = self._device_variables.mesh
        process_devices = list_local_devices(mesh)
        # The replicas of a process are consecutive.
        first_replica = list(mesh.devices.flat).index(process_devices[0])
        parts = np.array(rows).reshape(1, len(process_devices), -1, *rows.shape[1:])
        shape = (1, mesh.size, *parts.shape[2:])
        sharding = NamedSharding(mesh, PartitionSpec(None, AXIS))
        return make_global_array(
            shape,
            parts.dtype,
            sharding,
            axis=1,
            make_part=lambda first, stop: parts[:, first - first_replica : stop - first_replica],
        )

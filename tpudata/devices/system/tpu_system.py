"""TPU without an estimator: connect to the chips, run functions of TensorFlow on them, and release them.

Functions run on the chips; plain `tf.Variable`s, gradients and loops of the program need no change.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tpudata.checks import require_positive_int
from tpudata.console.tables import count_text
from tpudata.devices.processes.cluster_task import ClusterTask
from tpudata.devices.processes.device_search import find_local_devices
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.topology import Topology, connect_tpu, find_tpu_group, join_cluster, require_own_tpu
from tpudata.errors import UsageError
from tpudata.tensor_types import Array, Arrays, Tensors

if TYPE_CHECKING:
    import jax

    from tpudata.devices.spmd.variables import DeviceVariables
    from tpudata.devices.system.device_function import DeviceFunction

_NAME = "tpu_system"


@contextlib.contextmanager
def tpu_system(
    name: str | None = None,
    *,
    num_replicas: int | None = None,
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Iterator["TPUSystem"]:
    """Connect to the TPU of this machine, yield its chips, and release them afterwards.

    Several processes, such as the hosts of a pod, each call this; they find each other like the processes of a training: through
    the TPU VM's metadata, TF_CONFIG, or the last three arguments.

    Args:
        name: "local", None or the environment's TPU_NAME, for this machine's TPU; other machines' TPUs cannot be used.
        num_replicas: number of GPUs of each process, or of CPU devices if a process has fewer GPUs, in place of a TPU's chips.
        coordinator_address: HOST:PORT of the first of several processes; this and the next two take the place of TF_CONFIG.
        num_processes: number of processes.
        process_id: index of this process, from 0.

    Yields:
        The system. When the block ends, the variables have the values that the chips computed.

    Raises:
        TPUConnectionError: this machine has no TPU, or it cannot be used; the message says why.
        UsageError: `num_replicas` devices cannot be made, or the arguments or TF_CONFIG do not describe processes that can run
            together.
        ClusterError: not all processes joined in time, or one ended.
        MissingExtraError: jax is not installed, and `num_replicas` is passed or several processes run.
    """
    num_replicas = require_positive_int(_NAME, "num_replicas", num_replicas, or_none=True)
    task = ClusterTask.resolve(_NAME, coordinator_address, num_processes, process_id)
    if num_replicas is None:
        require_own_tpu({f"{_NAME}(name=...)": name}, name)
        topology = connect_tpu(find_tpu_group(task))
    elif task.num_workers > 1:
        topology = join_cluster(task, num_replicas)
    else:
        # A single replica also runs on a device of jax; `make_local_topology` would leave it to plain TensorFlow.
        topology = Topology(num_replicas, find_local_devices(num_replicas))
    system = TPUSystem(topology.devices, topology.peers)
    try:
        yield system
    except BaseException:
        # A function that failed may have used up its variables' values.
        with contextlib.suppress(RuntimeError):
            system.close()
        raise
    system.close()


class TPUSystem:
    """Chips of a TPU, or devices in their place, that run functions of TensorFlow.

    Attributes:
        devices: the devices of all processes, one for each replica: `jax.Device`s.
        host: index of this process, from 0.
        num_hosts: number of processes.
    """

    def __init__(self, devices: Sequence["jax.Device"], peers: Peers | None = None) -> None:
        peers = peers or Peers()
        self.devices = tuple(devices)
        self.host = peers.index
        self.num_hosts = peers.count
        # Variables that functions use, by name.
        self._variables: dict[str, tf.Variable] = {}
        # The values of these variables on each group of devices that has run functions.
        self._variables_by_devices: dict[tuple[jax.Device, ...], DeviceVariables] = {}
        # Compiled functions by the arguments of `_compile_function`.
        self._functions: dict[object, DeviceFunction] = {}
        self._num_calls = 0  # Makes random operations draw differently in each call.
        self._is_open = True

    @property
    def num_replicas(self) -> int:
        """Number of devices, each of which runs a replica of a function."""
        return len(self.devices)

    @property
    def local_devices(self) -> tuple["jax.Device", ...]:
        """The devices of this process."""
        # All processes have the same number of devices, and `devices` is in the order of the processes.
        devices_per_host = self.num_replicas // self.num_hosts
        return self.devices[self.host * devices_per_host : (self.host + 1) * devices_per_host]

    def run(
        self,
        function: Callable[..., Tensors],
        *args: Tensors,
        split: bool | Sequence[bool] = True,
        device: int | None = None,
    ) -> Arrays:
        """Run a function on all devices, or on one of them.

        It is traced and compiled at its first call, and again for each other shape, dtype, `split` or `device`. It may use tensors,
        `tf.Variable`s that were made outside of it, gradients, random operations, which draw differently on each device and in each
        call, and collectives: `tf.distribute.get_replica_context().all_reduce`, `tf.compat.v1.tpu.cross_replica_sum`. What XLA
        cannot compile, such as strings and tables, is an error. A variable to which devices assign different values takes the value
        of the first device, whatever its `aggregation`: reduce the values with `all_reduce`.

        Args:
            function: a Python function or a `tf.function`.
            *args: arrays, tensors or numbers, or structures of them; with several processes, the rows of this one.
            split: whether each device gets its part of the rows of an argument instead of all rows; one bool for all arguments,
                or one for each.
            device: index of the local device to run on, with whole arguments; None for all devices.

        Returns:
            What the function returns, as numpy arrays. From all devices, arrays have shape [local devices, ...].

        Raises:
            ModelFnValueError: the function makes a variable at each call, or XLA cannot compile an operation, a shape or a result.
            UsageError: an argument cannot be split or is of strings, `split` or `device` does not fit, the system is closed, this
                version of jax is not supported, the function uses a table or an iterator, or with `device` and several processes,
                it assigns to a variable.
        """
        import jax

        if not self._is_open:
            raise UsageError(f"{_NAME}: run() was called after the block ended. Call it inside of `with`.")
        devices = self.devices if device is None else (self._find_local_device(device),)
        arrays, split_flags = self._flatten_arguments(jax, args, split if device is None else False)
        specs = tuple(
            self._make_replica_spec(array, is_split) for array, is_split in zip(arrays, split_flags, strict=True)
        )
        key = (function, jax.tree.structure(args), specs, split_flags, devices)
        # Otherwise jax would make 64-bit arguments and variables 32-bit ones.
        with jax.enable_x64(True):
            compiled = self._functions.get(key) or self._compile_function(*key)
            if device is not None and self.num_hosts > 1 and compiled.writes:
                raise UsageError(
                    f"{_NAME}: run(device={device}): the function assigns to {compiled.writes[0]!r}, whose value would differ "
                    "between processes (expected a function that only reads variables). Run it on all devices."
                )
            # Values that other groups of devices have computed reach this group through the host.
            other_groups = [
                group for key_devices, group in self._variables_by_devices.items() if key_devices != devices
            ]
            for device_variables in other_groups:
                device_variables.copy_to_host(compiled.variables)
            results = compiled(self._num_calls, arrays)
            for device_variables in other_groups:
                device_variables.mark_changed_on_host(compiled.writes)
        self._num_calls += 1
        return results if device is None else jax.tree.map(lambda array: array[0], results)

    def sync(self) -> None:
        """Copy the values that functions computed into the `tf.Variable`s.

        Until the next `run`, which transfers the values to the devices again, the variables can be read, saved and assigned to.
        """
        # At most one group of devices has a newer value of a variable: `run` copies it to the host before another group writes.
        for device_variables in self._variables_by_devices.values():
            device_variables.copy_to_host(self._variables)
        for device_variables in self._variables_by_devices.values():
            device_variables.mark_changed_on_host(self._variables)

    def close(self) -> None:
        """Copy the values into the variables, and free the devices' memory; the end of the block calls this."""
        self.sync()
        self._functions.clear()
        self._variables_by_devices.clear()
        self._is_open = False

    def _compile_function(
        self,
        function: Callable[..., Tensors],
        structure: "jax.tree_util.PyTreeDef",
        specs: tuple[tf.TensorSpec, ...],
        split_flags: tuple[bool, ...],
        devices: tuple["jax.Device", ...],
    ) -> "DeviceFunction":
        """Compile a function for a group of devices, and keep it for further calls.

        Args:
            function: the user's function.
            structure: nesting of the function's arguments.
            specs: spec of each array among the arguments, on one device.
            split_flags: for each array, whether its rows are split over the devices.
            devices: the devices, each of which runs a replica.
        """
        from tpudata.devices.spmd.mesh import make_mesh
        from tpudata.devices.spmd.variables import DeviceVariables
        from tpudata.devices.system.device_function import DeviceFunction

        if devices not in self._variables_by_devices:
            self._variables_by_devices[devices] = DeviceVariables(make_mesh(devices), self._variables)
        compiled = DeviceFunction(function, structure, specs, split_flags, self._variables_by_devices[devices])
        self._variables.update(compiled.variables)
        self._functions[function, structure, specs, split_flags, devices] = compiled
        return compiled

    def _find_local_device(self, index: int) -> "jax.Device":
        """Return the local device with an index; raise UsageError if it does not exist."""
        if not 0 <= index < len(self.local_devices):
            raise UsageError(
                f"{_NAME}: run(device={index}): no such device (got {index}, expected 0 to {len(self.local_devices) - 1}). "
                "Pass the index of a local device."
            )
        return self.local_devices[index]

    def _flatten_arguments(
        self, jax: ModuleType, args: Sequence[Tensors], split: bool | Sequence[bool]
    ) -> tuple[list[Array], tuple[bool, ...]]:
        """Return the arrays of all arguments, in the order of `jax.tree.leaves`, and for each whether its rows are split.

        Args:
            jax: the module `jax`, which `run` has imported.
            args: arguments of the user's function.
            split: whether the rows of each argument are split over the devices: one bool for all arguments, or one for each.

        Raises:
            UsageError: `split` does not have one bool for each argument, or an array has strings or cannot be split.
        """
        argument_splits = [split] * len(args) if isinstance(split, bool) else list(split)
        if len(argument_splits) != len(args):
            raise UsageError(
                f"{_NAME}: run(split={split}): one for each argument (got {len(argument_splits)}, expected {len(args)})."
            )
        arrays, split_flags = [], []
        for argument_index, (argument, is_split) in enumerate(zip(args, argument_splits, strict=True)):
            for leaf in jax.tree.leaves(argument):
                # A Python number gets TensorFlow's dtype, such as int32.
                array = leaf if isinstance(leaf, np.ndarray) else np.asarray(tf.convert_to_tensor(leaf))
                self._check_argument(argument_index, array, is_split)
                arrays.append(array)
                split_flags.append(bool(is_split))
        return arrays, tuple(split_flags)

    def _check_argument(self, argument_index: int, array: Array, is_split: bool) -> None:
        """Raise UsageError if an array of the argument `argument_index` has strings, or rows that cannot be split equally."""
        argument = f"{_NAME}: argument {argument_index} of the function"
        if array.dtype.kind in "OSU":
            raise UsageError(f"{argument} has strings (expected numbers). Convert them to numbers on the host.")
        num_devices = len(self.local_devices)
        if is_split and (array.ndim == 0 or array.shape[0] % num_devices):
            got = "a scalar" if array.ndim == 0 else count_text(array.shape[0], "row")
            raise UsageError(
                f"{argument} cannot be split over {num_devices} devices (got {got}, expected a multiple of "
                f"{count_text(num_devices, 'row')}). Pass split=False to give each device all of it."
            )

    def _make_replica_spec(self, array: Array, is_split: bool) -> tf.TensorSpec:
        """Return the spec of an argument on one device: a part of the rows if they are split, else all rows."""
        shape = array.shape
        if is_split:
            shape = (shape[0] // len(self.local_devices), *shape[1:])
        return tf.TensorSpec(shape, tf.as_dtype(array.dtype))

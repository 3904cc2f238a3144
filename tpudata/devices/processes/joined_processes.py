"""Joining the processes of a run: they meet, and `jax.distributed` makes the devices of all processes known to each process.

With jax's service, all processes would abort with a stack trace once the first has ended, and each would wait for all others at its
exit. CPUs and TPUs need the service only until the devices are connected, so it is shut down then, and `ClusterPeers` notices if a
process ends. GPUs need it for each new group of devices. CPU devices cannot form new groups afterwards: their collectives are among
all devices of the run.

Two process-wide options of jax have to be changed: `jax_cpu_collectives_implementation` (Gloo, with which CPU devices of several
processes exchange values), and, while jax joins, `jax_enable_preemption_service` (it takes SIGTERM from the program).
"""

import dataclasses
import socket
import threading
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.cluster_peers import ClusterPeers
from tpudata.devices.processes.device_search import (
    find_tpu_devices,
    has_jax_started,
    import_jax,
    request_cpu_devices,
    select_devices,
)
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.devices.processes.rendezvous import meet, split_address
from tpudata.error_text.lines import first_line
from tpudata.errors import UsageError

if TYPE_CHECKING:
    import jax

_STARTED_MESSAGE = (
    "{}: jax has started before this process joined the cluster. Make the estimator, or call tpu_system, before the first use of "
    "jax."
)
# Short, since all processes already run when jax joins them.
_JOIN_SECONDS = 120
_HEARTBEAT_SECONDS = 30
_PLATFORMS_WITH_SERVICE = ("gpu", "cuda", "rocm")


@dataclasses.dataclass(frozen=True)
class JoinedProcesses:
    """The processes that this one has joined, and the jax devices of all.

    Attributes:
        group: the processes.
        devices_per_process: number of GPUs or CPU devices of each process; None if all processes use all cores of a TPU.
        peers: connections through which the processes agree.
        devices: the devices, in the order of the processes.
    """

    group: ProcessGroup
    devices_per_process: int | None
    peers: Peers
    devices: tuple["jax.Device", ...]


# The result of the first `join` of this process.
_joined: JoinedProcesses | None = None
_joining = threading.Lock()


def join(group: ProcessGroup, devices_per_process: int | None, timeout_seconds: float) -> JoinedProcesses:
    """Join the processes of a group, and wait for all of them; later calls return the first call's result.

    Args:
        group: the processes, and which of them this one is.
        devices_per_process: number of GPUs or CPU devices of each process; None if all processes use all cores of a TPU.
        timeout_seconds: maximum number of seconds to wait.

    Raises:
        ClusterError: not all processes joined in time, or one ended.
        UsageError: this process has joined another group or with other devices, the processes have different numbers of devices,
            or jax has already started or joined processes.
        TPUConnectionError: jax finds no TPU here.
        MissingExtraError: jax is not installed.
    """
    global _joined
    with _joining:
        joined = _joined
        if joined is not None:
            if (joined.group, joined.devices_per_process) != (group, devices_per_process):
                raise UsageError(
                    f"{group.origin}: this process is {group.name}, with {devices_per_process or 'all'} devices, and has joined "
                    f"before as {joined.group.name}, with {joined.devices_per_process or 'all'}. Use one cluster and one "
                    "num_replicas in a program."
                )
            return joined
        jax = import_jax(f"{group.origin}: training by several processes")
        if has_jax_started():
            raise UsageError(_STARTED_MESSAGE.format(group.origin))
        if jax.distributed.is_initialized():
            raise UsageError(
                f"{group.origin}: the program has called jax.distributed.initialize(), which tpudata calls. Remove the call."
            )
        peers = ClusterPeers(group, meet(group, timeout_seconds))
        try:
            _check_same_device_count(peers, devices_per_process or 0)  # 0 stands for the cores of a TPU.
            request_cpu_devices(devices_per_process or 1)  # Next to a TPU, jax needs no further CPU devices.
            _initialize(jax, group)
            with peers.translate_errors():
                devices = (
                    find_tpu_devices()
                    if devices_per_process is None
                    else select_devices(devices_per_process, group.count)
                )
                devices = _connect_devices(jax, peers, group.origin, devices)
        except BaseException:
            peers.announce_end()
            raise
        _joined = JoinedProcesses(group, devices_per_process, peers, devices)
        return _joined


def _check_same_device_count(peers: Peers, devices_per_process: int) -> None:
    """Raise UsageError if processes request different numbers of devices; called before jax makes them."""
    # One exchange is enough: a maximum is the negated minimum of the negated numbers.
    least, minus_most = peers.min_numbers([devices_per_process, -devices_per_process])
    if least != -minus_most:
        raise UsageError(
            f"TPUConfig(num_replicas={devices_per_process}): all processes of a cluster have as many devices (got {least} to "
            f"{-minus_most}). Pass the same number in all."
        )


def _initialize(jax: ModuleType, group: ProcessGroup) -> None:
    """Let jax join the processes, which all run by now.

    Raises:
        ClusterError: jax could not connect to the other processes.
    """
    config = jax.config
    # CPU devices of several processes exchange values with Gloo.
    if config.jax_cpu_collectives_implementation is None:
        config.update("jax_cpu_collectives_implementation", "gloo")
    # The preemption service would take SIGTERM from the program.
    enables_preemption = config.jax_enable_preemption_service
    config.update("jax_enable_preemption_service", False)
    host, port = split_address(group.coordinator)
    try:
        jax.distributed.initialize(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            group.count,
            group.index,
            cluster_detection_method="deactivate",  # The group is known.
            initialization_timeout=_JOIN_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            # By default, the first process listens at [::], which needs IPv6.
            coordinator_bind_address=None if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}",
        )
    except RuntimeError as error:
        raise ClusterError(
            f"{group.origin}: {group.name} could not join the cluster: {first_line(error)}. Start all processes again."
        ) from error
    finally:
        config.update("jax_enable_preemption_service", enables_preemption)


def _connect_devices(
    jax: ModuleType, peers: Peers, origin: str, devices: tuple["jax.Device", ...]
) -> tuple["jax.Device", ...]:
    """Connect the devices, and shut down jax's service if they do not need it; return them in the order of the processes.

    Args:
        jax: the module `jax`, which has joined the processes.
        peers: the connected processes.
        origin: setting that describes the processes, such as TF_CONFIG, for messages.
        devices: devices of all processes.

    Raises:
        UsageError: the processes have different numbers of devices.
    """
    platform = devices[0].platform
    # jax may number the processes in a different order. Each process adds its number in jax at its own index, and 0 elsewhere.
    jax_index = jax.local_devices(backend=platform)[0].process_index
    jax_indices = peers.sum_numbers([jax_index if index == peers.index else 0 for index in range(peers.count)])
    device_counts = [sum(device.process_index == index for device in devices) for index in jax_indices]
    if len(set(device_counts)) > 1:
        raise UsageError(
            f"{origin}: processes have different numbers of devices (got {', '.join(map(str, device_counts))}, expected equal "
            "ones). Use machines of one kind."
        )
    if platform == "cpu":
        # CPU devices connect at their first collective: a sum over all of them, while all processes are here.
        mesh = jax.sharding.Mesh(devices, ("replicas",))
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("replicas"))
        replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        ones = jax.make_array_from_process_local_data(split, np.ones(device_counts[0], np.int32), (len(devices),))
        jax.block_until_ready(jax.jit(jax.numpy.sum, out_shardings=replicated)(ones))
    if platform not in _PLATFORMS_WITH_SERVICE:
        jax.distributed.shutdown()
    return tuple(sorted(devices, key=lambda device: (jax_indices.index(device.process_index), device.id)))

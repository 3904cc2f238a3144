"""Joining the processes of a run: they meet, and jax makes the devices of all known to each by `jax.distributed`.

jax's own service would end all processes by an abort, with a stack trace, once the first has ended; and each process would wait for
all at its exit. On CPUs and TPUs it is needed only until the devices have met, so it is shut down then, and `ClusterPeers` notices
the end of a process. GPUs need it for each new group of devices. CPU devices cannot form new groups afterwards: their collectives
are among all devices of the run.

Two options of jax are changed, as there is no other way: `jax_cpu_collectives_implementation` (gloo, by which CPU devices of
several processes exchange values), and, while jax joins, `jax_enable_preemption_service` (it takes SIGTERM from the program).
"""

import dataclasses
import socket
import threading
from typing import Any

import numpy as np

from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.cluster_peers import ClusterPeers
from tpudata.devices.processes.device_search import (
    devices_of_all,
    has_started,
    import_jax,
    make_cpu_devices,
    tpu_devices,
)
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.devices.processes.rendezvous import meet, split_address
from tpudata.error_text.lines import first_line
from tpudata.errors import UsageError

_STARTED = (
    "{}: jax has started before this process joined the cluster. Make the estimator, or call tpu_system, before the first use of "
    "jax."
)
# All processes run when jax begins to join them.
_JOIN_SECONDS = 120
_HEARTBEAT_SECONDS = 30
_NEED_SERVICE = ("gpu", "cuda", "rocm")


@dataclasses.dataclass(frozen=True)
class JoinedProcesses:
    """The processes that this one has joined, and the jax devices of all.

    Attributes:
        group: the processes.
        wanted: number of devices of each process, or None for the cores of a TPU.
        peers: how the processes agree.
        devices: the devices, in the order of the processes.
    """

    group: ProcessGroup
    wanted: int | None
    peers: Peers
    devices: tuple[Any, ...]


_joined: list[JoinedProcesses] = []
_joining = threading.Lock()


def join(group: ProcessGroup, wanted: int | None, limit: float) -> JoinedProcesses:
    """Join the processes of a group, once in this process, and wait for all of them.

    Args:
        group: the processes.
        wanted: number of devices of each process, or None for the cores of a TPU.
        limit: largest number of seconds to wait.

    Raises:
        ClusterError: not all processes joined in time, or one ended.
        UsageError: this process has joined others, they have different numbers of devices, or jax has already started.
        TPUConnectionError: jax finds no TPU here.
        MissingExtraError: jax is not installed.
    """
    with _joining:
        if _joined:
            joined = _joined[0]
            if (joined.group, joined.wanted) != (group, wanted):
                raise UsageError(
                    f"{group.origin}: this process is {group.name}, with {wanted or 'all'} devices, and has joined before as "
                    f"{joined.group.name}, with {joined.wanted or 'all'}. Use one cluster and one num_replicas in a program."
                )
            return joined
        jax = import_jax(f"{group.origin}: training by several processes")
        if has_started():
            raise UsageError(_STARTED.format(group.origin))
        if jax.distributed.is_initialized():
            raise UsageError(
                f"{group.origin}: the program has called jax.distributed.initialize(), which tpudata calls. Remove the call."
            )
        peers = ClusterPeers(group, meet(group, limit))
        try:
            _check_numbers(peers, wanted or 0)
            make_cpu_devices(wanted or 1)
            _initialize(jax, group)
            with peers.watched():
                devices = tpu_devices() if wanted is None else devices_of_all(wanted, group.count)
                devices = _settle(jax, peers, group.origin, devices)
        except BaseException:
            peers.close()
            raise
        joined = JoinedProcesses(group, wanted, peers, devices)
        _joined.append(joined)
        return joined


def _check_numbers(peers: Peers, wanted: int) -> None:
    """Check that all processes want as many devices, before jax makes them."""
    least, most = peers.least([wanted, -wanted])
    if least != -most:
        raise UsageError(
            f"TPUConfig(num_replicas={wanted}): all processes of a cluster have as many devices (got {least} to {-most}). Pass the "
            "same number in all."
        )


def _initialize(jax: Any, group: ProcessGroup) -> None:
    """Let jax join the processes, all of which run."""
    options = jax.config
    if options.jax_cpu_collectives_implementation is None:
        options.update("jax_cpu_collectives_implementation", "gloo")
    preemption = options.jax_enable_preemption_service
    options.update("jax_enable_preemption_service", False)
    host, port = split_address(group.coordinator)
    try:
        jax.distributed.initialize(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            group.count,
            group.index,
            cluster_detection_method="deactivate",
            initialization_timeout=_JOIN_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            coordinator_bind_address=None if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}",
        )
    except RuntimeError as error:
        raise ClusterError(
            f"{group.origin}: {group.name} could not join the cluster: {first_line(error)}. Start all processes again."
        ) from error
    finally:
        options.update("jax_enable_preemption_service", preemption)


def _settle(jax: Any, peers: Peers, origin: str, devices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Let the devices meet, end jax's service if they no longer need it, and return them in the order of the processes."""
    platform = devices[0].platform
    own = jax.local_devices(backend=platform)[0].process_index
    order = peers.sum_numbers([own if index == peers.index else 0 for index in range(peers.count)])
    numbers = [sum(device.process_index == index for device in devices) for index in order]
    if len(set(numbers)) > 1:
        raise UsageError(
            f"{origin}: each process needs as many devices as the others (got {', '.join(map(str, numbers))}). Use machines with "
            "as many."
        )
    if platform == "cpu":
        mesh = jax.sharding.Mesh(devices, ("replicas",))
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("replicas"))
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        ones = jax.make_array_from_process_local_data(split, np.ones(numbers[0], np.int32), (len(devices),))
        jax.block_until_ready(jax.jit(jax.numpy.sum, out_shardings=everywhere)(ones))
    if platform not in _NEED_SERVICE:
        jax.distributed.shutdown()
    return tuple(sorted(devices, key=lambda device: (order.index(device.process_index), device.id)))

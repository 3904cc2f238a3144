"""Devices of a run: replicas of the model, the processes that run them, and the hosts that feed them."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpudata.devices.errors import TPUConnectionError
from tpudata.devices.processes.cluster_task import ClusterTask
from tpudata.devices.processes.device_search import find_local_devices, find_tpu_devices
from tpudata.devices.processes.joined_processes import join
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.process_group import ProcessGroup, make_process_group
from tpudata.devices.processes.tpu_pod import find_pod_group

if TYPE_CHECKING:
    import jax

_LOCAL = "local"
# Seconds that a process waits for the other processes.
JOIN_TIMEOUT_SECONDS = 7200


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices of a run.

    Attributes:
        num_replicas: number of replicas of the model, in all processes.
        devices: the jax device of each replica, in the order of the processes, which have equal numbers of devices. Empty if plain
            TensorFlow runs the only replica.
        is_tpu: whether the devices are cores of a TPU.
        peers: the processes that train together. Each is a host, which feeds its own devices.
    """

    num_replicas: int = 1
    devices: tuple["jax.Device", ...] = ()
    is_tpu: bool = False
    peers: Peers = dataclasses.field(default_factory=Peers)

    @property
    def num_hosts(self) -> int:
        """Number of hosts, each of which feeds the same number of replicas."""
        return self.peers.count

    @property
    def num_local_replicas(self) -> int:
        """Number of replicas that this process feeds and runs."""
        return self.num_replicas // self.peers.count

    @property
    def first_replica(self) -> int:
        """Index of the first replica of this process."""
        return self.peers.index * self.num_local_replicas

    @property
    def local_devices(self) -> tuple["jax.Device", ...]:
        """The jax devices of this process's replicas."""
        return self.devices[self.first_replica : self.first_replica + self.num_local_replicas]

    @property
    def is_sharded(self) -> bool:
        """Whether batches are split over replicas by a TPU's rules; otherwise one device gets whole batches."""
        return self.is_tpu or self.num_replicas > 1

    def select_this_process(self) -> "Topology":
        """Return the topology for evaluation and prediction by this process alone: its TPU cores, or plain TensorFlow."""
        if not self.is_tpu:
            return Topology()
        return Topology(self.num_local_replicas, self.local_devices, is_tpu=True)


def make_local_topology(num_replicas: int | None) -> Topology:
    """Return this process's devices for `num_replicas` replicas; one replica (or None) runs in plain TensorFlow, without jax.

    Raises:
        UsageError: jax has started with fewer CPU devices than replicas, or cannot start CPU devices.
        MissingExtraError: there are several replicas, and jax is not installed.
    """
    if num_replicas is None or num_replicas == 1:
        return Topology()
    return Topology(num_replicas, find_local_devices(num_replicas))


def join_cluster(
    task: ClusterTask, replicas_per_process: int | None, timeout_seconds: float = JOIN_TIMEOUT_SECONDS
) -> Topology:
    """Join the processes of a task's cluster, and return the devices of all.

    Args:
        task: the task of this process.
        replicas_per_process: number of devices of each process, each of which runs a replica; None for one.
        timeout_seconds: maximum number of seconds to wait for the other processes.

    Raises:
        ClusterError: not all processes joined in time, or one ended.
        UsageError: a job is not supported, the processes have different numbers of devices, or jax has already started.
        MissingExtraError: jax is not installed.
    """
    joined = join(make_process_group(task), replicas_per_process or 1, timeout_seconds)
    return Topology(len(joined.devices), joined.devices, peers=joined.peers)


def find_tpu_group(task: ClusterTask) -> ProcessGroup | None:
    """Return the processes of the pod to which this machine's TPU belongs; None if the TPU has no other machine.

    Args:
        task: the task of this process. Without a cluster in it, the workers of a pod find each other through the TPU VM's metadata.

    Raises:
        UsageError: a job is not supported, or the TPU has several slices.
    """
    return make_process_group(task) if task.num_workers > 1 else find_pod_group()


def connect_tpu(group: ProcessGroup | None, timeout_seconds: float = JOIN_TIMEOUT_SECONDS) -> Topology:
    """Return the cores of this machine's TPU; on a pod, join its machines and return the cores of all.

    Args:
        group: the processes of the pod, from `find_tpu_group`; None for a TPU of one machine.
        timeout_seconds: maximum number of seconds to wait for the other machines.

    Raises:
        TPUConnectionError: jax finds no TPU here.
        ClusterError: not all machines joined in time, or one ended.
        UsageError: on a pod, jax has already started, or the machines have different numbers of cores.
        MissingExtraError: on a pod, jax is not installed.
    """
    if group is None:
        devices = find_tpu_devices()
        return Topology(len(devices), devices, is_tpu=True)
    joined = join(group, devices_per_process=None, timeout_seconds=timeout_seconds)
    return Topology(len(joined.devices), joined.devices, is_tpu=True, peers=joined.peers)


def require_own_tpu(names: Mapping[str, str | None], tpu_name: str | None = None) -> None:
    """Check that each name is empty, "local", or TPU_NAME of the environment, and not an address.

    Args:
        names: TPU names, by the argument that passes them, such as "RunConfig(master=...)".
        tpu_name: name of the TPU for the message, or None if it is unknown.

    Raises:
        TPUConnectionError: a name is anything else.
    """
    tpu_of_machine = os.environ.get("TPU_NAME", "")
    for argument, name in names.items():
        if not name or (name in (_LOCAL, tpu_of_machine) and "://" not in name):
            continue
        raise TPUConnectionError(
            f"{argument}: programs run on the machine of their TPU (got {name!r}, expected 'local' or nothing). "
            f"Omit it, and start the program there: gcloud compute tpus tpu-vm ssh {tpu_name or tpu_of_machine or 'NAME'} "
            "--worker=all --command='...'"
        )

"""Devices of a run: replicas of the model, and the hosts that feed them."""

import dataclasses
import logging
from typing import Any

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator.devices.peers import Peers

_log = logging.getLogger("tpudata")


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices of a run.

    Attributes:
        strategy: the `tf.distribute.Strategy` that runs the steps on each of its replicas.
        num_hosts: number of hosts, each of which feeds the same number of replicas.
        is_tpu: whether the replicas are cores of a TPU.
        peers: the processes that train together; in a cluster, each is a host.
        host_devices: the CPU of each host of a TPU, in the order of the replicas, on which its dataset is made and read. Empty if
            this process makes and reads the data.
    """

    strategy: Any
    num_hosts: int = 1
    is_tpu: bool = False
    peers: Peers = dataclasses.field(default_factory=Peers)
    host_devices: tuple[str, ...] = ()

    @property
    def has_remote_hosts(self) -> bool:
        """Whether another process makes the data."""
        return any(tf.DeviceSpec.from_string(device).job != "localhost" for device in self.host_devices)

    def host_device(self, host: int) -> str:
        """Return the CPU of a host, by its number from 0."""
        if self.host_devices:
            return self.host_devices[host]
        job = "worker" if self.peers.count > 1 or self.is_tpu else "localhost"
        return f"/job:{job}/replica:0/task:{host}/device:CPU:0"

    @property
    def num_replicas(self) -> int:
        """Number of replicas of the model."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def replicas_per_host(self) -> int:
        """Number of replicas that one host feeds."""
        return self.num_replicas // self.num_hosts

    @property
    def local_replicas(self) -> int:
        """Number of replicas whose values this process has."""
        return self.num_replicas // self.peers.count

    @property
    def is_sharded(self) -> bool:
        """Whether batches are split over replicas by a TPU's rules; otherwise the one device gets them whole."""
        return self.is_tpu or self.num_replicas > 1


def tpu_hosts(strategy: Any) -> tuple[str, ...]:
    """Return the CPU of each host that has replicas of a strategy, in the order of the replicas."""
    specs = [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices]
    return tuple(dict.fromkeys(spec.replace(device_type="CPU", device_index=0).to_string() for spec in specs))


def local_topology(num_replicas: int | None) -> Topology:
    """Return this machine's devices for `num_replicas` replicas.

    One replica uses TensorFlow's default device. Several use as many GPUs, or else logical devices of the CPU, which must be made
    before TensorFlow starts its devices.

    Raises:
        UsageError: TensorFlow's devices have started with fewer logical CPU devices than replicas.
    """
    if num_replicas is None or num_replicas == 1:
        return Topology(tf.distribute.get_strategy())
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus >= num_replicas:
        return Topology(tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(num_replicas)]))
    if gpus:
        _log.warning("num_replicas=%d, but there are only %d GPUs: using the CPU.", num_replicas, gpus)
    _make_cpu_devices(num_replicas)
    # The default for CPUs, collective operations, waits for ever if there are fewer threads than replicas.
    reduction = tf.distribute.ReductionToOneDevice()
    return Topology(tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)], reduction))


def _make_cpu_devices(number: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    made = tf.config.get_logical_device_configuration(cpu) or [tf.config.LogicalDeviceConfiguration()]
    if len(made) >= number:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)
    except RuntimeError as error:
        raise UsageError(
            f"TPUConfig(num_replicas={number}) needs {number} logical CPU devices, and TensorFlow has already started with "
            f"{len(made)}. Make the estimator before the first TensorFlow operation, or start the program with "
            "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], "
            f"[tf.config.LogicalDeviceConfiguration()] * {number})."
        ) from error

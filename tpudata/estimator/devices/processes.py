"""The processes of a run, each with the devices of its machine: who they are, and joining them by `jax.distributed`.

They are the tasks of TF_CONFIG or of a Slurm job step, the processes of RunConfig's coordinator_address, num_processes and
process_id, or the workers of a TPU pod, which jax finds by the metadata of the machine.
"""

import dataclasses

from tpudata.errors import UsageError
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.config.tpu_config import InputPipelineConfig
from tpudata.estimator.devices.peers import Peers

_JOBS = ("chief", "worker")


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, and this one's number.

    Attributes:
        origin: what describes the group, for messages, such as TF_CONFIG.
        coordinator: HOST:PORT of the first process, at which all meet.
        names: name of each process, such as "worker 0".
        index: number of this process.
    """

    origin: str
    coordinator: str
    names: tuple[str, ...]
    index: int

    @property
    def name(self) -> str:
        """Name of this process."""
        return self.names[self.index]


def is_in_cluster(config: RunConfig) -> bool:
    """Return whether the process of a config trains together with others."""
    return config.num_worker_replicas > 1 or config.num_ps_replicas > 0


def check_task(config: RunConfig) -> None:
    """Check that a cluster has only jobs and options that are supported.

    Raises:
        UsageError: it has others.
    """
    other = sorted(set(config.cluster_spec.jobs) - {*_JOBS, "evaluator"})
    if other:
        hint = (
            "Parameter servers are not supported: make all tasks workers" if other == ["ps"] else "Rename it to chief"
        )
        raise UsageError(f"TF_CONFIG: got the job {other[0]!r} (expected {' and '.join(_JOBS)}). {hint}.")
    if config.tpu_config.per_host_input_for_training is InputPipelineConfig.BROADCAST:
        raise UsageError(
            "TPUConfig(per_host_input_for_training=BROADCAST): each process of a cluster reads separate rows (got BROADCAST, "
            "expected PER_HOST_V1, PER_HOST_V2 or PER_SHARD_V1). Use PER_HOST_V1."
        )


def join(config: RunConfig, devices: int = 1) -> Peers:
    """Join the processes of a config, once in this process, and wait for all of them.

    Args:
        config: describes the group.
        devices: number of CPU devices that this process makes, if it has no GPUs.

    Raises:
        ClusterError: not all processes joined in time.
        UsageError: this process has joined another group, or jax has already started.
        MissingExtraError: jax is not installed.
    """
    raise NotImplementedError


def join_pod(config: RunConfig) -> Peers:
    """Join the workers of the TPU pod that this machine belongs to; without a pod, return this process alone.

    Raises:
        ClusterError: not all workers joined in time.
        UsageError: this process has joined another group, or jax has already started.
    """
    raise NotImplementedError

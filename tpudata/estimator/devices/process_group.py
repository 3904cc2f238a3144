"""The processes of a run, each with the devices of its machine, as a RunConfig describes them."""

import dataclasses
from collections.abc import Collection, Sequence

from tpudata.errors import UsageError
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.config.tpu_config import InputPipelineConfig

_JOBS = ("chief", "worker")


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, and this one's number.

    Attributes:
        origin: what describes the group, for messages, such as TF_CONFIG.
        coordinator: HOST:PORT of the first process, at which all meet.
        names: name of each process, such as "worker 0", with its address if that is known.
        index: number of this process.
    """

    origin: str
    coordinator: str
    names: tuple[str, ...]
    index: int

    @property
    def name(self) -> str:
        """Name of this process, without its address."""
        return self.names[self.index].partition(" (")[0]

    @property
    def count(self) -> int:
        """Number of processes."""
        return len(self.names)

    def others(self, arrived: Collection[int]) -> list[int]:
        """Return the numbers of the processes that are neither this one nor have arrived."""
        return [number for number in range(self.count) if number != self.index and number not in arrived]

    def describe(self, numbers: Sequence[int]) -> str:
        """Return the first of some processes by name, and how many more there are."""
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        return f"{self.names[numbers[0]]}{more}" if numbers else "no other process"


def is_in_cluster(config: RunConfig) -> bool:
    """Return whether the process of a config trains together with others."""
    return config.num_worker_replicas > 1 or config.num_ps_replicas > 0


def reject_broadcast(config: RunConfig) -> None:
    """Check that the processes of a run read separate rows: the rows of one input_fn reach the devices of its process alone.

    Raises:
        UsageError: the input mode is BROADCAST.
    """
    if config.tpu_config.per_host_input_for_training is InputPipelineConfig.BROADCAST:
        raise UsageError(
            "TPUConfig(per_host_input_for_training=BROADCAST): each process of a cluster or a TPU pod reads separate rows (got "
            "BROADCAST, expected PER_HOST_V1, PER_HOST_V2 or PER_SHARD_V1). Use PER_HOST_V1."
        )


def group_of(config: RunConfig) -> ProcessGroup:
    """Return the processes that a config describes, in the order of their numbers: the chief, then the workers.

    Raises:
        UsageError: a job or an option is not supported in a cluster.
    """
    jobs = config.cluster_spec.as_dict()
    other = sorted(jobs.keys() - {*_JOBS, "evaluator"})
    if other:
        hint = (
            "Parameter servers are not supported: make all tasks workers" if other == ["ps"] else "Rename it to chief"
        )
        raise UsageError(f"TF_CONFIG: got the job {other[0]!r} (expected {' and '.join(_JOBS)}). {hint}.")
    reject_broadcast(config)
    index = config.global_id_in_cluster
    assert index is not None, "an evaluator trains alone"
    if config.coordinator_address is not None:
        names = [f"process {number}" for number in range(config.num_worker_replicas)]
        names[0] += f" ({config.coordinator_address})"
        return ProcessGroup("RunConfig(num_processes=...)", config.coordinator_address, tuple(names), index)
    tasks = [(job, number, address) for job in _JOBS for number, address in enumerate(jobs.get(job, ()))]
    names = [f"{job} {number} ({address})" for job, number, address in tasks]
    return ProcessGroup("TF_CONFIG", tasks[0][2].removeprefix("grpc://"), tuple(names), index)

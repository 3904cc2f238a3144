"""The processes of a run, each with the devices of its machine."""

import dataclasses
from collections.abc import Collection, Sequence

from tpudata.devices.processes.cluster_task import ClusterTask
from tpudata.errors import UsageError

_SUPPORTED_JOBS = ("chief", "worker")


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, and the index of this one.

    Attributes:
        origin: setting that describes the group, for messages, such as TF_CONFIG.
        coordinator: HOST:PORT of the first process, at which all meet.
        names: name of each process, such as "worker 0", with its address if that is known.
        index: index of this process.
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

    def list_missing(self, arrived: Collection[int]) -> list[int]:
        """Return the indices of the other processes that have not arrived."""
        return [process for process in range(self.count) if process != self.index and process not in arrived]

    def describe(self, indices: Sequence[int]) -> str:
        """Return the name of the first of the processes `indices` and the number of the rest; "no other process" for none."""
        more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
        return f"{self.names[indices[0]]}{more}" if indices else "no other process"


def make_process_group(task: ClusterTask) -> ProcessGroup:
    """Return the processes of a task's cluster, in the order of their indices: the chief, then the workers.

    Raises:
        UsageError: a job is not supported.
    """
    jobs = task.cluster
    unsupported = sorted(jobs.keys() - {*_SUPPORTED_JOBS, "evaluator"})
    if unsupported:
        hint = (
            "Parameter servers are not supported: make all tasks workers"
            if unsupported == ["ps"]
            else "Rename it to chief"
        )
        raise UsageError(
            f"TF_CONFIG: got the job {unsupported[0]!r} (expected {' and '.join(_SUPPORTED_JOBS)}). {hint}."
        )
    index = task.global_id
    # Only an evaluator has no index, and evaluators join no group.
    assert index is not None, "an evaluator trains alone"
    if task.coordinator_address is not None:
        names = [f"process {task_index}" for task_index in range(task.num_workers)]
        names[0] += f" ({task.coordinator_address})"
        return ProcessGroup("num_processes=...", task.coordinator_address, tuple(names), index)
    names, addresses = [], []
    for job in _SUPPORTED_JOBS:
        for task_index, address in enumerate(jobs.get(job, ())):
            names.append(f"{job} {task_index} ({address})")
            addresses.append(address)
    return ProcessGroup("TF_CONFIG", addresses[0].removeprefix("grpc://"), tuple(names), index)

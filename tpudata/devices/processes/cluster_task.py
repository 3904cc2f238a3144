"""The task of this process in a cluster, as TF_CONFIG describes it."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from tpudata.checks import is_integer
from tpudata.console.tables import count_text
from tpudata.devices.errors import ClusterConfigError

_TRAINING_JOBS = ("chief", "master", "worker")
_WHERE = "TF_CONFIG in the environment"


@dataclasses.dataclass(frozen=True)
class ClusterTask:
    """One task of a cluster.

    Attributes:
        cluster: addresses by name of the job; empty without a cluster, and for an evaluator, which is not part of it.
        task_type: job of this process: "chief", "worker", "evaluator", ...
        task_id: index of this process within the job.
        service: value of TF_CONFIG's "service".
        coordinator_address: HOST:PORT of the first process if the number of processes describes the cluster; None if addresses do.
        num_processes: number of processes that train; used only with a coordinator_address.
    """

    cluster: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    task_type: str = "worker"
    task_id: int = 0
    service: Mapping[str, object] | None = None
    coordinator_address: str | None = None
    num_processes: int = 1

    @classmethod
    def resolve(
        cls, owner: str, address: str | None, num_processes: int | None, process_id: int | None
    ) -> "ClusterTask":
        """Return the task that the last three arguments describe, or the one that TF_CONFIG describes if all three are None.

        Args:
            owner: name of the class or function that has these arguments, for messages.
            address: HOST:PORT of the first process.
            num_processes: number of processes.
            process_id: index of this process.

        Raises:
            ClusterConfigError: the arguments, or TF_CONFIG, do not describe a task.
        """
        arguments = (address, num_processes, process_id)
        return cls.from_environment() if arguments == (None, None, None) else cls.from_arguments(owner, *arguments)

    @classmethod
    def from_arguments(cls, owner: str, address: Any, num_processes: Any, process_id: Any) -> "ClusterTask":
        """Return the task of one of several processes that meet at the address of the first: the chief, or a worker.

        Args:
            owner: name of the class or function with these arguments, for messages.
            address: HOST:PORT of the first process.
            num_processes: number of processes.
            process_id: index of this process.

        Raises:
            ClusterConfigError: the address is not HOST:PORT, or a number is not allowed.
        """
        for name, number, least in (("num_processes", num_processes, 1), ("process_id", process_id, 0)):
            if not is_integer(number, least):
                raise ClusterConfigError(
                    f"{owner}({name}=...): got {_shorten(number)} (expected a whole number from {least}). Pass "
                    "coordinator_address, num_processes and process_id together."
                )
        if not isinstance(address, str) or not _is_address(address):
            raise ClusterConfigError(
                f"{owner}(coordinator_address=...): got {_shorten(address)} (expected HOST:PORT of the process 0, the port up to "
                "65535). Pass coordinator_address, num_processes and process_id together."
            )
        if process_id >= num_processes:
            raise ClusterConfigError(
                f"{owner}(process_id={process_id}): got {process_id} of {count_text(num_processes, 'process', 'processes')} "
                f"(expected 0 to {num_processes - 1}). Pass each process a different number."
            )
        task_type, task_id = ("chief", 0) if process_id == 0 else ("worker", process_id - 1)
        return cls(task_type=task_type, task_id=task_id, coordinator_address=address, num_processes=num_processes)

    @classmethod
    def from_environment(cls) -> "ClusterTask":
        """Return the task that TF_CONFIG describes; without TF_CONFIG, the only task.

        Raises:
            ClusterConfigError: TF_CONFIG does not follow TensorFlow's format.
        """
        serialized = os.environ.get("TF_CONFIG", "")
        if not serialized.strip():
            return cls()
        try:
            config = json.loads(serialized)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else error
            raise ClusterConfigError(f"{_WHERE} is not JSON: {reason}. Unset it, or fix it.") from None
        return cls.from_config(config)

    @classmethod
    def from_config(cls, config: object) -> "ClusterTask":
        """Return the task that the content of TF_CONFIG describes.

        Raises:
            ClusterConfigError: the content does not follow TensorFlow's format.
        """
        if not isinstance(config, Mapping):
            raise ClusterConfigError(f"{_WHERE}: got {_shorten(config)} (expected a JSON object). Unset it, or fix it.")
        cluster = _parse_cluster(config.get("cluster", {}))
        task = config.get("task") or {}
        if not isinstance(task, Mapping):
            raise ClusterConfigError(
                f"{_WHERE}: got the task {_shorten(task)} (expected an object with type and index). Fix it."
            )
        task_type, index = task.get("type", "worker"), _parse_index(task.get("index", 0))
        if not isinstance(task_type, str):
            raise ClusterConfigError(
                f"{_WHERE}: got the task type {_shorten(task_type)} (expected the name of a job). Fix it."
            )
        if task_type == "evaluator":
            # An evaluator reads the cluster's checkpoints, and neither knows nor joins its tasks.
            return cls({}, task_type, index, config.get("service"))
        if not cluster and task_type != "worker":
            raise ClusterConfigError(
                f"{_WHERE} has the task type {task_type!r} (expected worker, as it has no cluster). Add the cluster."
            )
        if cluster and "type" not in task:
            raise ClusterConfigError(
                f"{_WHERE} has a cluster, but no task type (expected one of {', '.join(cluster)}). Add it."
            )
        if cluster and index >= len(cluster.get(task_type, ())):
            raise ClusterConfigError(
                f"{_WHERE}: the cluster has no task {task_type} {index} (it has "
                f"{', '.join(f'{name}: {len(tasks)}' for name, tasks in cluster.items())}). Fix the task or the cluster."
            )
        return cls(cluster, task_type, index, config.get("service"))

    @property
    def is_in_cluster(self) -> bool:
        """Whether this task trains together with other tasks."""
        return self.num_workers > 1 or self.num_parameter_servers > 0

    @property
    def is_chief(self) -> bool:
        """Whether this task writes for the whole cluster."""
        if self.task_type == "evaluator":
            return False
        if self.coordinator_address is not None:
            return self.task_type == "chief"
        # Without a chief or a master, the first worker has this role.
        chief_job = next((job for job in ("chief", "master") if job in self.cluster), "worker")
        return self.task_type == chief_job and self.task_id == 0

    @property
    def num_workers(self) -> int:
        """Number of tasks that train, including the chief; 1 without a cluster, and 0 for an evaluator."""
        if self.task_type == "evaluator":
            return 0
        if self.coordinator_address is not None:
            return self.num_processes
        return sum(len(self.cluster.get(job, ())) for job in _TRAINING_JOBS) or 1

    @property
    def num_parameter_servers(self) -> int:
        """Number of parameter servers."""
        return len(self.cluster.get("ps", ()))

    @property
    def global_id(self) -> int | None:
        """Index of this task among all tasks of the cluster that are not evaluators; None for an evaluator."""
        if self.task_type == "evaluator":
            return None
        if self.coordinator_address is not None:
            return self.task_id + 1 if self.task_type == "worker" else 0  # The chief is the first.
        # TensorFlow's order: chief, master and worker, jobs with other names, parameter servers.
        jobs = [job for job in _TRAINING_JOBS if job in self.cluster]
        jobs += sorted(self.cluster.keys() - {*jobs, "ps", "evaluator"})
        if "ps" in self.cluster:
            jobs.append("ps")
        # Without a cluster, the only task is a worker of no listed job.
        earlier_jobs = jobs[: jobs.index(self.task_type)] if self.task_type in jobs else []
        return sum(len(self.cluster[job]) for job in earlier_jobs) + self.task_id


def _parse_cluster(jobs: object) -> dict[str, tuple[str, ...]]:
    """Return the addresses of each job from TF_CONFIG's "cluster"; jobs without tasks are omitted.

    Raises:
        ClusterConfigError: the cluster is malformed, or two tasks have the same address.
    """
    if not isinstance(jobs, Mapping):
        raise ClusterConfigError(
            f"{_WHERE}: got the cluster {_shorten(jobs)} (expected an object from job to addresses). Fix it."
        )
    addresses_by_job = {}
    for job, tasks in jobs.items():
        if isinstance(tasks, Mapping) and all(str(key).isdecimal() for key in tasks):  # ClusterSpec's sparse form.
            tasks = [tasks[key] for key in sorted(tasks, key=int)]
        if not isinstance(tasks, list | tuple) or not all(isinstance(address, str) for address in tasks):
            raise ClusterConfigError(
                f"{_WHERE}: got {_shorten(tasks)} for the job {job!r} (expected a list of HOST:PORT). Fix the job."
            )
        if tasks:
            addresses_by_job[str(job)] = tuple(tasks)
    # Nobody connects to an evaluator, so its addresses are not checked.
    addresses = [address for job, tasks in addresses_by_job.items() if job != "evaluator" for address in tasks]
    for address in addresses:
        if not _is_address(address):
            raise ClusterConfigError(
                f"{_WHERE}: got the address {_shorten(address)} (expected HOST:PORT, the port up to 65535). Fix it."
            )
        if addresses.count(address) > 1:
            raise ClusterConfigError(
                f"{_WHERE}: two tasks have the address {address!r} (expected one for each). Give each task another port."
            )
    return addresses_by_job


def _is_address(string: str) -> bool:
    """Return whether a string is HOST:PORT, with or without grpc:// before it."""
    host, _, port = string.removeprefix("grpc://").rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 1 << 16


def _parse_index(raw_index: Any) -> int:
    """Return the task index as an int; TF_CONFIG may give it as a string.

    Raises:
        ClusterConfigError: the index is not an integer of 0 or more.
    """
    try:
        index = int(raw_index)
    except (TypeError, ValueError, OverflowError):
        index = -1  # Rejected below.
    # `int` also takes True and 1.5.
    if index < 0 or isinstance(raw_index, bool | float):
        raise ClusterConfigError(
            f"{_WHERE}: got the task index {_shorten(raw_index)} (expected a whole number from 0). Fix it."
        )
    return index


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

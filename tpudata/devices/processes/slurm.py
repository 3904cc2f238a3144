"""The cluster of a Slurm job step, in the form of TF_CONFIG."""

import os
import re
from typing import Any

from tpudata.errors import UsageError

_FIRST_PORT = 12000
_PORTS_OF_A_STEP = 64
# Ports up to 32000; Linux assigns higher ones to clients.
_PORT_RANGES = 20000 // _PORTS_OF_A_STEP
# Number of steps of one job that get different ports.
_STEPS_OF_A_JOB = 8
_NODES_MESSAGE = "Slurm: got the list of nodes {!r} (expected one such as gpu[01-03,7]). Set SLURM_STEP_NODELIST."
# More than Slurm starts in one step.
_MAX_TASKS = 1 << 20


def cluster_from_slurm(*, evaluator: bool = False, port: int | None = None) -> dict[str, Any]:
    """Return the content of TF_CONFIG for this task of a Slurm job step: `RunConfig(tf_config=cluster_from_slurm())`.

    Each task that `srun` started is a process of the cluster: the first is the chief, the others are workers. Tasks must be
    distributed over the nodes in blocks, which is srun's default. The environment is not changed; Slurm's `--gpus-per-task` gives
    each task its GPUs.

    Args:
        evaluator: whether the last task is an evaluator, which does not train.
        port: port of the first task on each node; the other tasks take the following ports. None for a port derived from the
            numbers of the job and the step.

    Raises:
        UsageError: Slurm's variables are missing, as outside of a job step, or malformed; the tasks are not distributed in blocks;
            or there are fewer than 3 tasks with an evaluator.
    """
    rank, num_tasks = _read_number("PROCID"), _read_number("STEP_NUM_TASKS", "NTASKS")
    hosts = _parse_hosts(_read_variable("STEP_NODELIST", "JOB_NODELIST"))
    tasks_per_node = _parse_tasks_per_node(_read_variable("STEP_TASKS_PER_NODE", "TASKS_PER_NODE"))
    # The index of each task's node.
    task_nodes = [node for node, count in enumerate(tasks_per_node) for _ in range(count)]
    if len(hosts) != len(tasks_per_node) or len(task_nodes) != num_tasks:
        raise UsageError(
            f"Slurm: got {len(hosts)} nodes with {tasks_per_node} tasks (expected {num_tasks} tasks in total). Start the program "
            "with srun."
        )
    if rank >= num_tasks:
        raise UsageError(
            f"Slurm: SLURM_PROCID is {rank} (expected 0 to {num_tasks - 1}, as the step has {num_tasks} tasks). Start the program "
            "with srun."
        )
    if "SLURM_NODEID" in os.environ and task_nodes[rank] != _read_number("NODEID"):
        raise UsageError(
            f"Slurm: task {rank} is on node {os.environ['SLURM_NODEID']} (expected {task_nodes[rank]}). Use srun "
            "--distribution=block."
        )
    if evaluator and num_tasks < 3:
        raise UsageError(
            f"Slurm: got {num_tasks} tasks (expected 3 or more: a chief, workers and an evaluator). Use srun --ntasks."
        )
    first_port = _choose_port() if port is None else port
    # Earlier tasks on the same node have the ports before a task's own.
    ports = [first_port + task_nodes[:task].count(node) for task, node in enumerate(task_nodes)]
    addresses = [f"{hosts[node]}:{task_port}" for node, task_port in zip(task_nodes, ports, strict=True)]
    jobs = ["chief", *["worker"] * (num_tasks - 1)]
    if evaluator:
        jobs[-1] = "evaluator"
    cluster: dict[str, list[str]] = {}
    for job, address in zip(jobs, addresses, strict=True):
        cluster.setdefault(job, []).append(address)
    return {"cluster": cluster, "task": {"type": jobs[rank], "index": jobs[:rank].count(jobs[rank])}}


def _choose_port() -> int:
    """Return the first of 64 consecutive ports, derived from the job and step so that concurrent steps on a node rarely collide."""
    # A missing number counts as 0: the port only has to be the same in all tasks.
    job = _read_number("JOB_ID") if "SLURM_JOB_ID" in os.environ else 0
    step = _read_number("STEP_ID") if "SLURM_STEP_ID" in os.environ else 0
    return _FIRST_PORT + ((job * _STEPS_OF_A_JOB + step) % _PORT_RANGES) * _PORTS_OF_A_STEP


def _read_variable(*names: str) -> str:
    """Return the value of the first variable SLURM_NAME that is set; raise UsageError if none is set."""
    for name in names:
        if f"SLURM_{name}" in os.environ:
            return os.environ[f"SLURM_{name}"]
    raise UsageError(
        f"Slurm: SLURM_{names[0]} is not set (expected a task of a job step). Start the program with srun, in an allocation of "
        "sbatch or salloc."
    )


def _read_number(*names: str) -> int:
    """Return the number in the first variable SLURM_NAME that is set; raise UsageError if none is set, or it holds no number."""
    value = _read_variable(*names)
    if not re.fullmatch(r"[0-9]{1,12}", value):
        name = next(name for name in names if f"SLURM_{name}" in os.environ)
        raise UsageError(
            f"Slurm: SLURM_{name} is {value[:80]!r} (expected a whole number from 0). Start the program with srun."
        )
    return int(value)


def _parse_hosts(node_list: str) -> list[str]:
    """Return the hosts of a list such as "gpu[01-03,7],login".

    Raises:
        UsageError: the list is malformed.
    """
    if not re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]+\])+", node_list):
        raise UsageError(_NODES_MESSAGE.format(node_list[:80]))  # The list may be very long.
    hosts = []
    # Commas between entries are outside of brackets.
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", node_list):
        # The beginnings of the entry's names so far: each bracket multiplies them by its numbers.
        names = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", entry):
            endings = [plain] if plain else _expand_ranges(ranges, node_list)
            names = [name + ending for name in names for ending in endings]
        hosts += names
    return hosts


def _expand_ranges(ranges: str, node_list: str) -> list[str]:
    """Return the zero-padded numbers of ranges such as "01-03,7"; `node_list` is for the message."""
    return [number for piece in ranges.split(",") for number in _expand_range(piece, node_list)]


def _expand_range(piece: str, node_list: str) -> list[str]:
    """Return the zero-padded numbers of one range, such as "01-03" or "7"; `node_list` is for the message.

    Raises:
        UsageError: the range is malformed or too long.
    """
    match = re.fullmatch(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?", piece)
    if match is not None:
        first, last = match["first"], match["last"] or match["first"]
        if 0 <= int(last) - int(first) < _MAX_TASKS:
            return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    raise UsageError(_NODES_MESSAGE.format(node_list[:80]))


def _parse_tasks_per_node(value: str) -> list[int]:
    """Return the number of tasks on each node from a list such as "2(x3),1", which stands for [2, 2, 2, 1].

    Raises:
        UsageError: the list is malformed, or has too many tasks.
    """
    tasks_per_node: list[int] = []
    for piece in value.split(","):
        match = re.fullmatch(r"(?P<tasks>[0-9]{1,9})(?:\(x(?P<nodes>[0-9]{1,9})\))?", piece)
        if match is None or int(match["tasks"]) * int(match["nodes"] or 1) > _MAX_TASKS:
            raise UsageError(
                f"Slurm: got {value!r} as tasks per node (expected a list such as 2(x3),1). Start the program with srun."
            )
        tasks_per_node += [int(match["tasks"])] * int(match["nodes"] or 1)
    return tasks_per_node

"""The processes of a task's cluster."""

from typing import Any

import pytest

from tpudata.devices.processes.cluster_task import ClusterTask
from tpudata.devices.processes.process_group import ProcessGroup, make_process_group
from tpudata.errors import UsageError

CLUSTER = {"worker": ["b:2", "c:3"], "chief": ["grpc://a:1"], "evaluator": ["e:5"]}


def config(job: str = "worker", index: int = 0, cluster: Any = CLUSTER) -> ClusterTask:
    return ClusterTask.from_config({"cluster": cluster, "task": {"type": job, "index": index}})


def test_the_chief_is_the_first_process() -> None:
    names = ("chief 0 (grpc://a:1)", "worker 0 (b:2)", "worker 1 (c:3)")
    assert make_process_group(config("worker", 1)) == ProcessGroup("TF_CONFIG", "a:1", names, 2)
    assert make_process_group(config("chief")).index == 0
    assert make_process_group(config("worker", 1)).name == "worker 1"


def test_the_first_worker_acts_as_a_missing_chief() -> None:
    group = make_process_group(config("worker", 1, {"worker": ["a:1", "b:2"]}))
    assert (group.coordinator, group.names, group.index) == ("a:1", ("worker 0 (a:1)", "worker 1 (b:2)"), 1)


def test_from_arguments_makes_a_group_without_addresses() -> None:
    found = ClusterTask.from_arguments("RunConfig", "a:1", 3, 2)
    assert (found.is_chief, found.task_type, found.task_id) == (False, "worker", 1)
    assert (found.num_workers, found.global_id, found.num_parameter_servers) == (3, 2, 0)
    assert make_process_group(found) == ProcessGroup(
        "num_processes=...", "a:1", ("process 0 (a:1)", "process 1", "process 2"), 2
    )
    first = ClusterTask.from_arguments("RunConfig", "a:1", 3, 0)
    assert (first.is_chief, first.task_type, first.task_id, make_process_group(first).index) == (True, "chief", 0, 0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ClusterTask(), False),
        (config("chief"), True),
        (config("evaluator"), False),
        (config("worker", 0, {"worker": ["a:1"]}), False),
        (config("worker", 0, {"worker": ["a:1"], "ps": ["b:2"]}), True),
        (ClusterTask.from_arguments("RunConfig", "a:1", 1, 0), False),
        (ClusterTask.from_arguments("RunConfig", "a:1", 2, 0), True),
    ],
)
def test_one_process_is_not_a_cluster(found: ClusterTask, expected: bool) -> None:
    assert found.is_in_cluster == expected


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            config("ps", 0, {"chief": ["h:1"], "ps": ["h:2"]}),
            r"^TF_CONFIG: got the job 'ps' \(expected chief and worker\)",
        ),
        (
            config("worker", 0, {"master": ["h:1"], "worker": ["h:2"]}),
            r"^TF_CONFIG: got the job 'master'.*Rename it to chief",
        ),
    ],
)
def test_rejects_tasks_that_a_cluster_does_not_have(found: ClusterTask, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_process_group(found)

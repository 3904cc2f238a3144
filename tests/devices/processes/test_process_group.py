"""The processes that a RunConfig describes."""

from typing import Any

import pytest

from tpudata.devices.processes.process_group import ProcessGroup, group_of, is_in_cluster
from tpudata.errors import UsageError
from tpudata.estimator import InputPipelineConfig, RunConfig, TPUConfig

CLUSTER = {"worker": ["b:2", "c:3"], "chief": ["grpc://a:1"], "evaluator": ["e:5"]}


def config(job: str = "worker", index: int = 0, cluster: Any = CLUSTER, **others: Any) -> RunConfig:
    return RunConfig(tf_config={"cluster": cluster, "task": {"type": job, "index": index}}, **others)


def test_the_chief_is_the_first_process() -> None:
    names = ("chief 0 (grpc://a:1)", "worker 0 (b:2)", "worker 1 (c:3)")
    assert group_of(config("worker", 1)) == ProcessGroup("TF_CONFIG", "a:1", names, 2)
    assert group_of(config("chief")).index == 0
    assert group_of(config("worker", 1)).name == "worker 1"


def test_the_first_worker_stands_for_a_chief() -> None:
    group = group_of(config("worker", 1, {"worker": ["a:1", "b:2"]}))
    assert (group.coordinator, group.names, group.index) == ("a:1", ("worker 0 (a:1)", "worker 1 (b:2)"), 1)


def test_processes_have_numbers_without_addresses() -> None:
    found = RunConfig(coordinator_address="a:1", num_processes=3, process_id=2)
    assert (found.is_chief, found.task_type, found.task_id) == (False, "worker", 1)
    assert (found.num_worker_replicas, found.global_id_in_cluster, found.num_ps_replicas) == (3, 2, 0)
    assert group_of(found) == ProcessGroup(
        "RunConfig(num_processes=...)", "a:1", ("process 0 (a:1)", "process 1", "process 2"), 2
    )
    first = found.replace(process_id=0)
    assert (first.is_chief, first.task_type, first.task_id, group_of(first).index) == (True, "chief", 0, 0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (RunConfig(), False),
        (config("chief"), True),
        (config("evaluator"), False),
        (config("worker", 0, {"worker": ["a:1"]}), False),
        (config("worker", 0, {"worker": ["a:1"], "ps": ["b:2"]}), True),
        (RunConfig(coordinator_address="a:1", num_processes=1, process_id=0), False),
        (RunConfig(coordinator_address="a:1", num_processes=2, process_id=0), True),
    ],
)
def test_one_process_is_no_cluster(found: RunConfig, expected: bool) -> None:
    assert is_in_cluster(found) == expected


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
        (
            config(tpu_config=TPUConfig(per_host_input_for_training=InputPipelineConfig.BROADCAST)),
            r"^TPUConfig.*BROADCAST",
        ),
    ],
)
def test_rejects_what_a_cluster_has_not(found: RunConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        group_of(found)

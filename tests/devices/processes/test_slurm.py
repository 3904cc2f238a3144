"""The cluster of a Slurm job step."""

from typing import Any

import pytest

from tpudata.errors import UsageError
from tpudata.estimator import RunConfig, cluster_from_slurm


def in_step(monkeypatch: pytest.MonkeyPatch, rank: int, nodes: str, tasks: str, count: int, **others: str) -> None:
    given = {"PROCID": rank, "STEP_NUM_TASKS": count, "STEP_NODELIST": nodes, "STEP_TASKS_PER_NODE": tasks, **others}
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))


def test_tasks_become_a_chief_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    in_step(monkeypatch, 2, "gpu[9-10],login", "2,1(x2)", 4, JOB_ID="77", NODEID="1")
    found = cluster_from_slurm()
    port = int(found["cluster"]["chief"][0].partition(":")[2])
    assert 12000 <= port < 32000
    assert found == {
        "cluster": {"chief": [f"gpu9:{port}"], "worker": [f"gpu9:{port + 1}", f"gpu10:{port}", f"login:{port}"]},
        "task": {"type": "worker", "index": 1},
    }
    monkeypatch.setenv("TF_CONFIG", "not looked at")
    config = RunConfig(tf_config=found)
    assert (config.task_type, config.task_id, config.num_worker_replicas, config.is_chief) == ("worker", 1, 4, False)
    assert config.replace(save_summary_steps=3).task_id == 1


def test_neighbouring_steps_and_jobs_use_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    in_step(monkeypatch, 0, "a", "64", 64)
    used: set[int] = set()
    for job in ("4294967", "4294968", "4294969"):
        for step in range(8):
            monkeypatch.setenv("SLURM_JOB_ID", job)
            monkeypatch.setenv("SLURM_STEP_ID", str(step))
            cluster = cluster_from_slurm()["cluster"]
            ports = {int(address.partition(":")[2]) for address in [*cluster["chief"], *cluster["worker"]]}
            assert len(ports) == 64
            assert 12000 <= min(ports) <= max(ports) < 32000
            assert not ports & used
            used |= ports


def test_the_last_task_can_be_the_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    in_step(monkeypatch, 2, "a,b,c", "1(x3)", 3)
    found = cluster_from_slurm(evaluator=True, port=5000)
    assert found["task"] == {"type": "evaluator", "index": 0}
    assert found["cluster"] == {"chief": ["a:5000"], "worker": ["b:5000"], "evaluator": ["c:5000"]}
    assert RunConfig(tf_config=found).task_type == "evaluator"


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("rack[1-2]-node[8-9]", ["rack1-node8", "rack1-node9", "rack2-node8", "rack2-node9"]),
        ("login", ["login"]),
    ],
)
def test_expands_lists_of_nodes(nodes: str, hosts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    in_step(monkeypatch, 0, nodes, f"1(x{len(hosts)})", len(hosts))
    cluster: dict[str, Any] = cluster_from_slurm(port=1)["cluster"]
    assert [*cluster["chief"], *cluster.get("worker", [])] == [f"{host}:1" for host in hosts]


def test_rejects_a_job_that_srun_did_not_place_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^Slurm: SLURM_PROCID is not set .* Start the program with srun"):
        cluster_from_slurm()
    in_step(monkeypatch, 1, "a,b", "2(x2)", 4, NODEID="1")
    with pytest.raises(UsageError, match=r"task 1 is on node 1 \(expected 0\). Use srun --distribution=block"):
        cluster_from_slurm()
    in_step(monkeypatch, 0, "a", "1(x2)", 2)
    with pytest.raises(UsageError, match="got 1 nodes"):
        cluster_from_slurm()
    in_step(monkeypatch, 0, "a,b", "1(x2)", 2, NODEID="0")
    with pytest.raises(UsageError, match="got 2 tasks"):
        cluster_from_slurm(evaluator=True)
    in_step(monkeypatch, 4, "a,b", "2(x2)", 4)
    with pytest.raises(UsageError, match=r"SLURM_PROCID is 4 \(expected 0 to 3, as the step has 4 tasks\)"):
        cluster_from_slurm()
    with pytest.raises(TypeError, match="tf_config"):
        RunConfig(tf_config="slurm")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "variables",
    [
        *({"PROCID": value} for value in ("x", "-1", "1.5", "", "9" * 5000)),
        *({"STEP_NUM_TASKS": value} for value in ("many", "0", "")),
        *({"NODEID": value} for value in ("first", "")),
        *({"JOB_ID": "77_1"}, {"STEP_ID": "batch"}),
        *({"STEP_NODELIST": value} for value in ("a[1-", "a[1-x]", "a[0-999999999],b", "", "a[1-2-3]", "a[5-3]")),
        *({"STEP_TASKS_PER_NODE": value} for value in ("2(x", "x", "", "999999999(x999999999)")),
    ],
    ids=str,
)
def test_rejects_malformed_variables_in_one_line(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    in_step(monkeypatch, 1, "a,b", "2(x2)", 4)
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(UsageError, match=r"^Slurm: [^\n]*$"):
        cluster_from_slurm()

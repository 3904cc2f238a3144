"""Several joined processes, and the end of one."""

import json
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.devices.processes.test_rendezvous import free_ports
from tests.helpers.forked import Forked, run


def start(stack: ExitStack, configs: Sequence[dict[str, Any]], **options: Any) -> list[Forked]:
    """Start a process for each task."""
    texts = [json.dumps({"steps": 0, **options, **config}) for config in configs]
    return [stack.enter_context(Forked("-m", "tests.devices.processes.peers_program", text)) for text in texts]


def tf_configs(count: int) -> list[dict[str, Any]]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    tasks = [("chief", 0), *(("worker", index) for index in range(count - 1))]
    return [{"task": {"cluster": cluster, "task": {"type": job, "index": index}}} for job, index in tasks]


def numbers(count: int) -> list[dict[str, Any]]:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return [{"task": [address, count, index]} for index in range(count)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as left:
        yield left


def read_results(process: Forked) -> dict[str, Any]:
    line = next(line for line in process.stdout.splitlines() if line.startswith("found "))
    found: dict[str, Any] = json.loads(line.partition(" ")[2])
    return found


@pytest.mark.cases(1)
@pytest.mark.parametrize(("configs", "replicas"), [(tf_configs, 2), (numbers, 1)], ids=["TF_CONFIG", "numbers"])
def test_joined_processes_agree_and_share_their_devices(configs: Any, replicas: int, stack: ExitStack) -> None:
    processes = start(stack, configs(2), num_replicas=replicas, steps=3, devices=True)
    for index, process in enumerate(processes):
        assert process.wait() == 0, process.output
        assert read_results(process) == {
            "devices": [0] * replicas + [1] * replicas,
            "replicas": [2 * replicas, replicas, index * replicas, 2],
            "is_sharded": True,
            "summed": [3, 3 << 40],
            "least": [1, -2],
            "any": [True, False],
            "chiefs": [1, "chief"],
            "of_devices": {1: 3.0, 2: 10.0}[replicas],
        }
        assert "Traceback" not in process.stderr


@pytest.mark.cases(2)
@pytest.mark.parametrize("by_devices", [False, True], ids=["agree", "compute"])
@pytest.mark.parametrize("killed", [0, 1], ids=["chief", "worker"])
def test_the_other_process_ends_with_one_line_after_a_kill(killed: int, by_devices: bool, stack: ExitStack) -> None:
    processes = start(stack, tf_configs(2), steps=100_000, devices=by_devices, num_replicas=1 + by_devices)
    for process in processes:
        process.wait_for("in the rounds")
    begin = time.monotonic()
    processes[killed].send_signal(signal.SIGKILL)
    left = processes[1 - killed]
    assert left.wait(30) == 1
    assert time.monotonic() - begin < 20
    (line,) = [line for line in left.stderr.splitlines() if "ClusterError: " in line]
    names = ["chief 0", "worker 0"]
    assert re.search(
        rf"{names[1 - killed]} lost another process of the cluster: {names[killed]} \(127\.0\.0\.1:\d+\) was killed or cannot be "
        r"reached\. .* start all processes again",
        line,
    )
    assert "Check failure" not in left.stderr  # of jax's own service


def test_processes_without_a_connection_learn_the_name_of_a_killed_one(stack: ExitStack) -> None:
    chief, first, second = start(stack, tf_configs(3), steps=100_000)
    for process in (chief, first, second):
        process.wait_for("in the rounds")
    second.send_signal(signal.SIGKILL)
    for process in (chief, first):
        assert process.wait(30) == 1
        assert "lost another process of the cluster: worker 1 (" in process.stderr


def test_sigterm_of_one_process_ends_all_at_the_same_round(stack: ExitStack) -> None:
    processes = start(stack, tf_configs(2), steps=100_000, devices=True)
    for process in processes:
        process.wait_for("in the rounds")
    processes[1].send_signal(signal.SIGTERM)
    assert [process.wait(30) for process in processes] == [75, 75]
    rounds = [re.findall(r"terminated at round (\d+)", process.stdout) for process in processes]
    assert rounds[0] == rounds[1] != []


def test_rejects_processes_with_different_numbers_of_devices(stack: ExitStack) -> None:
    one, other = numbers(2)
    processes = start(stack, [{**one, "num_replicas": 2}, {**other, "num_replicas": 1}])
    for process in processes:
        assert process.wait(30) == 1
        assert "UsageError: TPUConfig(num_replicas=" in process.stderr
        assert "(got 1 to 2). Pass the same number in all." in process.stderr


JOIN = """
from tpudata.devices.processes.cluster_task import ClusterTask
from tpudata.devices.processes.topology import join_cluster
import jax
{before}
task = ClusterTask.from_arguments("RunConfig", "127.0.0.1:{port}", {count}, 0)
topology = join_cluster(task, None, 1)
{after}
"""


def test_rejects_a_program_whose_jax_has_started() -> None:
    code = JOIN.format(before="jax.devices()", after="", port=free_ports(1)[0], count=2)
    error = run("-c", code).stderr
    assert "UsageError: num_processes=...: jax has started before this process joined" in error
    assert "Make the estimator, or call tpu_system, before the first use of jax" in error


def test_rejects_a_second_join_with_other_devices() -> None:
    after = """
assert join_cluster(task, 1).devices is topology.devices
join_cluster(task, 2)
"""
    code = JOIN.format(before="", after=after, port=free_ports(1)[0], count=1)
    error = run("-c", code).stderr
    assert "UsageError: num_processes=...: this process is process 0, with 2 devices, and has joined" in error


def test_a_process_without_others_ends_at_the_limit() -> None:
    found = run("-c", JOIN.format(before="", after="", port=free_ports(1)[0], count=3))
    assert found.returncode == 1
    assert (
        "process 0 waited 1 s for other processes of the cluster (got no answer from process 1 and 1 more)"
        in found.stderr
    )

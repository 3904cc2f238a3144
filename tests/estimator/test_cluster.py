"""Training on several processes of a TF_CONFIG cluster, on loopback."""

import dataclasses
import json
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.devices.processes.test_rendezvous import free_ports
from tests.estimator import programs
from tests.helpers.forked import Forked
from tpudata.devices.processes.peers import Peers
from tpudata.errors import UsageError
from tpudata.estimator import ClusterError, Estimator, RunConfig, TPUConfig, TPUEstimator
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.checkpoints import find_chiefs_latest

Task = tuple[str, int]


class Process(Forked):
    """A process of a cluster."""

    def __init__(self, task: Task, environment: dict[str, str], runs: Sequence[dict[str, Any]]) -> None:
        super().__init__("-m", "tests.estimator.cluster_program", *map(json.dumps, runs), environment=environment)
        self.task = task

    def seen_by_hooks(self) -> list[list[int]]:
        """Return the steps that the hook of each run saw."""
        lines = [line.partition(" ") for line in self.stdout.splitlines()]
        return [json.loads(text) for name, _, text in lines if name == "hook"]


class Clusters:
    """Starts processes, and ends them with the test."""

    def __init__(self, left: ExitStack) -> None:
        self._left = left

    def start(self, tasks: Sequence[Task], *runs: dict[str, Any]) -> list[Process]:
        """Start a process for each task, for some consecutive runs; an evaluator's process is outside of the cluster."""
        trains = [task for task in tasks if task[0] != "evaluator"]
        addresses = dict(zip(trains, [f"127.0.0.1:{port}" for port in free_ports(len(trains))], strict=True))
        cluster: dict[str, list[str]] = {}
        for (job, _), address in addresses.items():
            cluster.setdefault(job, []).append(address)
        started = []
        for job, index in tasks:
            text = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            process = Process((job, index), {"TF_CONFIG": text} if len(tasks) > 1 else {}, runs)
            started.append(self._left.enter_context(process))
        return started

    def run(self, tasks: Sequence[Task], *runs: dict[str, Any]) -> list[Process]:
        """Run processes to their end."""
        started = self.start(tasks, *runs)
        for process in started:
            assert process.wait() == 0, process.output
        return started


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    with ExitStack() as left:
        yield Clusters(left)


CHIEF, WORKER, EVALUATOR = ("chief", 0), ("worker", 0), ("evaluator", 0)


def values(folder: Path) -> dict[str, Any]:
    """Return the variables of the newest checkpoint."""
    newest = programs.newest_step(folder)
    reader = Checkpoint.open(str(folder / f"model.ckpt-{newest}")).open_reader()
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def losses(folder: Path) -> list[float]:
    return [found["loss"] for _, found in programs.read_events(folder) if "loss" in found]


def assert_equal(one: Path, other: Path, tolerance: float, but: Sequence[str] = ()) -> None:
    expected, found = values(one), values(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name not in but:
            assert found[name] == pytest.approx(value, abs=tolerance), name


def test_several_processes_train_as_one(clusters: Clusters, tmp_path: Path, digits_dataset: Path) -> None:
    """A TPUEstimator trains, and then an Estimator, twice, in the same processes."""

    def start(name: str, tasks: Sequence[Task]) -> list[Process]:
        folder = tmp_path / name
        of_tpu = {"model_dir": str(folder / "tpu"), "data": str(digits_dataset), "steps": 7, "saves": 4}
        plain = {"model_dir": str(folder / "plain"), "steps": [2, 4], "plain": True}
        return clusters.start(tasks, of_tpu, plain)

    # The first worker acts as the chief.
    for process in [*start("one", [WORKER]), *start("three", [WORKER, ("worker", 1), ("worker", 2)])]:
        assert process.wait() == 0, process.output
        assert process.output.count("loss = ") == 2 * 3  # at the first step and the last
    one, three = tmp_path / "one", tmp_path / "three"
    for kind, steps in (("tpu", 7), ("plain", 4)):
        expected = losses(one / kind)
        assert len(expected) == steps
        assert losses(three / kind) == pytest.approx(expected, abs=5e-6)
        # The average is the first replica's, over only its rows.
        assert_equal(one / kind, three / kind, 5e-5, but=["average"])
    # Only one process wrote, and its files equal those of a single process.
    one, three = one / "tpu", three / "tpu"
    assert len(list(three.glob("events.*"))) == len(list(one.glob("events.*"))) == 1
    assert {path.name for path in three.glob("model*")} == {path.name for path in one.glob("model*")}
    tags = {tag for _, found in programs.read_events(one) for tag in found}
    assert {tag for _, found in programs.read_events(three) for tag in found} == tags >= {"loss", "of_the_model"}


DISTURBED = {"steps": 10, "rate": 0.3, "saves": 4, "iterations": 2}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A chief and a worker that ran to their end three times: until the data ended, until a hook ended it, and as DISTURBED."""
    folder = tmp_path_factory.mktemp("cluster")
    hooked = {"model_dir": str(folder / "chiefs"), "steps": 40, "hook": True, "tf_summary": True}
    runs = (
        {**hooked, "rows": 9, "workers_dir": str(folder / "others")},
        {**hooked, "stop": 12},
        {**DISTURBED, "model_dir": str(folder / "alone")},
    )
    with ExitStack() as left:
        yield SimpleNamespace(folder=folder, processes=Clusters(left).run([CHIEF, WORKER], *runs))


def test_a_restart_after_a_kill_resumes_exactly(
    undisturbed: SimpleNamespace, clusters: Clusters, tmp_path: Path
) -> None:
    options = {**DISTURBED, "model_dir": str(tmp_path)}
    started = clusters.start([CHIEF, WORKER], {**options, "pause": 0.1})
    started[0].wait_for("model.ckpt-4.")
    started[1].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    assert started[0].wait(30) == 1
    assert time.monotonic() - begin < 20
    errors = [line for line in started[0].output.splitlines() if "ClusterError: " in line]
    assert len(errors) == 1
    assert re.search(r"chief 0 lost another process .*\. .* start all processes again", errors[0])
    saved = programs.newest_step(tmp_path)
    assert saved is not None
    assert 4 <= saved < 10
    clusters.run([CHIEF, WORKER], options)
    assert_equal(undisturbed.folder / "alone", tmp_path, 0.0)


class OtherPeers(Peers):
    """Peers of a process that is not the chief, whose chief has sent some bytes."""

    index = 1
    count = 2

    def __init__(self, sent: bytes) -> None:
        self._sent = sent

    def broadcast_bytes(self, data: bytes) -> bytes:
        assert data == b""
        return self._sent


def test_rejects_a_checkpoint_that_differs_between_processes(tmp_path: Path) -> None:
    programs.make_estimator(tmp_path).train(programs.train_input_fn, max_steps=2)
    found = Checkpoint.open(str(tmp_path / "model.ckpt-2"))

    def first(sent: bytes) -> Checkpoint | None:
        return find_chiefs_latest(str(tmp_path), OtherPeers(sent))

    assert first(b"") is None
    assert first(found.to_bytes()) == found
    with pytest.raises(ClusterError, match=r"which is different for this process .* storage that all machines share"):
        first(dataclasses.replace(found, digest=bytes(16)).to_bytes())
    with pytest.raises(ClusterError, match="which is missing for this process"):
        first(dataclasses.replace(found, prefix=str(tmp_path / "model.ckpt-9")).to_bytes())


def test_sigterm_of_one_process_saves_and_ends_all(clusters: Clusters, tmp_path: Path) -> None:
    started = clusters.start([CHIEF, WORKER], {"model_dir": str(tmp_path), "steps": 100000, "pause": 0.01, "saves": 5})
    started[0].wait_for("model.ckpt-5.")
    started[1].send_signal(signal.SIGTERM)
    begin = time.monotonic()
    assert [process.wait(30) for process in started] == [75, 75]
    assert time.monotonic() - begin < 20
    saved = programs.newest_step(tmp_path)
    for process in started:
        assert f"SIGTERM: training stopped at step {saved}, which is saved" in process.output


def test_hooks_and_the_end_of_data_stop_all_and_only_the_chief_writes(undisturbed: SimpleNamespace) -> None:
    chiefs = undisturbed.folder / "chiefs"
    for process in undisturbed.processes:
        # The worker's data ends one step earlier than the chief's.
        assert process.seen_by_hooks() == [[*range(1, 9)], [9, 10, 11, 12]]
        assert "The input ended at step 8." in process.output
        assert "A hook stopped training at step 12." in process.output
    assert programs.saved_steps(chiefs) == [0, 8, 12]
    # Only the chief writes: for the estimator, tf.summary and the StepCounterHook.
    assert not (undisturbed.folder / "others").exists()
    writers = [re.search(r"\.(\d+)\.\d+\.v2$", path.name) for path in chiefs.glob("events.*")]
    assert len({found[1] for found in writers if found}) == 1  # process ids
    assert sum("global_step/sec" in found for _, found in programs.read_events(chiefs)) == 1


def test_listeners_of_the_chief_see_the_checkpoint_that_training_resumes_from(
    clusters: Clusters, tmp_path: Path
) -> None:
    options = {"model_dir": str(tmp_path), "listener": True, "saves": 4}
    chief, worker = clusters.run([CHIEF, WORKER], {**options, "steps": 4}, {**options, "steps": 6})
    saved_steps = [line for line in chief.stdout.splitlines() if line.startswith("saved")]
    assert saved_steps == ["saved [0, 4]", "saved [4, 6]"]
    assert [line for line in worker.stdout.splitlines() if line.startswith("saved")] == ["saved []", "saved []"]


def test_an_evaluator_follows_the_training(clusters: Clusters, tmp_path: Path) -> None:
    options = {"model_dir": str(tmp_path), "steps": 10, "pause": 0.15, "saves": 4, "spec": True}
    chief, worker, evaluator = clusters.run([CHIEF, WORKER, EVALUATOR], options)
    assert "evaluated None" in chief.output
    assert "evaluated None" in worker.output
    assert "'global_step': 10.0" in evaluator.output
    steps = [step for step, found in programs.read_events(tmp_path / "eval") if "loss" in found]
    assert steps[-1] == 10
    assert steps == sorted(set(steps))
    assert len(list((tmp_path / "export" / "last").iterdir())) == 1
    assert "ERROR" not in evaluator.output


@pytest.mark.parametrize(
    ("cluster", "config", "message"),
    [
        ({"chief": ["h:1"], "ps": ["h:2"]}, {}, r"^TF_CONFIG: got the job 'ps' \(expected chief and worker\)"),
        ({"master": ["h:1"], "worker": ["h:2"]}, {}, r"^TF_CONFIG: got the job 'master'.*Rename it to chief"),
        ({"chief": ["h:1"], "worker": ["h:2"]}, {"per_host_input_for_training": 4}, r"^TPUConfig.*BROADCAST"),
    ],
)
def test_rejects_unsupported_jobs_and_input_modes_of_a_cluster(
    cluster: dict[str, list[str]], config: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = next(iter(cluster))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}}))
    run_config = RunConfig(TPUConfig(**config), model_dir=str(tmp_path))
    with pytest.raises(UsageError, match=message):
        TPUEstimator(programs.make_model_fn(), config=run_config, use_tpu=False, train_batch_size=8)
    if not config:
        with pytest.raises(UsageError, match=message):
            Estimator(programs.make_model_fn(), config=run_config)


def test_cluster_error_exits_with_1() -> None:
    assert ClusterError("lost").exit_code == 1

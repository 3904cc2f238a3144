"""`tpudata train` on several processes."""

from __future__ import annotations

import json
import re
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forked import Forked
from tpudata.cli import main


def train(words: list[str], environments: list[dict[str, str]]) -> list[str]:
    """Train by a process for each environment, and return what they write to stdout."""
    with ExitStack() as stack:
        started = [Forked("-m", "tpudata.train", *words, environment=environment) for environment in environments]
        for process in started:
            stack.enter_context(process)
        for process in started:
            assert process.wait() == 0, process.stderr
        return [process.stdout for process in started]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def words(data: Path, folder: Path, *others: str) -> list[str]:
    common = ["--model=tests.train.linear_model:model_fn", "--batch-size=32", "--train-steps=6", "--seed=1"]
    return [*common, f"--data={data}", f"--model-dir={folder}", *others]


def record(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.mark.matrix
def test_two_slurm_tasks_train_as_one_process(digits_dataset: Path, tmp_path: Path) -> None:
    given = words(digits_dataset, tmp_path / "two", "--cluster=slurm")
    step = {"STEP_NUM_TASKS": "2", "STEP_NODELIST": "127.0.0.1", "STEP_TASKS_PER_NODE": "2", "JOB_ID": str(free_port())}
    environment = {f"SLURM_{name}": value for name, value in step.items()}
    outs = train(given, [{**environment, "SLURM_PROCID": str(rank)} for rank in range(2)])
    # Only the chief reports, but the worker has also trained.
    assert ["configuration, saved in" in out for out in outs] == [True, False]
    assert ["evaluate" in out for out in outs] == [True, False]
    assert all("train" in out for out in outs)
    assert main(["train", *words(digits_dataset, tmp_path / "one")]) == 0
    one, two = (record(tmp_path / name, "evaluation.json") for name in ("one", "two"))
    assert two == pytest.approx(one, abs=1e-4)
    assert sorted(path.name for path in (tmp_path / "two").iterdir() if "events" not in path.name) == sorted(
        path.name for path in (tmp_path / "one").iterdir() if "events" not in path.name
    )


def test_only_the_evaluator_of_a_cluster_evaluates(digits_dataset: Path, tmp_path: Path) -> None:
    addresses = {job: [f"127.0.0.1:{free_port()}"] for job in ("chief", "worker", "evaluator")}
    given = words(digits_dataset, tmp_path, "--save-checkpoints-steps=3")
    tasks = [{"cluster": addresses, "task": {"type": job, "index": 0}} for job in addresses]
    outs = train(given, [{"TF_CONFIG": json.dumps(task)} for task in tasks])
    assert ["evaluate" in out for out in outs] == [False, False, True]
    assert record(tmp_path, "evaluation.json")["global_step"] == 6


@pytest.mark.parametrize(
    ("kind", "others", "message"),
    [
        ("chief", ["--mode=predict"], r"this process is chief 0 of a cluster \(got --mode predict, expected train or"),
        ("worker", ["--mode=eval"], r"worker 0 .*expected train or train_and_eval\). Run it in one process"),
        ("evaluator", ["--mode=train"], r"evaluator 0 .*expected train_and_eval or eval"),
        ("chief", ["--early-stop-metric=loss", "--save-checkpoints-steps=5"], "does not support --early-stop-metric"),
    ],
)
def test_rejects_modes_that_a_task_does_not_support(
    kind: str,
    others: list[str],
    message: str,
    digits_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = {"cluster": {"chief": ["h:1"], "worker": ["h:2"]}, "task": {"type": kind, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    assert main(["train", *words(digits_dataset, tmp_path / "m", *others)]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 7}}',
        '{"cluster": {"worker": ["a", "b:1"]}, "task": {"type": "worker"}}',
        '{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker"}}',
    ],
    ids=["cut", "deep", "index", "address", "ps"],
)
def test_reports_a_malformed_tf_config_in_one_line(
    text: str,
    digits_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    assert main(["train", *words(digits_dataset, tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tpudata: error: TF_CONFIG")
    assert error.count("\n") == 1

"""Several hosts for real: servers that have none of our code, and two workers of MultiWorkerMirroredStrategy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.datasets import Written
from tests.input.clusters import cluster
from tests.input.workers_program import STEPS, TOTAL
from tpudata import make_input_fn

ROOT = Path(__file__).parents[2]


def started(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.input.workers_program", *arguments]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    return subprocess.Popen(program, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def expected(path: str, *, training: bool) -> list[list[int]]:
    dataset = make_input_fn(path, "train", training=training, seed=3)({"batch_size": TOTAL})
    return [labels.tolist() for _, labels in dataset.take(STEPS).as_numpy_iterator()]


def test_hosts_of_one_client_read_the_files_themselves(raw_digits: Written, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in Path(raw_digits.path).glob("train-*"))
    with cluster(tmp_path, ["worker", "worker"]) as servers:
        assert [server.ours for server in servers] == [[], []]
        before = [server.read_bytes() for server in servers]
        found = finished(started(["remote", raw_digits.path, *(server.address for server in servers)]))
        read = [server.read_bytes() - count for server, count in zip(servers, before, strict=True)]
    for name in ("training", "evaluation"):
        assert found[name] == expected(raw_digits.path, training=name == "training")
        # The client reads the manifest and the indexes.
        assert found[f"{name} bytes"] < size
    # Each has half of the lanes in training, and half of the rows in evaluation.
    assert min(read) >= size


def test_two_workers_of_multi_worker_mirrored_strategy(raw_digits: Written) -> None:
    with socket.create_server(("localhost", 0)) as one, socket.create_server(("localhost", 0)) as other:
        places = [f"localhost:{found.getsockname()[1]}" for found in (one, other)]
    tasks = [{"cluster": {"worker": places}, "task": {"type": "worker", "index": index}} for index in range(2)]
    processes = [started(["multi", raw_digits.path], TF_CONFIG=json.dumps(task)) for task in tasks]
    workers = [finished(process) for process in processes]
    for name in ("from function", "dataset", "evaluation"):
        batches = [one + other for one, other in zip(workers[0][name], workers[1][name], strict=True)]
        assert batches == expected(raw_digits.path, training=name != "evaluation"), name

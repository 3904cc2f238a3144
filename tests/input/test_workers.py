"""Two workers of MultiWorkerMirroredStrategy, each a process; test_service.py has hosts that one client controls."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.helpers.datasets import Written
from tests.helpers.forked import Forked
from tests.input.workers_program import STEPS, TOTAL
from tpudata import make_input_fn


def started(*arguments: str, **environment: str) -> Forked:
    variables = {"CUDA_VISIBLE_DEVICES": "-1", **environment}
    return Forked("-m", "tests.input.workers_program", *arguments, environment=variables)


def finished(process: Forked) -> dict[str, Any]:
    assert process.wait(300) == 0, process.stderr
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def expected(path: str, *, training: bool) -> list[list[int]]:
    dataset = make_input_fn(path, "train", training=training, seed=3)({"batch_size": TOTAL})
    return [labels.tolist() for _, labels in dataset.take(STEPS).as_numpy_iterator()]


def test_two_workers_together_feed_the_global_batches(raw_digits: Written) -> None:
    with socket.create_server(("localhost", 0)) as first, socket.create_server(("localhost", 0)) as second:
        places = [f"localhost:{found.getsockname()[1]}" for found in (first, second)]
    tasks = [{"cluster": {"worker": places}, "task": {"type": "worker", "index": index}} for index in range(2)]
    one, other = (started("multi", raw_digits.path, TF_CONFIG=json.dumps(task)) for task in tasks)
    with one, other:
        workers = [finished(process) for process in (one, other)]
    for name in ("from function", "dataset", "evaluation"):
        batches = [upper + lower for upper, lower in zip(workers[0][name], workers[1][name], strict=True)]
        assert batches == expected(raw_digits.path, training=name != "evaluation"), name

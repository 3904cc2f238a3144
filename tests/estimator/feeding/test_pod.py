"""The hosts of a TPU pod: two servers with none of our code, fed through TensorFlow's own TPUStrategy of four cores."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tests.helpers.forked import run
from tests.input.clusters import cluster
from tpudata import make_input_fn
from tpudata.estimator.feeding.python_operations import python_operations

BATCH, STEPS, CORES = 24, 4, 2
HOSTS = [f"/job:worker/replica:0/task:{host}/device:CPU:0" for host in range(2)]
# Calls of input_fn as (host, number, calls, replicas), and the batch size that they see.
TWO = [(0, 0, 2, 2), (1, 1, 2, 2)]
FOUR = [(0, 0, 4, 1), (0, 1, 4, 1), (1, 2, 4, 1), (1, 3, 4, 1)]
CALLS = [
    ("train", "PER_HOST_V1", TWO, 12),
    ("train", "PER_SHARD_V1", FOUR, 6),
    ("eval", "PER_HOST_V2", TWO, 6),
    ("infer", "PER_HOST_V1", TWO, 12),
]


@pytest.fixture(scope="module")
def pod(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Return what the program found, with the hosts' process ids and the bytes that they read from files."""
    with cluster(tmp_path_factory.mktemp("hosts"), ["worker", "worker"]) as servers:
        assert [server.ours for server in servers] == [[], []]
        before = [server.read_bytes() for server in servers]
        program = ["-m", "tests.estimator.feeding.pod_program", str(digits_dataset)]
        done = run(*program, *(server.address for server in servers), environment={"CUDA_VISIBLE_DEVICES": "-1"})
        assert done.returncode == 0, done.stderr
        read = [server.read_bytes() - count for server, count in zip(servers, before, strict=True)]
        found = json.loads(done.stdout.splitlines()[-1])
        yield SimpleNamespace(found=found, read=read, pids=[server.pid for server in servers])


@pytest.mark.parametrize(("mode", "pipeline", "numbers", "batch_size"), CALLS)
def test_input_fn_is_called_for_each_host_on_its_cpu(
    mode: str, pipeline: str, numbers: Any, batch_size: int, pod: Any
) -> None:
    calls = pod.found[f"{mode} {pipeline}"]["calls"]
    assert [(call["host"], *call["numbers"]) for call in calls] == numbers
    assert {call["batch_size"] for call in calls} == {batch_size}
    for call in calls:
        assert call["made on"] == call["device"] == HOSTS[call["host"]]


@pytest.mark.parametrize(("mode", "pipeline"), [case[:2] for case in CALLS])
def test_a_host_opens_its_files_and_keeps_its_batches(mode: str, pipeline: str, pod: Any) -> None:
    found = pod.found[f"{mode} {pipeline}"]
    for opened in found["pids"]:
        assert opened == [[pid] for pid in pod.pids for _ in range(CORES)]
    for devices in found["devices"]:
        assert devices == [host for host in HOSTS for _ in range(CORES)]


def test_each_host_reads_the_dataset(pod: Any, digits_dataset: Path) -> None:
    size = sum(path.stat().st_size for path in digits_dataset.glob("train-*"))
    assert min(pod.read) >= size


@pytest.mark.parametrize(("mode", "pipeline"), [case[:2] for case in CALLS])
def test_global_batches_are_those_of_one_host(mode: str, pipeline: str, pod: Any, digits_dataset: Path) -> None:
    dataset = make_input_fn(digits_dataset, "train", training=mode == "train", seed=3)({"batch_size": BATCH})
    steps = [list(itertools.chain(*step)) for step in pod.found[f"{mode} {pipeline}"]["labels"]]
    if mode == "train":
        assert steps == [labels.tolist() for _, labels in dataset.take(STEPS).as_numpy_iterator()]
        return
    rows = [label[features["weights"] > 0].tolist() for features, label in dataset.as_numpy_iterator()]
    assert steps == rows
    assert sum(map(len, rows)) == 200


def test_the_loop_of_training_gathers_no_batch(pod: Any) -> None:
    """An Optional holds the batches of all hosts in one place."""
    assert not [kind for kind in pod.found["train PER_HOST_V1"]["operations"] if "Optional" in kind]


def test_hosts_whose_data_end_at_different_steps(pod: Any) -> None:
    """Two steps on host 0, three on host 1: training ends with the first, and the others fill up."""
    whole = [[list(range(first + 12 * step, first + 12 * step + 6)) for first in (0, 6, 100, 106)] for step in range(2)]
    rest = [[], [], list(range(124, 130)), list(range(130, 136))]
    uneven = pod.found["uneven"]
    assert uneven["train"] == whole
    assert uneven["evaluate"] == uneven["predict"] == [*whole, rest]
    kind, message = pod.found["errors"]["ends"]
    assert kind == "InvalidArgumentError"
    assert "ends within a step" in message


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("broadcast", "UsageError", "TPUConfig(per_host_input_for_training=BROADCAST): "),
        ("sliced", "UsageError", "TPUConfig(eval_training_input_configuration=SLICED): "),
        ("python", "ValueError", "(got PyFunc, expected TensorFlow's operations)"),
        ("tensors", "ValueError", "(got PyFunc, GeneratorDataset, expected TensorFlow's operations)"),
        ("shapes", "ValueError", "input_fn: all hosts need elements of the same shapes and dtypes"),
    ],
)
def test_rejects_what_hosts_cannot_feed(name: str, kind: str, text: str, pod: Any) -> None:
    found, message = pod.found["errors"][name]
    assert found == kind
    assert text in message


def twice(numbers: Any) -> Any:
    return numbers * 2


def test_python_in_nested_functions_is_found() -> None:
    rows = tf.data.Dataset.range(3)
    assert python_operations(rows.map(twice).batch(2)) == ()
    nested = rows.interleave(lambda _: rows.map(lambda row: tf.numpy_function(twice, [row], tf.int64)))
    assert python_operations(nested) == ("PyFunc",)
    assert python_operations(rows.map(lambda row: tf.py_function(twice, [row], tf.int64))) == ("EagerPyFunc",)
    generated = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64))
    assert "GeneratorDataset" in python_operations(generated)

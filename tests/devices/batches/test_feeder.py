"""Stacks of batches: their steps, end and errors, and which of them are on the devices."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh

from tests.helpers.forked import Forked
from tpudata.devices.batches.feeder import ShortData, StackFeed, StackIteration
from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.peers import Peers


def feed(dataset: Any, replicas: int = 2, capacity: int = 3, *, is_endless: bool = False, **others: Any) -> StackFeed:
    mesh = Mesh(np.array(jax.devices()[:replicas]), ("replicas",))
    others = {"peers": Peers(), **others}
    return StackFeed(dataset, mesh, replicas, capacity, is_endless=is_endless, **others)


def steps_of(iteration: StackIteration, most: int = 100) -> Iterator[list[Any]]:
    """Yield the arrays [replicas, ...] of each step."""
    while (portion := iteration.take(most)) is not None:
        for step in range(portion.start, portion.start + portion.count):
            yield [np.asarray(array)[step] for array in portion.arrays]


def taken(iteration: StackIteration, most: int = 100) -> list[list[int]]:
    """Return the numbers of each step, and close the iteration."""
    numbers = [step[0].tolist() for step in steps_of(iteration, most)]
    iteration.close()
    return numbers


def numbers(count: int) -> Any:
    return tf.data.Dataset.range(count)


def fails_at(number: int, count: int = 20) -> Any:
    """Return a dataset whose element `number` cannot be read."""

    def checked(value: Any) -> Any:
        with tf.control_dependencies(
            [tf.debugging.assert_none_equal(value, tf.constant(number, tf.int64), message="damaged")]
        ):
            return tf.identity(value)

    return numbers(count).map(checked)


class OtherPeers(Peers):
    """Two processes, of which the other reports these numbers, a list for each stack."""

    count = 2

    def __init__(self, *reports: Sequence[int]) -> None:
        self._reports = list(reports)

    def min_numbers(self, numbers: Sequence[int]) -> list[int]:
        return [min(pair) for pair in zip(numbers, self._reports.pop(0), strict=True)]


@pytest.mark.cases(6)
@pytest.mark.parametrize("most", [1, 2, 100])
@pytest.mark.parametrize("capacity", [1, 3, 50])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_each_step_holds_the_next_element_of_each_replica(most: int, capacity: int, replicas: int) -> None:
    found = taken(feed(numbers(10 * replicas), replicas, capacity).iterate(), most)
    assert found == np.arange(10 * replicas).reshape(10, replicas).tolist()


@pytest.mark.cases(1)
@pytest.mark.parametrize("capacity", [1, 3])
def test_many_short_runs_log_no_tensorflow_warning(capacity: int, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(6):
        taken(feed(numbers(2), capacity=capacity).iterate())
        with pytest.raises(tf.errors.InvalidArgumentError):
            taken(feed(fails_at(1), capacity=capacity).iterate())
    assert [record.message for record in caplog.records if record.name == "tensorflow"] == []


def test_a_portion_lies_in_one_stack() -> None:
    iteration = feed(numbers(20)).iterate()
    portions = [iteration.take(2) for _ in range(4)]
    assert [(item.start, item.count) for item in portions if item] == [(0, 2), (2, 1), (0, 2), (2, 1)]
    iteration.close()


@pytest.mark.parametrize("capacity", [1, 3])
def test_repeated_trainings_log_no_retracing_warning(capacity: int, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10):
        taken(feed(numbers(4), capacity=capacity).iterate())
    assert "retracing" not in caplog.text


def test_arrays_are_sharded_over_the_replicas() -> None:
    iteration = feed(tf.data.Dataset.from_tensors(np.ones([4, 5], np.float32)).repeat(), 4).iterate()
    portion = iteration.take(1)
    iteration.close()
    assert portion is not None
    (array,) = portion.arrays
    assert array.shape == (3, 4, 4, 5)
    assert array.sharding.spec == jax.sharding.PartitionSpec(None, "replicas")
    assert [(shard.device, shard.data.shape) for shard in array.addressable_shards] == [
        (device, (3, 1, 4, 5)) for device in jax.devices()[:4]
    ]


@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize(
    "dtype", ["int64", "int32", "uint8", "bool", "bfloat16", "float16", "float64", "complex64", "uint64", "int8"]
)
def test_arrays_keep_values_and_dtypes(dtype: str, capacity: int) -> None:
    values = tf.cast(tf.constant([0, 1, 2**40 + 1], tf.int64), dtype)
    iteration = feed(tf.data.Dataset.from_tensors(values).repeat(10), capacity=capacity).iterate()
    portion = iteration.take(1)
    iteration.close()
    assert portion is not None
    assert portion.arrays[0].dtype == values.numpy().dtype
    np.testing.assert_array_equal(np.asarray(portion.arrays[0])[0, 1], values.numpy())


def test_arrays_follow_the_order_of_flatten_without_none() -> None:
    element = ({"b": tf.constant([1]), "a": {"c": tf.constant([2.0])}, "d": None}, None)
    dataset = tf.data.Dataset.from_tensors(element).repeat(4)
    data = feed(dataset)
    assert data.element_spec == dataset.element_spec
    (first, _) = steps_of(data.iterate())
    assert [array.tolist() for array in first] == [[[2.0], [2.0]], [[1], [1]]]


def test_large_batches_make_shorter_stacks() -> None:
    dataset = tf.data.Dataset.from_tensors(np.ones([256], np.float32)).repeat()
    assert feed(dataset, capacity=100, stack_bytes=10 * 1024).capacity == 10
    assert feed(dataset, capacity=7, stack_bytes=10 * 1024).capacity == 7
    assert feed(dataset, capacity=7, stack_bytes=10).capacity == 1


def test_a_pass_reads_only_the_requested_steps() -> None:
    assert taken(feed(fails_at(10)).iterate(max_steps=5)) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("capacity", [1, 3, 5, 8])
def test_steps_before_an_error_are_delivered(capacity: int) -> None:
    steps = steps_of(feed(fails_at(11), capacity=capacity).iterate())
    assert [next(steps)[0].tolist() for _ in range(5)] == [[2 * i, 2 * i + 1] for i in range(5)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="damaged"):
        next(steps)


@pytest.mark.parametrize(("is_endless", "processes"), [(True, 1), (False, 1), (True, 2)])
def test_an_empty_repeated_dataset_fails_if_other_processes_expect_more(is_endless: bool, processes: int) -> None:
    nothing = numbers(3).filter(lambda value: value > 5).repeat()
    peers = Peers() if processes == 1 else OtherPeers()
    iteration = feed(nothing, is_endless=is_endless, peers=peers).iterate()
    if processes == 2:
        with pytest.raises(tf.errors.OutOfRangeError):
            iteration.take(1)
    assert iteration.take(1) is None
    iteration.close()


def test_a_dataset_that_cannot_start_raises_its_error(tmp_path: Any) -> None:
    missing = tf.data.TFRecordDataset(str(tmp_path / "missing")).map(lambda _: 1)
    iteration = feed(missing).iterate()
    with pytest.raises(tf.errors.NotFoundError, match="missing"):
        iteration.take(1)
    iteration.close()


def test_the_process_with_the_fewest_steps_ends_training() -> None:
    peers = OtherPeers([3, -3, 0], [1, -1, 0])
    assert taken(feed(numbers(20), peers=peers).iterate()) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("capacity", [1, 3])
def test_fill_gives_zeros_to_a_process_without_data(capacity: int) -> None:
    reports = {1: [[1, -1, 0]] * 5 + [[0, 0, 0]], 3: [[3, -3, 0], [2, -2, 0]]}[capacity]
    data = feed(numbers(2), capacity=capacity, peers=OtherPeers(*reports), short_data=ShortData.FILL)
    assert taken(data.iterate()) == [[0, 1]] + [[0, 0]] * 4


def test_reject_raises_when_data_ends_within_a_step() -> None:
    data = feed(numbers(8), peers=OtherPeers([3, -3, 0], [3, -3, 0]), short_data=ShortData.REJECT)
    steps = steps_of(data.iterate())
    assert [next(steps)[0].tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="ends within a step"):
        next(steps)


def test_an_error_in_another_process_raises_cluster_error() -> None:
    steps = steps_of(feed(numbers(20), peers=OtherPeers([1, -1, -1])).iterate())
    assert next(steps)[0].tolist() == [0, 1]
    with pytest.raises(ClusterError, match="another process"):
        next(steps)


@pytest.mark.cases(1)
@pytest.mark.parametrize("rule", ["STOP", "FILL"])
def test_two_processes_with_different_amounts_of_data_take_the_same_steps(rule: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    program = ("-m", "tests.devices.batches.feed_program", coordinator)
    with Forked(*program, "0", "5", rule) as first, Forked(*program, "1", "3", rule) as second:
        assert (first.wait(), second.wait()) == (0, 0), (first.output, second.output)
        found = [json.loads(process.stdout.splitlines()[-1]) for process in (first, second)]
    both = [100 + 101 + 200 + 201 + 8 * step for step in range(3)]
    alone = [100 + 101 + 4 * step for step in (3, 4)]
    assert found == [both + (alone if rule == "FILL" else [])] * 2


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def stacks_on_devices(shape: tuple[int, ...]) -> int:
    gc.collect()
    return sum(array.shape == shape for array in jax.live_arrays())


def test_exactly_one_stack_is_prefetched_to_the_devices() -> None:
    iteration = feed(tf.data.Dataset.from_tensors(np.ones([17], np.float32)).repeat(), is_endless=True).iterate()
    shape = (3, 2, 17)
    for _ in range(3):
        portion = iteration.take(3)
        wait_for(lambda: stacks_on_devices(shape) == 2)
        time.sleep(0.05)
        assert stacks_on_devices(shape) == 2
        del portion
    iteration.close()
    wait_for(lambda: stacks_on_devices(shape) == 0)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tpudata-stacks"]


@pytest.mark.parametrize("end", ["closed", "dropped", "failed", "used up"])
def test_the_thread_ends_with_its_iteration(end: str) -> None:
    before = set(threads())
    iteration = feed(fails_at(9) if end == "failed" else numbers(18)).iterate()
    iteration.take(1)
    if end == "failed":
        with pytest.raises(tf.errors.InvalidArgumentError):
            list(steps_of(iteration))
    elif end == "used up":
        list(steps_of(iteration))
    else:
        iteration.close()
        iteration.close()
        assert iteration.take(1) is None
    del iteration
    gc.collect()
    wait_for(lambda: not set(threads()) - before)


PROGRAM = """
import os, signal, threading, time

os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np, tensorflow as tf
from jax.sharding import Mesh

from tpudata.devices.processes.peers import Peers
from tpudata.devices.batches.feeder import StackFeed


def slow():
    try:
        for i in range(10):
            yield i
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.1)
            yield i
    finally:
        print("generator ended", flush=True)


dataset = tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([], tf.int32))
mesh = Mesh(np.array(jax.devices()[:1]), ("replicas",))
iteration = StackFeed(dataset, mesh, 1, 1000, is_endless=False, peers=Peers()).iterate()
try:
    iteration.take(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.matrix
def test_a_signal_interrupts_the_wait_and_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["interrupted", "generator ended"]

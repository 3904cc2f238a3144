"""as_jax: prefetched global arrays over any number of devices and processes."""

from __future__ import annotations

import gc
import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.helpers.datasets import Written, copy_with_damage
from tests.helpers.forked import Forked
from tests.input.jax_program import BATCH
from tpudata import (
    CorruptionError,
    FeatureError,
    Images,
    MissingExtraError,
    UsageError,
    as_jax,
    as_numpy,
    make_input_fn,
)


def mesh(count: int, *shape: int, names: tuple[str, ...] = ("data",)) -> Mesh:
    return Mesh(np.array(jax.devices()[:count]).reshape(shape or (count,)), names)


def first(batches: Any) -> Any:
    """Return the first batch, and end the read-ahead."""
    batch = next(batches)
    batches.close()
    return batch


@pytest.mark.parametrize(("devices", "start_step"), [(1, 0), (2, 13), (4, 0)])
def test_devices_share_the_batches_of_as_numpy(raw_digits: Written, devices: int, start_step: int) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1)
    batches = as_jax(input_fn, 40, sharding=mesh(devices), start_step=start_step)
    for want, found, _ in zip(as_numpy(input_fn, 40, start_step=start_step), batches, range(12), strict=False):
        for expected, array in zip(jax.tree.leaves(want), jax.tree.leaves(found), strict=True):
            assert array.dtype == expected.dtype
            assert [shard.data.shape[0] for shard in array.addressable_shards] == [40 // devices] * devices
            np.testing.assert_array_equal(np.asarray(array), expected)
    batches.close()


def test_one_process_needs_no_seed(raw_digits: Written, caplog: pytest.LogCaptureFixture) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True)
    assert first(as_jax(input_fn, 40, sharding=mesh(4)))[1].shape == (40,)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


def test_an_evaluation_ends_with_a_padded_batch(raw_digits: Written) -> None:
    batches = list(as_jax(make_input_fn(raw_digits.path, "test", training=False), 40, sharding=mesh(4)))
    assert [labels.shape for _, labels in batches] == [(40,)] * 3
    weights = np.concatenate([np.asarray(features["weights"]) for features, _ in batches])
    assert weights.tolist() == [1.0] * 101 + [0.0] * 19
    assert batches[0][0]["weights"].sharding.spec == PartitionSpec("data")


def _run(path: str, processes: int, devices: int, split: str, order: str) -> list[list[Any]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    program = ("-m", "tests.input.jax_program", path, coordinator, str(processes))
    running = [Forked(*program, str(process), str(devices), split, order) for process in range(processes)]
    try:
        assert [process.wait() for process in running] == [0] * processes, [process.output for process in running]
        return [json.loads(process.stdout.splitlines()[-1]) for process in running]
    finally:
        for process in running:
            process.__exit__()


@pytest.mark.cases(1)
@pytest.mark.parametrize(("split", "order"), [("train", "by process"), ("test", "mixed")])
def test_two_processes_of_two_devices_get_the_global_batches_of_one(
    raw_digits: Written, split: str, order: str
) -> None:
    found = _run(raw_digits.path, 2, 2, split, order)
    training = split == "train"
    input_fn = make_input_fn(raw_digits.path, split, training=training, seed=5)
    wanted = as_jax(input_fn, BATCH, sharding=mesh(4), start_step=3 if training else 0)
    steps = [batch for batch, _ in zip(wanted, range(5), strict=False)]
    wanted.close()
    assert [len(each) for each in found] == [len(steps)] * 2
    for steps_of_processes, (features, labels) in zip(zip(*found, strict=True), steps, strict=True):
        for name, array in (("labels", labels), *([] if training else [("weights", features["weights"])])):
            parts = {int(begin): rows for step in steps_of_processes for begin, rows in step[name].items()}
            assert sorted(parts) == [0, 6, 12, 18]
            assert np.concatenate([parts[begin] for begin in sorted(parts)]).tolist() == np.asarray(array).tolist()
        assert {step["sum"] for step in steps_of_processes} == {int(labels.sum())}


def test_other_axes_of_the_mesh_get_copies(raw_digits: Written) -> None:
    devices = mesh(8, 4, 2, names=("data", "model"))
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1)
    for sharding in (devices, NamedSharding(devices, PartitionSpec("data"))):
        _, labels = first(as_jax(input_fn, 8, sharding=sharding))
        assert labels.sharding == NamedSharding(devices, PartitionSpec("data"))
        assert [shard.index[0].start for shard in labels.addressable_shards] == [0, 0, 2, 2, 4, 4, 6, 6]
    _, labels = first(as_jax(input_fn, 8, sharding=NamedSharding(devices, PartitionSpec(("data", "model")))))
    assert [shard.data.shape for shard in labels.addressable_shards] == [(1,)] * 8
    _, labels = first(as_jax(input_fn, 7, sharding=NamedSharding(devices, PartitionSpec())))
    assert [shard.data.shape for shard in labels.addressable_shards] == [(7,)] * 8


@pytest.mark.parametrize("features", [None, "image"])
def test_transposed_images_are_sharded_along_their_rows(raw_digits: Written, features: str | None) -> None:
    # As many rows as pixels in a column.
    images = Images(transpose="HWCN")
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, images=images, features=features)
    x, labels = first(as_jax(input_fn, 8, sharding=mesh(4)))
    image = x if features else x["image"]
    assert image.sharding.spec == PartitionSpec(None, None, None, "data")
    assert [shard.data.shape for shard in image.addressable_shards] == [(8, 8, 1, 2)] * 4
    assert [shard.data.shape for shard in labels.addressable_shards] == [(2,)] * 4


def test_nested_batches_of_a_dataset_keep_their_structure() -> None:
    batch = {"b": (tf.ones([4, 2], tf.bfloat16), (tf.constant([True] * 4),)), "a": tf.range(4, dtype=tf.int64)}
    dataset = tf.data.Dataset.from_tensors(batch).map(lambda element: (element, tf.constant([0, 1, 2, 255], tf.uint8)))
    (features, labels), *others = list(as_jax(dataset, sharding=mesh(2)))
    assert others == []
    assert [leaf.dtype.name for leaf in jax.tree.leaves((features, labels))] == ["int32", "bfloat16", "bool", "uint8"]
    assert labels.tolist() == [0, 1, 2, 255]
    with jax.enable_x64(True):
        features, _ = next(as_jax(dataset, sharding=mesh(2)))
    assert features["a"].dtype == np.int64


def test_prefetches_the_given_number_of_batches_to_the_devices() -> None:
    dataset = tf.data.Dataset.from_tensors(np.ones([4, 23], np.float32)).repeat()
    batches = as_jax(dataset, sharding=mesh(2), prefetch=3)

    def on_devices() -> int:
        gc.collect()
        return sum(array.shape == (4, 23) for array in jax.live_arrays())

    for _ in range(4):
        batch = next(batches)
        end = time.monotonic() + 30
        while on_devices() != 4 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.05)
        assert on_devices() == 4
        del batch
    batches.close()
    batches.close()
    assert next(batches, None) is None


@pytest.mark.parametrize("end", ["close", "drop"])
def test_the_prefetching_thread_ends_with_the_iterator(raw_digits: Written, end: str) -> None:
    before = set(threading.enumerate())
    batches = as_jax(make_input_fn(raw_digits.path, "train", training=True, shuffle=50), 8)
    next(batches)
    if end == "close":
        batches.close()
    else:
        del batches
        gc.collect()
    started = [thread for thread in threading.enumerate() if thread not in before and thread.name == "tpudata-batches"]
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


def test_reports_a_damaged_record_after_the_batches_before_it(raw_digits: Written, tmp_path: Path) -> None:
    path, shard = copy_with_damage(raw_digits.path, tmp_path / "copy")
    batches = as_jax(make_input_fn(path, "test", training=False), 8, sharding=mesh(1))
    next(batches)
    with pytest.raises(CorruptionError, match="the record is damaged or cut") as raised:
        list(batches)
    assert (raised.value.path, raised.value.offset) == (shard, 0)
    assert next(batches, None) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 30}, r"batch_size=30: .*the mesh axis 'data' divides it into 8 parts\. Pass a multiple of 8\."),
        ({}, r"batch_size: invalid value \(got None, expected an integer of 1 or more"),
        (
            {"batch_size": np.array([8, 16])},
            r"batch_size: invalid value \(got array\(\[ 8, 16\]\), expected an integer",
        ),
        ({"batch_size": tf.constant(8.0)}, "batch_size: invalid value"),
        ({"batch_size": 8, "prefetch": 0}, r"prefetch: invalid value \(got 0, expected an integer of 1 or more"),
        ({"batch_size": 8, "start_step": -1}, "start_step=-1"),
        ({"batch_size": 8, "axis": "rows"}, None),
        ({"batch_size": 8, "sharding": "all"}, "sharding is of a different kind"),
        ({"batch_size": 8, "sharding": "axes"}, r"no axis 'data' \(got the axes 'x', 'y'\)"),
        ({"batch_size": 8, "sharding": "named"}, "must name only the axes of the rows"),
    ],
)
def test_rejects_arguments_that_do_not_fit(raw_digits: Written, arguments: dict[str, Any], message: str | None) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1)
    devices = mesh(8, 4, 2, names=("x", "y"))
    named = {"axes": devices, "named": NamedSharding(devices, PartitionSpec("x", "y"))}
    if "sharding" in arguments:
        arguments = {**arguments, "sharding": named.get(arguments["sharding"], arguments["sharding"])}
    if message is None:
        assert first(as_jax(input_fn, **arguments))[1].sharding.spec == PartitionSpec("rows")
        return
    with pytest.raises(UsageError, match=message):
        as_jax(input_fn, **arguments)


def test_rejects_a_batch_of_a_dataset_that_devices_cannot_share() -> None:
    with pytest.raises(UsageError, match=r"features has 3 rows \(expected a multiple of 2"):
        next(as_jax(tf.data.Dataset.range(3).batch(3), sharding=mesh(2)))


@pytest.mark.parametrize("leaf", [tf.constant(["text"]), tf.sparse.from_dense([1]), tf.constant(1)])
def test_rejects_tensors_that_are_not_rows_of_numbers(leaf: Any) -> None:
    with pytest.raises(FeatureError, match=r"features\['x'\]"):
        as_jax(tf.data.Dataset.from_tensors({"x": leaf}))


def test_names_the_extra_if_jax_is_not_installed(raw_digits: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match=r"tpudata\.as_jax needs the \[tpu\] extra"):
        as_jax(make_input_fn(raw_digits.path, "train", training=True), 8)

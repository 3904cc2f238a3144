"""Batches of any host from any step on: the same records as one host has that never stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import Written, write_dataset
from tpudata import Dataset, UsageError, make_input_fn, open_dataset
from tpudata.format import Feature, Manifest, Source, Split, encode_example, shard_name, write_metadata, write_shard
from tpudata.input.graph import records

FEATURES = [Feature("image_raw", "bytes", "uint8", (2,), "raw"), Feature("label", "int64", "int64", num_classes=10)]
TEXT = [Feature("text", "bytes", "string", encoding="utf8"), Feature("label", "int64", "int64")]
RECORDS = 1000


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """1,000 records in 2 shards, fewer than there are hosts: number i as two bytes, label i % 10."""
    records = [{"image_raw": np.uint16(i).tobytes(), "label": i % 10} for i in range(RECORDS)]
    folder = str(tmp_path_factory.mktemp("numbers"))
    return write_dataset(folder, {"train": records}, FEATURES, layout="raw", shards=2, classes=10)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same numbers as words, which are parsed by TensorFlow."""
    records = [{"text": f"{i} " + "x" * (i % 50), "label": i} for i in range(RECORDS)]
    return write_dataset(str(tmp_path_factory.mktemp("lines")), {"train": records}, TEXT, layout="text", shards=2)


def context(host: int, hosts: int) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(hosts, host, hosts)


def host_batches(input_fn: Any, total: int, hosts: int, steps: int | None, start: int = 0) -> list[list[Any]]:
    """By host, its batches."""
    found = []
    for host in range(hosts):
        dataset = input_fn({"batch_size": total // hosts}, context(host, hosts), start_step=start)
        found.append(list((dataset if steps is None else dataset.take(steps)).as_numpy_iterator()))
    return found


def number(features: Any) -> list[int]:
    if "text" in features:
        return [int(text.split()[0]) for text in features["text"]]
    return [int(value) for value in features["image"].view("<u2")[:, 0]]


@pytest.mark.parametrize("buffer", [None, 200, 1])
@pytest.mark.parametrize("data", ["numbers", "lines"])
def test_a_global_batch_has_the_same_records_for_any_hosts(
    data: str, buffer: int | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_READ_BYTES", 400)
    input_fn = make_input_fn(request.getfixturevalue(data), "train", training=True, seed=9, shuffle_buffer=buffer)

    def batches(hosts: int) -> list[list[int]]:
        by_host = host_batches(input_fn, 48, hosts, 25)
        return [[n for batch in step for n in number(batch[0])] for step in zip(*by_host, strict=True)]

    whole = batches(1)
    assert all(batches(hosts) == whole for hosts in (2, 3, 4, 8))
    flat = [n for batch in whole for n in batch]
    assert len(set(flat[: 20 * 48])) == 20 * 48  # 960 of the first epoch.


@pytest.mark.parametrize("batch_size", [1, 7, 25, 64, 300])
@pytest.mark.parametrize("hosts", [1, 2, 3, 8])
def test_evaluation_over_hosts_is_the_plain_loop(numbers: str, hosts: int, batch_size: int) -> None:
    input_fn = make_input_fn(numbers, "train", training=False)
    if batch_size == 1 and hosts > 1:
        batch_size = 2  # 1,000 batches of a row for each host take long.
    found = host_batches(input_fn, batch_size * hosts, hosts, None)
    assert {len(batches) for batches in found} == {-(-RECORDS // (batch_size * hosts))}
    total = count = 0.0
    seen: list[int] = []
    for step in zip(*found, strict=True):
        for features, labels in step:
            weights = features["weights"]
            assert weights.shape == labels.shape == (batch_size,)
            total += float((weights * (labels == np.array(number(features)) % 3)).sum())
            count += float(weights.sum())
            seen += [n for n, weight in zip(number(features), weights, strict=True) if weight]
    # Every record once and, over the hosts, in order.
    assert seen == list(range(RECORDS))
    assert count == RECORDS
    assert total == sum(i % 10 == i % 3 for i in range(RECORDS))


def test_more_hosts_than_records_feed_padding(numbers: str, tmp_path: Path) -> None:
    records = [{"image_raw": np.uint16(i).tobytes(), "label": i} for i in range(3)]
    path = write_dataset(str(tmp_path), {"train": records}, FEATURES, layout="raw", shards=1, classes=10)
    found = host_batches(make_input_fn(path, "train", training=False), 16, 8, None)
    assert [[batch[0]["weights"].tolist() for batch in host] for host in found] == [
        [[1.0, 1.0]],
        [[1.0, 0.0]],
        *[[[0.0, 0.0]]] * 6,
    ]
    assert number(found[7][0][0]) == [2, 2]


def test_a_host_with_several_replicas_gets_their_batches_in_turn(numbers: str) -> None:
    input_fn = make_input_fn(numbers, "train", training=True, seed=2, shuffle_buffer=100)
    whole = [number(features) for features, _ in input_fn({"batch_size": 48}).take(6).as_numpy_iterator()]
    for host in range(2):
        # 6 replicas on 2 hosts: 3 batches of 8 a step.
        dataset = input_fn({"batch_size": 8}, tf.distribute.InputContext(2, host, 6))
        got = [number(features) for features, _ in dataset.take(18).as_numpy_iterator()]
        for step in range(6):
            assert [n for batch in got[3 * step : 3 * step + 3] for n in batch] == whole[step][
                24 * host : 24 * host + 24
            ]


def test_evaluation_over_the_replicas_of_hosts_is_exact(numbers: str) -> None:
    input_fn = make_input_fn(numbers, "train", training=False)
    # 4 replicas on 2 hosts: a step is 4 batches of 72, and the fourth step is short.
    found = [
        list(input_fn({"batch_size": 72}, tf.distribute.InputContext(2, host, 4), 1).as_numpy_iterator())
        for host in range(2)
    ]
    assert [len(batches) for batches in found] == [6, 6]
    rows = [
        n
        for batches in found
        for features, _ in batches
        for n, weight in zip(number(features), features["weights"], strict=True)
        if weight
    ]
    assert sorted(rows) == list(range(288, RECORDS))


def noisy(features: Any, labels: Any, seed: Any) -> Any:
    """Random augmentation, from the seed alone."""
    return {"image": features["image"], "noise": tf.random.stateless_uniform([2], seed)}, labels


@pytest.mark.parametrize("options", [{}, {"shuffle_buffer": 100}, {"shuffle_buffer": 1}, {"cache": True}])
@pytest.mark.parametrize("transform", [None, noisy])
def test_a_start_at_any_step_gives_the_same_bytes(
    numbers: str, options: dict[str, Any], transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_READ_BYTES", 400)

    def batches(start: int, steps: int, batch_size: int) -> list[bytes]:
        input_fn = make_input_fn(numbers, "train", training=True, seed=4, transform=transform, **options)
        dataset = input_fn({"batch_size": batch_size}, start_step=start).take(steps)
        return [
            b"".join(np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(batch))
            for batch in dataset.as_numpy_iterator()
        ]

    for batch_size, starts in ((30, (1, 33)), (64, (16, 47))):
        whole = batches(0, 50, batch_size)
        assert len(set(whole)) == 50
        for start in starts:
            assert batches(start, 3, batch_size) == whole[start : start + 3]


def test_a_late_start_takes_no_longer(numbers: str) -> None:
    input_fn = make_input_fn(numbers, "train", training=True, seed=4, shuffle_buffer=100)

    def seconds(step: int) -> float:
        begin = time.perf_counter()
        next(iter(input_fn({"batch_size": 32}, start_step=step)))
        return time.perf_counter() - begin

    seconds(0)
    early = min(seconds(0) for _ in range(3))
    # A thousand million epochs on. A replay would not end.
    assert min(seconds(30 * 10**9) for _ in range(3)) < 5 * early + 0.5


def test_evaluation_may_start_late(numbers: str) -> None:
    input_fn = make_input_fn(numbers, "train", training=False)
    dataset = input_fn({"batch_size": 300}, start_step=2)
    assert len(dataset) == 2
    assert [number(features)[0] for features, _ in dataset.as_numpy_iterator()] == [600, 900]
    assert len(list(input_fn({"batch_size": 300}, start_step=4))) == 0
    assert len(input_fn({"batch_size": 300}, start_step=9)) == 0


def test_a_cache_gives_the_batches_that_there_are_without_one(numbers: str, lines: str, tmp_path: Path) -> None:
    for path, buffer in ((numbers, None), (numbers, 90), (lines, 90)):
        found = []
        for cache in (False, True, tmp_path, tmp_path):
            input_fn = make_input_fn(path, "train", training=True, seed=5, cache=cache, shuffle_buffer=buffer)
            found.append(
                [(number(x), y.tolist()) for x, y in input_fn({"batch_size": 48}).take(50).as_numpy_iterator()]
            )
        assert all(other == found[0] for other in found[1:])


def test_a_dataset_is_iterated_again_and_at_the_same_time(numbers: str) -> None:
    dataset = make_input_fn(numbers, "train", training=True, seed=5, shuffle_buffer=90)({"batch_size": 48})
    want = [number(x) for x, _ in dataset.take(8).as_numpy_iterator()]
    assert [number(x) for x, _ in dataset.take(8).as_numpy_iterator()] == want
    iterators = [iter(dataset) for _ in range(3)]
    got = [[number({"image": next(iterator)[0]["image"].numpy()}) for iterator in iterators] for _ in range(8)]
    assert got == [[batch] * 3 for batch in want]


def test_seeds_reach_transform_by_name(numbers: str) -> None:
    def seeds(hosts: int, total: int, training: bool) -> Any:
        input_fn = make_input_fn(numbers, "train", training=training, seed=6, transform=noisy)
        found = host_batches(input_fn, total, hosts, 3)
        return np.stack([np.concatenate([batch[0]["noise"] for batch in step]) for step in zip(*found, strict=True)])

    one = seeds(1, 48, True)
    assert len(np.unique(one)) == one.size
    np.testing.assert_array_equal(seeds(4, 48, True), one)
    assert seeds(1, 48, False).shape == (3, 48, 2)


@pytest.mark.parametrize("start", [-1, 1.5, "3", True, None])
def test_a_start_is_a_number_of_steps(numbers: str, start: Any) -> None:
    with pytest.raises(UsageError, match=r"start_step=.*number of steps that are done"):
        make_input_fn(numbers, "train", training=True)({"batch_size": 2}, start_step=start)


@pytest.mark.parametrize("training", [True, False])
def test_a_start_beyond_all_counting_is_refused(numbers: str, training: bool) -> None:
    input_fn = make_input_fn(numbers, "train", training=training)
    for start in (2**53, 2**63, 10**30):
        with pytest.raises(UsageError, match=rf"start_step={start}: with a global batch of 4 it is {2**51} at most"):
            input_fn({"batch_size": 4}, start_step=start)
    input_fn({"batch_size": 4}, start_step=2**51)


def compressed(folder: str) -> Dataset:
    """300 records in compressed shards."""
    records = [{"image_raw": np.uint16(i).tobytes(), "label": i % 10} for i in range(300)]
    shards = [
        write_shard(
            folder,
            shard_name("train", part, 2),
            [encode_example(r) for r in records[part * 150 :][:150]],
            compression="gzip",
        )
        for part in range(2)
    ]
    source = Source("memory", 300, 0, "0")
    splits = {"train": Split(tuple(shards))}
    write_metadata(
        folder, Manifest("raw", splits, tuple(FEATURES), source, "tests", 10, compression="gzip"), list("abcdefghij")
    )
    return open_dataset(folder)


@pytest.mark.parametrize("buffer", [None, 40])
def test_compressed_shards_are_read_by_blocks(tmp_path: Path, buffer: int | None) -> None:
    path = compressed(str(tmp_path)).path
    evaluation = make_input_fn(path, "train", training=False)({"batch_size": 70})
    rows = [n for features, _ in evaluation.as_numpy_iterator() for n in number(features)]
    assert rows[:300] == list(range(300))
    training = make_input_fn(path, "train", training=True, shuffle_buffer=buffer)({"batch_size": 30})
    assert sorted(n for x, _ in training.take(10).as_numpy_iterator() for n in number(x)) == list(range(300))


def test_a_damaged_compressed_block_names_its_records(tmp_path: Path) -> None:
    dataset = compressed(str(tmp_path))
    shard = dataset.manifest.split("train").shards[1]
    index, path = dataset.index(shard), Path(dataset.shard_path(shard))
    data = bytearray(path.read_bytes())
    begin, end = index.file_range(1)
    data[begin + 20 : end - 20] = bytes(end - begin - 40)
    path.write_bytes(data)
    with pytest.raises(
        tf.errors.OpError, match=rf"CorruptionError: {path} at byte {int(index.offsets[64])}: .*unpacked bytes"
    ):
        list(make_input_fn(dataset.path, "train", training=False)({"batch_size": 100}))
    found = list(
        make_input_fn(dataset.path, "train", training=False, max_corrupt=64)({"batch_size": 300}).as_numpy_iterator()
    )
    assert np.flatnonzero(found[0][0]["weights"] == 0).tolist() == list(range(150 + 64, 150 + 128))


def test_an_original_context_is_taken_from_params(raw_digits: Written) -> None:
    class Context:
        def __init__(self, number: int) -> None:
            self.number = number

        def current_input_fn_deployment(self) -> Any:
            return "/task:0/device:CPU:0", self.number, 2, 4

    input_fn = make_input_fn(raw_digits.path, "test", training=False)
    labels = [
        np.concatenate([y for _, y in input_fn({"batch_size": 30, "context": Context(host)}).as_numpy_iterator()])
        for host in range(2)
    ]
    want = raw_digits.labels["test"]
    assert labels[0].tolist() == want[:30] + want[60:90]
    assert labels[1].tolist()[:41] == want[30:60] + want[90:101]

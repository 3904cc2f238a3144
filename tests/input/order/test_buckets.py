"""Length buckets: every record once per epoch, one shape per bucket, the same on all hosts and after a restart.

The steps of buckets are private: reading records up to step 10**12 would take years.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tpudata
from tests.helpers.datasets import write_dataset
from tests.input.text.test_sequence import documents, write_tokens
from tpudata import make_input_fn
from tpudata.format import Feature
from tpudata.input.order.buckets import BucketSteps, find_buckets

LIMITS = (4, 8, 16)


def chosen(steps: BucketSteps, step: int, end: int) -> list[int]:
    return [int(bucket) for bucket in steps.list_buckets(step, end).as_numpy_iterator()]


@settings(max_examples=8)
@given(st.data())
def test_bucket_steps_take_every_record_once_per_epoch(data: st.DataObject) -> None:
    """Compare the steps, batch by batch, with a plain loop that counts."""
    records = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=len(records), max_size=len(records)))
    steps = BucketSteps(records, sizes, data.draw(st.integers(0, 5)))
    done = [0] * len(records)
    start = data.draw(st.integers(0, 60))
    taken = chosen(steps, 0, 60)
    assert chosen(steps, start, 60) == taken[start:]
    for step, bucket in enumerate(taken):
        if step == start:
            assert steps.count_batches_before(step) == done
        done[bucket] += 1
        epochs = [count * size / of for count, size, of in zip(done, sizes, records, strict=True)]
        batches = [size / of for size, of in zip(sizes, records, strict=True)]
        # No bucket is an epoch ahead of another one, but for the batch that runs across its end.
        assert max(epochs) - min(np.add(epochs, batches)) <= 1
    assert steps.steps is None


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 50)), min_size=1, max_size=4))
def test_evaluation_takes_one_bucket_after_another(buckets: list[tuple[int, int]]) -> None:
    steps = BucketSteps([n for n, _ in buckets], [b for _, b in buckets], None)
    want = [number for number, (records, size) in enumerate(buckets) for _ in range(-(-records // size))]
    assert steps.steps == len(want)
    assert chosen(steps, 0, len(want)) == want
    assert steps.count_batches_before(len(want) + 3) == np.bincount(want).tolist()


def test_finds_a_distant_step_without_replay() -> None:
    steps = BucketSteps([1_000_000, 3_000_000], [512, 128], 1)
    before, after = steps.count_batches_before(10**12), steps.count_batches_before(10**12 + 1)
    assert sum(before) == 10**12
    (bucket,) = chosen(steps, 10**12, 10**12 + 1)
    assert after[bucket] == before[bucket] + 1


def test_records_go_into_the_smallest_bucket_that_fits() -> None:
    lengths = np.array([0, 4, 5, 16, 17, 8])
    found = find_buckets(lengths, LIMITS)
    assert [(bucket.length, bucket.ids.tolist()) for bucket in found] == [(4, [0, 1]), (8, [2, 5]), (16, [3, 4])]


# Without a number the window has all records, as in tests/input/test_epochs.py.
@pytest.mark.parametrize("buffer", [60, pytest.param(None, marks=pytest.mark.matrix)])
def test_training_feeds_all_records_and_restarts_at_any_step(tmp_path: Path, buffer: int | None) -> None:
    texts = documents(120, 16)
    input_fn = make_input_fn(
        write_tokens(tmp_path, texts),
        "train",
        training=True,
        tokens=tpudata.Tokens(buckets=LIMITS),
        seed=5,
        shuffle=buffer,
    )
    dataset = input_fn({"batch_size": 4})
    assert dataset.cardinality().numpy() == tf.data.INFINITE_CARDINALITY
    batches = list(dataset.take(150).as_numpy_iterator())
    seen = np.zeros(len(texts), int)
    for features, labels in batches:
        length = features["input_ids"].shape[1]
        assert features["input_ids"].shape == (64 // length, length)
        for ids, mask, label in zip(features["input_ids"], features["attention_mask"], labels, strict=True):
            assert ids[: mask.sum()].tolist() == texts[label].tolist()
            assert length == 4 or len(texts[label]) > length // 2
            seen[label] += 1
    bucket = np.searchsorted(LIMITS, [len(text) for text in texts])
    for number in range(len(LIMITS)):
        # Every record once per epoch: at no time was one seen twice more often than another.
        assert np.ptp(seen[bucket == number]) <= 1
    assert np.ptp(seen) <= 2
    lengths = [features["input_ids"].shape[1] for features, _ in batches]
    assert set(lengths) == set(LIMITS)
    assert lengths != sorted(lengths)
    step = 140 if buffer else 1
    again = input_fn({"batch_size": 4}, start_step=step).take(4).as_numpy_iterator()
    for (features, labels), (want_features, want_labels) in zip(again, batches[step:], strict=False):
        np.testing.assert_array_equal(labels, want_labels)
        np.testing.assert_array_equal(features["input_ids"], want_features["input_ids"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[list[int]]]:
    """An input, and the labels of its first twelve steps with one host."""
    input_fn = make_input_fn(
        write_tokens(tmp_path_factory.mktemp("whole"), documents(120, 16)),
        "train",
        training=True,
        tokens=tpudata.Tokens(buckets=LIMITS[1:]),
        seed=5,
        shuffle=30,
    )
    return input_fn, [labels.tolist() for _, labels in input_fn({"batch_size": 12}).take(12).as_numpy_iterator()]


@pytest.mark.parametrize(
    ("pipelines", "replicas"),
    [(2, 4), *(pytest.param(*case, marks=pytest.mark.matrix) for case in ((1, 2), (2, 2), (3, 3)))],
)
def test_hosts_take_the_same_bucket_at_each_step(
    pipelines: int, replicas: int, whole: tuple[Any, list[list[int]]]
) -> None:
    input_fn, expected = whole
    hosts = []
    per_host = replicas // pipelines
    for number in range(pipelines):
        context = tf.distribute.InputContext(pipelines, number, replicas)
        dataset = input_fn({"batch_size": 12 // replicas}, context).take(12 * per_host).as_numpy_iterator()
        rows = [labels.tolist() for _, labels in dataset]
        hosts.append([np.concatenate(rows[step * per_host : (step + 1) * per_host]) for step in range(12)])
    assert [np.concatenate(parts).tolist() for parts in zip(*hosts, strict=True)] == expected


@pytest.mark.parametrize("pipelines", [2, *(pytest.param(count, marks=pytest.mark.matrix) for count in (1, 3))])
def test_evaluation_is_exact_over_hosts(tmp_path: Path, pipelines: int) -> None:
    texts = documents(53, 20)
    input_fn = make_input_fn(
        write_tokens(tmp_path, texts), "train", training=False, tokens=tpudata.Tokens(buckets=LIMITS, truncate=True)
    )
    found: list[tuple[int, int]] = []
    counts = []
    for number in range(pipelines):
        context = tf.distribute.InputContext(pipelines, number, pipelines)
        dataset = input_fn({"batch_size": 2}, context)
        batches = list(dataset.as_numpy_iterator())
        assert len(batches) == len(dataset)
        counts.append(len(batches))
        for features, labels in batches:
            real = features["weights"] > 0
            found += zip(labels[real].tolist(), features["attention_mask"].sum(1)[real].tolist(), strict=True)
    assert sorted(found) == [(number, min(16, len(text))) for number, text in enumerate(texts)]
    assert len(set(counts)) == 1


def test_names_a_record_that_fits_no_bucket(tmp_path: Path) -> None:
    texts = [*documents(9, 16), np.ones(17, np.int32)]
    input_fn = make_input_fn(
        write_tokens(tmp_path, texts), "train", training=True, tokens=tpudata.Tokens(buckets=LIMITS)
    )
    with pytest.raises(
        Exception, match=r"train-00002-of-00003.tfrecord at byte \d+: feature 'input_ids' has 17 values"
    ):
        input_fn({"batch_size": 2})


def test_names_all_sequences_of_a_record_that_fits_no_bucket(tmp_path: Path) -> None:
    features = [Feature(name, "int64", "int64", (None,)) for name in ("inputs", "targets")]
    records = [{"inputs": [1, 2], "targets": [3]}, {"inputs": [1], "targets": list(range(2, 19))}]
    path = write_dataset(str(tmp_path / "pairs"), {"train": records}, features, layout="", shards=1)
    input_fn = make_input_fn(path, "train", training=True, tokens=tpudata.Tokens(buckets=LIMITS))
    with pytest.raises(Exception, match=r"the longest of the features 'inputs' and 'targets' has 17 values"):
        input_fn({"batch_size": 2})

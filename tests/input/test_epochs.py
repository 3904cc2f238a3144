"""Training without a shuffle, for a number of epochs, and on one host chosen by host_index."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import Written, write_dataset
from tests.input.text.test_sequence import documents, write_tokens
from tpudata import TextLineFiles, UsageError, as_keras, as_numpy, make_input_fn
from tpudata.format import Feature


def images(batches: Any) -> Any:
    return np.concatenate([features["image"] for features, _ in batches])


@pytest.mark.parametrize(
    ("cache", "hosts", "batch_size"),
    [
        *((False, 2, 14), (False, 1, 700), (True, 2, 14), ("folder", 1, 7)),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in ((False, 1, 7), ("folder", 1, 700))),
    ],
)
def test_unshuffled_training_repeats_the_records_in_order(
    raw_digits: Written, tmp_path: Path, cache: Any, hosts: int, batch_size: int
) -> None:
    input_fn = make_input_fn(
        raw_digits.path, "train", training=True, shuffle=False, cache=tmp_path if cache == "folder" else cache
    )
    records = raw_digits.images["train"]
    steps = 2 * len(records) // batch_size + 3
    # Start inside an epoch, and at the first step.
    start = 0 if batch_size == 7 else 5
    parts = [
        input_fn({"batch_size": batch_size}, start_step=start, host_index=host, host_count=hosts)
        .take(steps)
        .as_numpy_iterator()
        for host in range(hosts)
    ]
    found = images(itertools.chain.from_iterable(zip(*parts, strict=True)))
    places = (start * batch_size + np.arange(len(found))) % len(records)
    np.testing.assert_array_equal(found, np.asarray(records)[places])


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_hosts_read_their_unshuffled_rows_from_files(tmp_path: Path, compression: str | None) -> None:
    # Memory would hold 1,024 records, or 96 MiB.
    features = [Feature("x", "bytes", "string")]
    records = [{"x": b"%04d" % number + bytes(100_000)} for number in range(1030)]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="", shards=3, compression=compression)

    def read_number(records: tf.Tensor) -> Any:
        found = tf.io.parse_example(records, {"x": tf.io.FixedLenFeature((), tf.string)})["x"]
        return {"number": tf.strings.to_number(tf.strings.substr(found, 0, 4), tf.int32)}

    def is_late(found: Any) -> Any:
        return found["number"] >= 100

    all_hosts, filtered_hosts = [(1, 0), (2, 0), (8, 7)], [(2, 1)]
    for choose, numbers, parts in ((None, np.arange(1030), all_hosts), (is_late, np.arange(100, 1030), filtered_hosts)):
        input_fn = make_input_fn(path, "train", training=True, shuffle=False, parse=read_number, filter=choose)
        for hosts, host in parts:
            dataset = input_fn({"batch_size": 64}, start_step=14, host_index=host, host_count=hosts).take(4)
            found = np.concatenate([batch["number"] for batch in dataset.as_numpy_iterator()])
            rows = 64 // hosts
            places = (np.arange(14, 18)[:, None] * 64 + np.arange(host * rows, (host + 1) * rows)).reshape(-1)
            assert found.tolist() == numbers[places % len(numbers)].tolist()


def test_unshuffled_draws_do_not_depend_on_hosts_and_starts(digits: Written) -> None:
    def transform(features: Any, labels: Any, seed: Any) -> Any:
        return {"drawn": tf.random.stateless_uniform([], seed)}, labels

    input_fn = make_input_fn(digits.path, "train", training=True, seed=3, shuffle=False, transform=transform)
    whole = np.concatenate([x["drawn"] for x, _ in itertools.islice(as_numpy(input_fn, 8), 60)])
    assert len(set(whole.tolist())) == len(whole)  # The second epoch draws other numbers.
    for host in range(2):
        late = itertools.islice(as_numpy(input_fn, 8, process_index=host, process_count=2, start_step=40), 20)
        expected = whole.reshape(60, 2, 4)[40:, host].reshape(-1)
        np.testing.assert_array_equal(np.concatenate([x["drawn"] for x, _ in late]), expected)


@pytest.mark.parametrize(
    # A cache in memory holds all records, as a window of all records does.
    "options",
    [{}, {"shuffle": 20}, {"shuffle": False}, pytest.param({"cache": True}, marks=pytest.mark.matrix)],
)
def test_epochs_end_with_the_last_whole_batch(raw_digits: Written, options: dict[str, Any]) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, num_epochs=2, **options)
    late = input_fn({"batch_size": 64}, start_step=7)
    assert late.cardinality() == 2 * 300 // 64 - 7 == len(list(late))
    if options:
        # The number of steps does not depend on the order.
        assert input_fn({"batch_size": 64}, start_step=100).cardinality() == 0
        assert input_fn({"batch_size": 16}, tf.distribute.InputContext(2, 1, 4)).cardinality() == 2 * 9
    else:
        assert len(list(input_fn({"batch_size": 64}, start_step=100))) == 0
        assert len(list(input_fn({"batch_size": 16}, tf.distribute.InputContext(2, 1, 4)))) == 2 * 9
    whole = input_fn({"batch_size": 50})
    fed = sorted(image.tobytes() for image in images(whole.as_numpy_iterator()))
    assert fed == sorted(2 * [image.tobytes() for image in raw_digits.images["train"]])
    # An endless one begins with the same batches.
    endless = make_input_fn(raw_digits.path, "train", training=True, seed=1, **options)({"batch_size": 50}).take(12)
    assert sorted(image.tobytes() for image in images(endless.as_numpy_iterator())) == fed


@pytest.mark.parametrize("options", [{"training": True}, {"training": True, "shuffle": False}, {"training": False}])
def test_a_pipeline_of_two_replicas_feeds_its_rows_of_each_step(raw_digits: Written, options: dict[str, Any]) -> None:
    def transform(features: Any, labels: Any, seed: Any) -> Any:
        return {**features, "drawn": tf.random.stateless_uniform([], seed)}, labels

    split = "train" if options["training"] else "test"
    input_fn = make_input_fn(raw_digits.path, split, seed=3, transform=transform, **options)
    # A step inside a block of the shuffle; of the exact pass, the first and the last, in which a host has real rows and padding.
    start, steps = (13, 4) if options["training"] else (0, 5)
    whole = list(input_fn({"batch_size": 24}, start_step=start).take(steps).as_numpy_iterator())
    # In training, the first host behaves as the second.
    for host in (1,) if options["training"] else (0, 1):
        context = tf.distribute.InputContext(2, host, 4)
        batches = list(input_fn({"batch_size": 6}, context, start_step=start).take(2 * steps).as_numpy_iterator())
        for name, values in whole[0][0].items():
            expected = np.stack([features[name] for features, _ in whole])[:, 12 * host : 12 * (host + 1)]
            found = np.stack([features[name] for features, _ in batches])
            np.testing.assert_array_equal(found, expected.reshape(2 * steps, 6, *values.shape[1:]))


def test_num_epochs_ends_training_with_buckets(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, documents(90, 16), shards=2)
    options: Any = {"training": True, "seed": 1, "tokens": tpudata.Tokens(buckets=(8, 16))}
    input_fn = make_input_fn(path, "train", num_epochs=3, **options)
    dataset = input_fn({"batch_size": 2})
    steps = int(dataset.cardinality())
    found = [features["input_ids"].tolist() for features, _ in dataset.as_numpy_iterator()]
    assert len(found) == steps > 0
    endless = make_input_fn(path, "train", **options)({"batch_size": 2}).take(steps).as_numpy_iterator()
    assert [features["input_ids"].tolist() for features, _ in endless] == found
    late = input_fn({"batch_size": 2}, start_step=steps - 4).as_numpy_iterator()
    assert [features["input_ids"].tolist() for features, _ in late] == found[-4:]
    assert list(input_fn({"batch_size": 2}, start_step=steps + 1)) == []
    with pytest.raises(UsageError, match="no bucket has records for one global batch"):
        make_input_fn(path, "train", num_epochs=1, **options)({"batch_size": 500})


def test_as_keras_ends_after_num_epochs(raw_digits: Written) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, num_epochs=1)
    assert len(list(as_keras(input_fn, 64))) == 4
    with pytest.raises(UsageError, match="num_epochs=1: 300 records do not fill one global batch of 301"):
        input_fn({"batch_size": 301})


def test_host_index_chooses_the_rows_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(10)))
    input_fn = make_input_fn(TextLineFiles(tmp_path / "lines"), training=False)
    found = [
        [
            features["text"].tolist()
            for features in input_fn({"batch_size": 4}, host_index=i, host_count=2).as_numpy_iterator()
        ]
        for i in range(2)
    ]
    assert found == [
        [[b"0", b"1"], [b"4", b"5"], [b"8", b"9"]],
        [[b"2", b"3"], [b"6", b"7"], [b"9", b"9"]],
    ]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"host_index": 0}, "host_count=None: pass host_index and host_count, both integers"),
        ({"host_count": 2}, "host_index=None"),
        (
            {"host_index": 2, "host_count": 2},
            r"host_index: out of range \(got 2, expected 0 to 1, as host_count is 2\)",
        ),
        ({"host_index": 0, "host_count": 3}, r"3 hosts cannot share it evenly. Choose a multiple"),
        ({"host_index": True, "host_count": 2}, "host_index=True"),
        (
            {"host_index": 0, "host_count": 2, "input_context": tf.distribute.InputContext()},
            "input_context: it already has the index",
        ),
    ]
    for arguments, message in wrong:
        with pytest.raises(UsageError, match=message):
            input_fn({"batch_size": 4}, **arguments)

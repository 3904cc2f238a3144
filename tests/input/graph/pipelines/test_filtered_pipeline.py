"""Records chosen by filter=: only these are fed, and orders, hosts and caches count only these."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import Written, write_dataset
from tests.input.text.test_sequence import documents, write_tokens
from tpudata import FixedLengthRecordFiles, TextLineFiles, Tokens, UsageError, as_keras, as_numpy, make_input_fn
from tpudata.format import Feature


def is_small(features: Any) -> Any:
    return features["label"] < 3


def is_small_class(features: Any) -> Any:
    return features["image/class/label"] < 3


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("layout", "cache"),
    [
        *(("raw", "folder"), ("imagenet", False)),
        # The epochs of training below have a cache in memory.
        *(
            pytest.param(*case, marks=pytest.mark.matrix)
            for case in (("raw", False), ("raw", True), ("imagenet", True), ("imagenet", "folder"))
        ),
    ],
)
def test_evaluation_sees_each_chosen_record_once(
    digits: Written, raw_digits: Written, layout: str, cache: Any, tmp_path: Path
) -> None:
    written, choose = (raw_digits, is_small) if layout == "raw" else (digits, is_small_class)
    is_folder = cache == "folder"
    cache = tmp_path if is_folder else cache
    for _ in range(2 if is_folder else 1):  # The second time, the folder has the cache.
        input_fn = make_input_fn(written.path, "train", training=False, filter=choose, cache=cache)
        batches = list(as_numpy(input_fn, 16))
        real = np.concatenate([features["weights"] for features, _ in batches]) == 1
        chosen = np.asarray(written.labels["train"]) < 3
        np.testing.assert_array_equal(
            np.concatenate([y for _, y in batches])[real], np.asarray(written.labels["train"])[chosen]
        )
        np.testing.assert_array_equal(
            np.concatenate([x["image"] for x, _ in batches])[real], np.asarray(written.images["train"])[chosen]
        )


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "options", [{"shuffle": 20}, {"cache": True}, {"shuffle": False}, pytest.param({}, marks=pytest.mark.matrix)]
)
def test_epochs_hold_only_the_chosen_records(raw_digits: Written, options: dict[str, Any]) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, filter=is_small, **options)
    chosen = np.asarray(raw_digits.images["train"])[np.asarray(raw_digits.labels["train"]) < 3]
    steps = 2 * len(chosen) // 8
    whole = [features["image"] for features, _ in input_fn({"batch_size": 8}).take(steps).as_numpy_iterator()]
    rows = np.concatenate(whole)[: len(chosen)]
    assert sorted(map(np.ndarray.tobytes, rows)) == sorted(map(np.ndarray.tobytes, chosen))
    late = input_fn({"batch_size": 8}, start_step=5, host_index=1, host_count=2).take(3).as_numpy_iterator()
    for expected, (features, _) in zip(whole[5:8], late, strict=True):
        np.testing.assert_array_equal(features["image"], expected[4:])


def test_logs_how_many_records_were_chosen(raw_digits: Written, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tpudata"):
        make_input_fn(raw_digits.path, "test", training=False, filter=is_small)({"batch_size": 4})
    count = sum(label < 3 for label in raw_digits.labels["test"])
    assert f"split 'test': filter chose {count} of 101 records." in caplog.text


def test_filters_lists_of_any_length_in_buckets(tmp_path: Path) -> None:
    texts = documents(60, 16)
    path = write_tokens(tmp_path, texts, shards=2)

    def is_long(features: Any) -> Any:
        return tf.size(features["input_ids"]) > 5

    input_fn = make_input_fn(path, "train", training=False, filter=is_long, tokens=Tokens(buckets=(4, 8, 16)))
    lengths = np.concatenate([x["attention_mask"].numpy().sum(axis=1) for x, *_ in as_keras(input_fn, 4)])
    assert sorted(lengths) == sorted(len(text) for text in texts if len(text) > 5)


def test_filters_the_results_of_parse(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(50)))
    files = TextLineFiles(tmp_path / "lines")

    def parse(records: Any) -> Any:
        numbers = tf.strings.to_number(records, tf.int32)
        return {"x": numbers}, numbers % 7

    def choose(features: Any, labels: Any) -> Any:
        if features["x"] > 30:  # AutoGraph converts it.
            return labels == 0
        return labels == 1

    input_fn = make_input_fn(files, training=False, parse=parse, filter=choose)
    found = [x for features, _ in as_numpy(input_fn, 1) for x in features["x"].tolist()]
    assert found == [x for x in range(50) if x % 7 == (0 if x > 30 else 1)]
    lines = make_input_fn(files, training=False, filter=lambda features: features["text"] == b"7")
    assert [features["text"].tolist() for features in as_numpy(lines, 1)] == [[b"7"]]


def test_the_filter_takes_all_parts_of_the_result_of_parse(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"".join(b"%d\n" % number for number in range(9)))

    def parse(records: Any) -> Any:
        numbers = tf.strings.to_number(records, tf.int32)
        return {"x": numbers}, numbers % 2, numbers % 3

    def feed(choose: Any) -> list[int]:
        input_fn = make_input_fn(
            TextLineFiles(tmp_path / "lines"),
            training=False,
            parse=parse,
            filter=choose,
            transform=lambda features, label, _: (features, label),
        )
        return [x for features, _ in as_numpy(input_fn, 1) for x in features["x"].tolist()]

    assert feed(lambda _, label, more: (label == 1) & (more == 0)) == [3]
    with pytest.raises(UsageError, match=r"filter is called with \(features, labels, more\), and takes \(_, label\)"):
        feed(lambda _, label: label == 1)


def test_rejects_filters_that_return_no_bool_or_choose_nothing(raw_digits: Written) -> None:
    for choose, message in (
        (lambda features: features["label"], r"filter returned int64 of shape \(\) \(expected one bool\)"),
        (lambda features: features["label"] == [1, 2], r"filter returned bool of shape \(2,\)"),
        (lambda _: None, "filter returned None"),
        (lambda features: features["label"] > 100, "it chose none of them"),
        (lambda features, labels: features["label"] < labels, "filter is called with"),
    ):
        input_fn = make_input_fn(raw_digits.path, "test", training=False, filter=choose)
        with pytest.raises(UsageError, match=message):
            input_fn({"batch_size": 4})


def test_chooses_the_same_in_a_graph_of_tensorflow_1(raw_digits: Written) -> None:
    input_fn = make_input_fn(raw_digits.path, "test", training=False, filter=lambda features: features["label"] != 3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(input_fn({"batch_size": 101}))
        element = iterator.get_next()
        session.run(iterator.initializer)
        features, labels = session.run(element)
    found = labels[features["weights"] == 1].tolist()
    assert found == [label for label in raw_digits.labels["test"] if label != 3]


def test_the_filter_gets_all_parts_of_records_of_one_length(tmp_path: Path) -> None:
    dtype = np.dtype([("big", "<i8"), ("x", "<i4")])
    (tmp_path / "records").write_bytes(np.array([(2**40 + n, n) for n in range(20)], dtype).tobytes())
    files = FixedLengthRecordFiles(tmp_path / "records", dtype)

    def choose(features: Any) -> Any:
        return features["big"] >= 2**40 + 17

    input_fn = make_input_fn(files, training=False, features="x", filter=choose)
    assert [x.tolist() for x in as_numpy(input_fn, 1)] == [[17], [18], [19]]


def test_the_filter_gets_values_as_they_are_stored(tmp_path: Path) -> None:
    features = [
        Feature("x", "bytes", "uint8", (2,), "raw"),
        Feature("scores", "float", "float32", (None,)),
        Feature("number", "int64", "int64"),
    ]
    records = [{"x": bytes([n, n]), "scores": [0.5] * n, "number": 2**40 + n} for n in range(9)]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="", shards=1)

    def choose(found: Any) -> Any:
        assert (found["x"].dtype, found["number"].dtype) == (tf.string, tf.int64)
        return (tf.reduce_sum(found["scores"]) > 1) & (found["number"] < 2**40 + 6) & (found["x"] != b"\4\4")

    input_fn = make_input_fn(path, "train", training=False, features="x", filter=choose)
    assert [x[0].tolist() for x in as_numpy(input_fn, 1)] == [[3, 3], [5, 5]]

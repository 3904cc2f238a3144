"""Lists of any length through make_input_fn, compared with plain loops."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.datasets import write_dataset
from tests.helpers.lists import (
    BOXES,
    CAPTIONS,
    CLASSES,
    FEATURES,
    IDS,
    LONGEST,
    NAMES,
    NUMBER,
    OBJECTS,
    SHADES,
    Lists,
    padded,
    write_lists,
    write_records,
)
from tpudata import (
    FeatureError,
    Images,
    Pad,
    Reading,
    TFRecordFiles,
    Tokens,
    UsageError,
    as_jax,
    as_keras,
    as_numpy,
    make_input_fn,
)
from tpudata.format import Feature, encode_example

ALL: dict[str, Any] = {"image/object/*": LONGEST, "caption": LONGEST, "ids": LONGEST}


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Lists:
    return write_lists(tmp_path_factory.mktemp("lists"))


def rows_of(data: Any, batch_size: int = 8, **options: Any) -> list[dict[str, Any]]:
    """The real rows of an evaluation."""
    split = () if isinstance(data, TFRecordFiles) else ("train",)
    found = []
    for batch in as_numpy(make_input_fn(data, *split, **{"training": False, "pad": ALL, **options}), batch_size):
        rows = [{name: values[row] for name, values in batch.items()} for row in range(batch_size)]
        found += [row for row in rows if row["weights"]]
    return found


def check_rows(rows: list[dict[str, Any]], records: list[dict[str, Any]], length: int = LONGEST) -> None:
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        for feature in (*OBJECTS, CAPTIONS, IDS):
            want = padded(record[feature.name], feature, length)
            assert row[feature.name].dtype == want.dtype
            np.testing.assert_array_equal(row[feature.name], want)
        assert row["image/object/count"] == min(length, len(record[CLASSES.name]))
        assert row["caption/count"] == min(length, len(record[CAPTIONS.name]))
        assert row["ids/count"] == min(length, len(record[IDS.name]))
        assert row["number"] == record["number"]


def same(first: Any, second: Any) -> None:
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_pads_lists_and_adds_their_counts(lists: Lists, tmp_path: Path) -> None:
    # Into the cache, and from it.
    for cache in (False, True, tmp_path, tmp_path):
        check_rows(rows_of(lists.path, cache=cache), lists.records)
    spec = make_input_fn(lists.path, "train", training=True, pad=ALL)({"batch_size": 4}).element_spec
    assert spec["image/object/bbox"] == tf.TensorSpec((4, LONGEST, 4), tf.float32)
    assert spec["image/object/class/label"] == tf.TensorSpec((4, LONGEST), tf.int32)
    assert spec["image/object/class/text"] == tf.TensorSpec((4, LONGEST), tf.string)
    assert spec["image/object/shade"] == tf.TensorSpec((4, LONGEST, 2), tf.uint8)
    assert spec["image/object/count"] == spec["caption/count"] == tf.TensorSpec((4,), tf.int32)


def test_cuts_longer_lists_only_with_cut(lists: Lists) -> None:
    pad = {name: Pad(3, cut=True) for name in ALL}
    check_rows(rows_of(lists.path, pad=pad), lists.records, 3)
    with pytest.raises(FeatureError, match=r"Feature \S+: a record has lists of more entries than pad has.*cut=True"):
        rows_of(lists.path, pad={**pad, "image/object/*": LONGEST - 1})


def test_the_padding_value_applies_to_features_of_its_type(lists: Lists) -> None:
    longer = LONGEST + 1
    numpy_integer: Any = np.int8(-1)
    for value, fills in (
        (-1, (-1.0, -1, b"")),
        (numpy_integer, (-1.0, -1, b"")),
        (0.5, (0.5, 0, b"")),
        ("none", (0.0, 0, b"none")),
    ):
        pad = {"image/object/[bc]*": Pad(longer, value), "image/object/shade": longer, "caption": 9, "ids": 9}
        for row, record in zip(rows_of(lists.path, pad=pad), lists.records, strict=True):
            for feature, fill in zip((BOXES, CLASSES, NAMES), fills, strict=True):
                np.testing.assert_array_equal(
                    row[feature.name], padded(record[feature.name], feature, longer, fill), strict=True
                )
            assert row["image/object/count"] == row["image/object/shade/count"] == len(record[CLASSES.name])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), min_size=1, max_size=6),
    length=st.integers(1, 7),
    fill=st.integers(-3, 3),
    batch_size=st.integers(1, 4),
)
def test_cuts_and_pads_any_lists(
    rows: list[list[int]], length: int, fill: int, batch_size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(encode_example({"a": row, "b": [float(value % 7) for value in row for _ in range(2)]}))
    features = (Feature("a", "int64", "int64", (None,)), Feature("b", "float", "float32", (None, 2)))
    if not any(rows):
        return
    found = rows_of(TFRecordFiles(str(path), features), batch_size, pad={"*": Pad(length, fill, cut=True)})
    for got, row in zip(found, rows, strict=True):
        np.testing.assert_array_equal(got["a"], padded(row, features[0], length, fill), strict=True)
        want = padded([(value % 7,) * 2 for value in row], features[1], length, fill)
        np.testing.assert_array_equal(got["b"], want, strict=True)
        assert got["count"] == min(length, len(row))


def test_a_missing_list_counts_as_empty(tmp_path: Path) -> None:
    records = write_lists(tmp_path / "whole", 6).records
    absent: dict[str, Any] = {feature.name: [] for feature in (*OBJECTS, CAPTIONS, IDS)}
    for feature in (BOXES, SHADES):
        absent[feature.name] = np.zeros((0, int(feature.shape[1] or 0)), np.float32)
    stored = [record if number % 2 else {"number": number} for number, record in enumerate(records)]
    path = write_records(tmp_path / "some", stored)
    want = [record if number % 2 else {**absent, "number": number} for number, record in enumerate(records)]
    check_rows(rows_of(path), want)


def test_rejects_a_table_whose_columns_differ_in_length(tmp_path: Path) -> None:
    records = write_lists(tmp_path / "whole", 6).records
    records[4][NAMES.name] = ["one"] * (len(records[4][CLASSES.name]) + 1)
    path = write_records(tmp_path / "odd", records)
    message = f"Feature {NAMES.name}: a record has lists of a different length than {BOXES.name}"
    with pytest.raises(FeatureError, match=rf"{message}.*table image/object/\* of pad.*separate keys"):
        rows_of(path)
    apart = {
        "image/object/[!c]*": 9,
        "image/object/class/label": 9,
        "image/object/class/text": 9,
        "caption": 9,
        "ids": 9,
    }
    assert rows_of(path, pad=apart)[4]["image/object/class/text/count"] == len(records[4][NAMES.name])


@pytest.mark.parametrize("feature", [BOXES, SHADES, IDS])
def test_names_a_feature_with_incomplete_entries(feature: Feature, tmp_path: Path) -> None:
    records = write_lists(tmp_path / "whole", 6).records
    kind = np.uint8 if feature.encoding else np.float32
    records[3][feature.name] = np.zeros(5, kind)
    path = write_records(tmp_path / "odd", records)
    # Next to a record that completes the bytes of both.
    if feature is IDS:
        records[2][feature.name] = np.zeros(3, kind)
        path = write_records(tmp_path / "odd2", records)
    with pytest.raises(FeatureError, match=f"Feature {feature.name}: a record has .*not whole"):
        rows_of(path)


def test_pad_feeds_lists_that_the_layout_omits(tmp_path: Path) -> None:
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(3):
            writer.write(encode_example({"x": number, "more/a": [1.5] * number, "label": 1}))
    features = (
        Feature("x", "int64", "int64"),
        Feature("more/a", "float", "float32", (None,)),
        Feature("label", "int64", "int64"),
    )
    input_fn = make_input_fn(TFRecordFiles(path, features), training=False, pad={"more/a": 2})
    ((got, labels),) = as_numpy(input_fn, 3)
    assert got["more/a"].tolist() == [[0, 0], [1.5, 0], [1.5, 1.5]]
    assert got["more/a/count"].tolist() == [0, 1, 2]
    assert labels.tolist() == [1, 1, 1]


def test_hosts_readers_and_restarts_give_the_same_batches(lists: Lists, tmp_path: Path) -> None:
    def batches(steps: int = 6, hosts: int = 1, start_step: int = 0, **options: Any) -> list[Any]:
        input_fn = make_input_fn(lists.path, "train", training=True, seed=3, pad=ALL, reading=reading, **options)
        made = [
            input_fn({"batch_size": 8}, start_step=start_step, host_index=host, host_count=hosts)
            for host in range(hosts)
        ]
        return [
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            for parts in zip(*(dataset.take(steps).as_numpy_iterator() for dataset in made), strict=True)
        ]

    # Read as from an object store.
    reading = Reading(pieces=True, piece_bytes=2048)
    want = batches()
    others = [
        (batches(hosts=2), want),
        (batches(hosts=4), want),
        (batches(3, start_step=3), want[3:]),
        # Pieces into the cache, and from it; decoded records in memory.
        *((batches(cache=cache), want) for cache in (tmp_path, tmp_path, True)),
    ]
    for found, expected in others:
        for got, batch in zip(found, expected, strict=True):
            same(got, batch)
    input_fn = make_input_fn(lists.path, "train", training=True, seed=3, pad=ALL, reading=reading)
    first = iter(input_fn({"batch_size": 8}))
    for _ in range(2):
        next(first)
    saved = tf.train.Checkpoint(iterator=first).save(str(tmp_path / "saved"))
    second = iter(input_fn({"batch_size": 8}))
    tf.train.Checkpoint(iterator=second).restore(saved)
    same({name: value.numpy() for name, value in next(second).items()}, want[2])


def test_the_filter_gets_lists_as_they_are_stored(lists: Lists) -> None:
    rows = rows_of(lists.path, filter=lambda record: tf.size(record[NAMES.name]) > 3)
    check_rows(rows, [record for record in lists.records if len(record[NAMES.name]) > 3])


def test_keras_and_jax_get_padded_lists(lists: Lists) -> None:
    pad = {"image/object/bbox": LONGEST, "image/object/class/label": LONGEST}
    numbers = tuple(feature for feature in FEATURES if feature in (BOXES, CLASSES, NUMBER))
    data = TFRecordFiles(f"{lists.path}/train-*", numbers)
    input_fn = make_input_fn(data, training=False, pad=pad)
    rows = [row for batch in as_keras(input_fn, 8).as_numpy_iterator() for row in batch["image/object/bbox"]]
    assert len(rows) == len(lists.records)
    for row, record in zip(rows, lists.records, strict=True):
        np.testing.assert_array_equal(row, padded(record[BOXES.name], BOXES, LONGEST))
    with contextlib.closing(as_jax(input_fn, 8)) as batches:
        found = np.asarray(next(batches)["image/object/bbox"])
    np.testing.assert_array_equal(found, rows[:8])


def test_a_transform_gets_padded_lists(lists: Lists) -> None:
    def first(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        assert features["ids"].shape == (LONGEST,)
        return {"first": features["ids"][0], "count": features["ids/count"]}

    rows = rows_of(lists.path, transform=first)
    assert [row["count"] for row in rows] == [len(record["ids"]) for record in lists.records]


def test_pad_takes_precedence_over_sequence_length(tmp_path: Path) -> None:
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(encode_example({"input_ids": [1, 2, 3], "kinds": [7, 8]}))
    features = (Feature("input_ids", "int64", "int64", (None,)), Feature("kinds", "int64", "int64", (None,)))
    data = TFRecordFiles(path, features)
    input_fn = make_input_fn(data, training=False, tokens=Tokens(sequence_length=4), pad={"kinds": 3})
    (got,) = as_numpy(input_fn, 1)
    assert got["input_ids"].tolist() == [[1, 2, 3, 0]]
    assert got["kinds"].tolist() == [[7, 8, 0]]
    assert got.keys() == {"input_ids", "attention_mask", "kinds", "kinds/count", "weights"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": [3]}, "pass a dict of names"),
        ({"pad": {1: 3}}, "pass a dict of names"),
        ({"pad": {"caption": "5"}}, "invalid value of 'caption'"),
        ({"pad": {"caption": True}}, "invalid value of 'caption'"),
        ({"pad": {"caption": 0}}, "Pad.length: invalid value .got 0"),
        ({"pad": {"captions": 5}}, "'captions' is no list of the dataset, which has image/object/bbox, .*caption"),
        ({"pad": {"objects/*": 5}}, "'objects/.' matches no list of the dataset, which has image/object/bbox"),
        ({"pad": {"number": 5}}, r"'number' has the same shape in all records, \(\)"),
        ({"pad": {"image/object/*": 5, "image/object/bbox": 5}}, "'image/object/bbox' is in two keys"),
        ({"pad": {"caption": Pad(5, 1)}}, "value 1 of 'caption' fits none of its features .caption is string"),
        ({"pad": {"ids": Pad(5, 0.5)}}, "value 0.5 of 'ids' fits none"),
        (
            {"pad": {"image/object/*": Pad(5, 256)}},
            "256 of 'image/object/.' does not fit 'image/object/shade' .*0 to 255",
        ),
        ({"pad": {"image/object/bbox": Pad(5, 10**400)}}, "0 of 'image/object/bbox' does not fit"),
        ({"pad": {"image/object/bbox": Pad(5, 3.5e38)}}, r"3\.5e\+38 of 'image/object/bbox' does not fit .*e\+38\)"),
        ({"pad": {"image/object/bbox": Pad(5, 1e39)}}, r"1e\+39 of 'image/object/bbox' does not fit .*e\+38\)"),
        ({"pad": {"i*s": 5, "*is": 5}}, "'.is' matches no list"),
        ({"pad": {"i*ds": 5, "*caption": 5}, "features": "number"}, "no place for pad"),
        ({"pad": {"caption": 5}, "parse": lambda records: records}, "pad=.*parse decides"),
        ({"extra_features": ("caption",)}, "extra_features: 'caption' is read anyway"),
    ],
)
def test_rejects_wrong_arguments(lists: Lists, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_input_fn(lists.path, "train", training=False, **{"pad": ALL, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 2.5}, "Pad.length"),
        ({"length": True}, "Pad.length"),
        ({"length": 2, "value": True}, "Pad.value"),
        ({"length": 2, "value": [1]}, "Pad.value"),
        ({"length": 2, "cut": 1}, "Pad.cut"),
    ],
)
def test_pad_rejects_wrong_attributes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pad(**options)


def test_rejects_pad_for_images_and_other_shapes(tmp_path: Path) -> None:
    features = (
        Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"),
        Feature("frames", "bytes", "uint8", (None, 2, 2), "raw"),
        Feature("grid", "bytes", "int32", (None, None), "raw"),
    )
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(encode_example({"image/encoded": b"", "frames": b"", "grid": b""}))
    data = TFRecordFiles(path, features)
    for name, message in (("image/encoded", "is an image"), ("frames", "is an image"), ("grid", "shape .None, None.")):
        with pytest.raises(UsageError, match=f"pad: '{name}' .*{message}"):
            make_input_fn(data, training=False, pad={name: 3}, images=Images(size=(2, 2)))


def test_an_unpadded_list_is_rejected_with_the_fix(lists: Lists) -> None:
    with pytest.raises(FeatureError, match=r"'caption'.*varies.*Pass pad={'caption': N}.*--pad caption=N"):
        make_input_fn(lists.path, "train", training=False, pad={"image/object/*": 7})


def test_rejects_counts_that_share_a_name(tmp_path: Path) -> None:
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(encode_example({"a/b": [1], "a/count": 2, "c/a": [1]}))
    features = [Feature(name, "int64", "int64", (None,)) for name in ("a/b", "c/a")]
    data = TFRecordFiles(path, (*features, Feature("a/count", "int64", "int64")))
    with pytest.raises(FeatureError, match=r"Two features would have the same name: .*a/count, a/count"):
        make_input_fn(data, training=False, pad={"a/*": 1, "c/a": 1})
    with pytest.raises(UsageError, match=r"the counts of 'a/.', '.a' would have the same name, 'a/count'"):
        make_input_fn(TFRecordFiles(path, features), training=False, pad={"a/*": 1, "*a": 1})


def test_each_length_gets_its_own_cache(lists: Lists, tmp_path: Path) -> None:
    for pad in (ALL, {**ALL, "ids": 9}, {**ALL, "ids": Pad(9, 5)}, {name: Pad(3, cut=True) for name in ALL}):
        (got,) = rows_of(lists.path, 1, pad=pad, cache=tmp_path)[:1]
        (want,) = rows_of(lists.path, 1, pad=pad)[:1]
        same(got, want)


def test_a_cache_returns_static_lists_of_strings(tmp_path: Path) -> None:
    path = str(tmp_path / "records")
    records = [[b"a", b""], [b"bc", b"d" * 40]]
    features = [dataclasses.replace(CAPTIONS, shape=(2,)), NUMBER]
    stored = [{"caption": record, "number": 1} for record in records]
    write_dataset(path, {"train": stored}, features, layout="examples", shards=1)
    for _ in range(2):
        (got,) = as_numpy(make_input_fn(path, "train", training=False, cache=tmp_path / "cache"), 2)
        assert got["caption"].tolist() == records

"""Records with sequences taken apart, against TensorFlow's parser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.input.test_columns import frames
from tpudata import FeatureError
from tpudata.errors import CorruptionError
from tpudata.format import Feature, encode_example
from tpudata.input.dataset.fields import PADDING, Field
from tpudata.input.decode.parse import parse_batch
from tpudata.input.sequence_columns import LENGTH, SequenceColumns, SequenceLengths

IDS = Feature("input_ids", "int64", "int64", (None,))
RAW = Feature("raw_ids", "bytes", "int32", (None,), "raw")
SPANS = Feature("spans", "int64", "int64", (2, 2))
SCORE = Feature("score", "float", "float32", (2,))
NAME = Feature("name", "bytes", "string")
LENGTH_OF_ALL = 6


def fields(cuts: bool = True) -> list[Field]:
    return [
        Field(IDS, "input_ids", (LENGTH_OF_ALL,), pads=True, cuts=cuts),
        Field(RAW, "raw_ids", (LENGTH_OF_ALL,), pads=True, cuts=cuts),
        Field(SPANS, "spans", (2, 2)),
        Field(SCORE, "score", (2,)),
        Field(NAME, "name", ()),
    ]


def check(records: list[bytes]) -> None:
    got = SequenceColumns(fields()).decode(*frames(records), "file", 0)
    for name, want in parse_batch(tf.constant(records), fields()).items():
        np.testing.assert_array_equal(got[name], want.numpy(), name)
        assert got[name].dtype == want.numpy().dtype


ids = st.lists(st.one_of(st.integers(0, 400), st.sampled_from([-1, 2**14, 2**28, 2**31 - 1])), max_size=9)
examples = st.fixed_dictionaries(
    {
        "input_ids": ids,
        "raw_ids": ids.map(lambda values: np.array(values, "<i4").tobytes()),
        "spans": st.lists(st.integers(0, 300), min_size=4, max_size=4),
        "score": st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
        "name": st.binary(max_size=200),
    },
    optional={"other": st.binary(max_size=4), "empty": st.just([])},
)


@settings(max_examples=25)
@given(st.lists(examples, min_size=1, max_size=20))
def test_any_records_equal_tensorflows_parser(values: list[dict[str, Any]]) -> None:
    check([encode_example(value) for value in values])


@settings(max_examples=10)
@given(st.lists(examples, min_size=1, max_size=6), st.data())
def test_records_of_other_writers_equal_tensorflows_parser(values: list[dict[str, Any]], data: st.DataObject) -> None:
    """Features in any order, and a list whose one value is not packed."""
    records = []
    for value in values:
        example = tf.train.Example()
        for name in data.draw(st.permutations(sorted(value))):
            feature = example.features.feature[name]
            if isinstance(value[name], bytes):
                feature.bytes_list.value.append(value[name])
            elif name == "score":
                feature.float_list.value.extend(value[name])
            elif name != "empty":
                feature.int64_list.value.extend(value[name])
        records.append(example.SerializeToString())
    records.append(records[0] + b"\x0a\x13\x0a\x11\x0a\x09input_ids\x12\x04\x1a\x02\x08\x07")
    check(records)


def test_padding_stands_behind_the_last_value() -> None:
    found = SequenceColumns(fields()[:1]).decode(
        *frames([encode_example({"input_ids": [1, 300]}), encode_example({"input_ids": []})]), "file", 0
    )
    assert found["input_ids"].tolist() == [[1, 300] + [PADDING] * 4, [PADDING] * 6]


def test_lengths_are_those_of_the_longest_sequence() -> None:
    records = [
        encode_example({"input_ids": range(1000, 1000 + a), "raw_ids": bytes(4 * b)})
        for a, b in [(3, 1), (0, 5), (6, 6)]
    ]
    found = SequenceLengths(fields(cuts=False)[:2]).decode(*frames(records), "file", 0)
    assert found[LENGTH].tolist() == [3, 5, 6]
    with pytest.raises(FeatureError, match="has 7 values, and 6 are room for"):
        SequenceLengths(fields(cuts=False)[:1]).decode(*frames([encode_example({"input_ids": range(7)})]), "file", 0)


GOOD = {"input_ids": [1, 300], "raw_ids": bytes(8), "spans": [1, 2, 3, 4], "score": [0.0, 1.0], "name": b"x"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"input_ids": range(7)},
            r"feature 'input_ids' has 7 values, and 6 are room for\. Pass a larger sequence_length",
        ),
        ({"input_ids": [2**31]}, "feature 'input_ids' has a value that does not fit int32"),
        ({"raw_ids": bytes(7)}, "feature 'raw_ids' has no whole number of 4 bytes"),
        ({"spans": [1, 2, 3]}, r"feature 'spans' has another number of values than the 4 of shape \(2, 2\)"),
        ({"score": [1.0]}, "feature 'score' has another number of values than the 2"),
        ({"name": None}, "feature 'name' is not in the record"),
        ({"score": [1, 2]}, "another kind or number"),
        ({"name": [b"a", b"b"]}, "another kind or number"),
        ({"name": []}, "another kind or number"),
    ],
)
def test_records_that_do_not_fit_are_named(wrong: dict[str, Any], message: str) -> None:
    record = {name: value for name, value in {**GOOD, **wrong}.items() if value is not None}
    good = encode_example(GOOD)
    with pytest.raises(FeatureError, match=rf"file at byte {1000 + len(good) + 16}: {message}|{message}"):
        SequenceColumns(fields(cuts=False)).decode(*frames([good, encode_example(record)]), "file", 1000)


def test_what_is_no_example_is_damage() -> None:
    with pytest.raises(CorruptionError, match=r"file at byte 1000: the record is not a tf\.train\.Example"):
        SequenceColumns(fields()).decode(*frames([b"\x0a\xff"]), "file", 1000)

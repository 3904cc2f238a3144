"""Records parsed to tensors, compared with tf.io and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudata.format import Feature, encode_example
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import cast_to_int32
from tpudata.input.decode.parse import parse_batch

INT32 = 2**31


def field(name: str, kind: str, dtype: str, shape: tuple[int, ...] = (), encoding: str | None = None) -> Field:
    return Field(Feature(name, kind, dtype, shape, encoding), name, shape)


def test_int64_becomes_int32_at_its_limits() -> None:
    values = [-INT32, -1, 0, INT32 - 1]
    batch = tf.constant([encode_example({"a": value}) for value in values])
    parsed = parse_batch(batch, [field("a", "int64", "int64")])["a"]
    assert parsed.dtype == tf.int32
    assert parsed.numpy().tolist() == values


@pytest.mark.parametrize("value", [INT32, -INT32 - 1, 2**62])
def test_names_the_feature_of_an_int64_beyond_int32(value: int) -> None:
    dataset = tf.data.Dataset.from_tensors([encode_example({"count": value})])
    dataset = dataset.map(lambda batch: parse_batch(batch, [field("count", "int64", "int64")]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Feature count: a value does not fit int32"):
        list(dataset)


def test_keeps_other_dtypes() -> None:
    for dtype in (tf.int32, tf.uint8, tf.float32, tf.string):
        value = tf.zeros([2], dtype) if dtype != tf.string else tf.constant(["a", "b"])
        assert cast_to_int32("x", value) is value


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_raw_values_equal_numpy(dtype: str) -> None:
    values = np.arange(-12, 12).reshape(4, 2, 3).astype(dtype)
    batch = tf.constant([encode_example({"x": row.astype(row.dtype.newbyteorder("<")).tobytes()}) for row in values])
    parsed = parse_batch(batch, [field("x", "bytes", dtype, (2, 3), "raw")])["x"]
    assert parsed.dtype == ("int32" if dtype == "int64" else dtype)
    np.testing.assert_array_equal(parsed, values)


@pytest.mark.parametrize("sizes", [(5, 5), (6, 5), (12, 12)])
def test_names_the_feature_of_a_raw_value_of_another_size(sizes: tuple[int, int]) -> None:
    dataset = tf.data.Dataset.from_tensors([encode_example({"x": bytes(size)}) for size in sizes])
    dataset = dataset.map(lambda batch: parse_batch(batch, [field("x", "bytes", "uint8", (2, 3), "raw")]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Feature x: a record does not have the 6 bytes"):
        list(dataset)


def test_names_a_missing_feature() -> None:
    batch = tf.constant([encode_example({"x": 1}), encode_example({"y": 1})])
    with pytest.raises(tf.errors.InvalidArgumentError, match="x"):
        parse_batch(batch, [field("x", "int64", "int64")])


def test_a_parsed_batch_equals_tensorflows_single_parser() -> None:
    fields = [
        field("n", "int64", "int64", (2,)),
        field("f", "float", "float32"),
        field("s", "bytes", "string", (), "utf8"),
    ]
    records = [encode_example({"n": [i, -i], "f": i / 3, "s": f"é{i}", "other": b"x"}) for i in range(9)]
    spec: dict[str, Any] = {
        "n": tf.io.FixedLenFeature([2], tf.int64),
        "f": tf.io.FixedLenFeature([], tf.float32),
        "s": tf.io.FixedLenFeature([], tf.string),
    }
    singles = [tf.io.parse_single_example(record, spec) for record in records]
    parsed = parse_batch(tf.constant(records), fields)
    assert sorted(parsed) == ["f", "n", "s"]
    for name, value in parsed.items():
        np.testing.assert_array_equal(value, np.stack([single[name] for single in singles]))

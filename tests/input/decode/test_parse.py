"""Records parsed to tensors, compared with numpy; tests/input/files/test_plain_dataset.py compares them with parse_example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tpudata import make_input_fn
from tpudata.format import Feature

INT32 = 2**31
Fed = Callable[[Sequence[dict[str, Any]], Sequence[Feature]], Any]


@pytest.fixture
def feed(tmp_path: Path) -> Fed:
    """A function from records and their features to a batch of them."""

    def feed_batch(records: Sequence[dict[str, Any]], features: Sequence[Feature]) -> Any:
        path = write_dataset(str(tmp_path), {"train": records}, features, layout="", shards=1)
        input_fn = make_input_fn(path, "train", training=True, shuffle=False)
        return next(input_fn({"batch_size": len(records)}).as_numpy_iterator())

    return feed_batch


def test_int64_becomes_int32_at_its_limits(feed: Fed) -> None:
    values = [-INT32, -1, 0, INT32 - 1]
    parsed = feed([{"a": value} for value in values], [Feature("a", "int64", "int64")])["a"]
    assert parsed.dtype == np.int32
    assert parsed.tolist() == values


@pytest.mark.parametrize("value", [INT32, -INT32 - 1, 2**62])
def test_names_the_feature_of_an_int64_beyond_int32(feed: Fed, value: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="Feature count: a value does not fit int32"):
        feed([{"count": value}], [Feature("count", "int64", "int64")])


def test_raw_values_equal_numpy(feed: Fed) -> None:
    dtypes = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
    values = {dtype: np.arange(-12, 12).reshape(4, 2, 3).astype(dtype) for dtype in dtypes}
    records = [
        {dtype: value[row].astype(value.dtype.newbyteorder("<")).tobytes() for dtype, value in values.items()}
        for row in range(4)
    ]
    parsed = feed(records, [Feature(dtype, "bytes", dtype, (2, 3), "raw") for dtype in dtypes])
    for dtype, value in values.items():
        assert parsed[dtype].dtype == ("int32" if dtype == "int64" else dtype)
        np.testing.assert_array_equal(parsed[dtype], value)


@pytest.mark.parametrize("sizes", [(5, 5), (6, 5), (12, 12)])
def test_names_the_feature_of_a_raw_value_of_another_size(feed: Fed, sizes: tuple[int, int]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Feature x: a record does not have the 6 bytes"):
        feed([{"x": bytes(size)} for size in sizes], [Feature("x", "bytes", "uint8", (2, 3), "raw")])


def test_names_a_missing_feature(feed: Fed) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="x"):
        feed([{"x": 1}, {"y": 1}], [Feature("x", "int64", "int64")])

"""Examples of one fixed layout equal parsed ones, and records of another layout are parsed.

The two parsers are private: batches do not show which one parsed them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.format import Feature, encode_example
from tpudata.input.dataset.fields import CONVERT_AGAIN, Field
from tpudata.input.decode.fixed_examples import FixedExamples
from tpudata.input.decode.parse import parse_batch

DTYPES = ("uint8", "int8", "uint16", "int32", "int64", "float16", "float32", "float64")


def field(name: str, kind: Any, dtype: str, shape: tuple[int, ...] = (), encoding: Any = None) -> Field:
    return Field(Feature(name, kind, dtype, shape, encoding), name, shape)


FIELDS = [
    *(field(f"raw/{dtype}", "bytes", dtype, (2, 3), "raw") for dtype in DTYPES),
    field("number", "int64", "int64"),
    field("floats", "float", "float32", (3,)),
    field("float", "float", "float32"),
]


def example(rng: np.random.Generator, largest: int, **others: Any) -> bytes:
    values: dict[str, Any] = {f"raw/{dtype}": rng.integers(0, 100, (2, 3)).astype(dtype).tobytes() for dtype in DTYPES}
    values |= {"number": int(rng.integers(0, largest)), "floats": rng.random(3).astype(np.float32), "float": 0.5}
    values |= {"not read": rng.bytes(5), "nor this": int(rng.integers(0, 100)), **others}
    return encode_example({name: value for name, value in values.items() if value is not None})


def check_same(records: list[bytes], *, is_fixed: bool) -> None:
    fixed = FixedExamples.detect(records[0], FIELDS)
    assert fixed is not None
    serialized = tf.constant(records)
    assert bool(fixed._split_bytes(serialized)[-1]) == is_fixed
    found, expected = fixed.parse(serialized, CONVERT_AGAIN), parse_batch(serialized, FIELDS)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("largest", [1, 100, 128])
def test_fixed_examples_equal_parsed_ones(largest: int) -> None:
    rng = np.random.default_rng(0)
    check_same([example(rng, largest) for _ in range(50)], is_fixed=True)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=6))
def test_handles_numbers_of_any_length(numbers: list[int]) -> None:
    rng = np.random.default_rng(0)
    sizes = {(max(number.bit_length(), 1) + 6) // 7 for number in numbers}
    check_same([example(rng, 2, number=number) for number in numbers], is_fixed=len(sizes) == 1)


def test_parses_records_of_another_layout() -> None:
    rng = np.random.default_rng(0)
    usual = [example(rng, 100) for _ in range(4)]
    # Of the same size: another key, and features in another order.
    other_key = example(rng, 100, **{"not read": None, "not rEad": b"abcde"})
    reordered = tf.train.Example.FromString(usual[0])
    entries = sorted(reordered.features.feature.items(), key=lambda item: item[0], reverse=True)
    shuffled = b"".join(tf.train.Features(feature={name: value}).SerializeToString() for name, value in entries)
    head = usual[0][: len(usual[0]) - len(shuffled)]
    for odd in (other_key, head + shuffled, example(rng, 100, **{"not read": b"longer than five"})):
        check_same([*usual, odd], is_fixed=False)


def test_a_wrong_record_raises_the_error_of_parsing() -> None:
    rng = np.random.default_rng(0)
    records = [example(rng, 100), example(rng, 100, **{"raw/uint8": b"four"})]
    fixed = FixedExamples.detect(records[0], FIELDS)
    assert fixed is not None
    with pytest.raises(tf.errors.InvalidArgumentError, match="Feature raw/uint8: a record does not have the 6 bytes"):
        fixed.parse(tf.constant(records), CONVERT_AGAIN)
    with pytest.raises(tf.errors.InvalidArgumentError, match="float"):
        fixed.parse(tf.constant([records[0], example(rng, 100, float=None)]), CONVERT_AGAIN)


@pytest.mark.parametrize(
    "other",
    [
        field("number", "int64", "int64", (1,)),
        field("floats", "float", "float32", (4,)),
        field("raw/uint8", "bytes", "uint8", (7,), "raw"),
        field("missing", "int64", "int64"),
        field("not read", "bytes", "string"),
    ],
)
def test_returns_none_for_fields_without_a_fixed_place(other: Field) -> None:
    assert FixedExamples.detect(example(np.random.default_rng(0), 5), [other]) is None
    assert FixedExamples.detect(b"no example", FIELDS) is None

"""Places of values in serialized Examples, compared with what protobuf parses.

Places are private: readers show only the values.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tpudata.format import encode_example
from tpudata.format.example.value_positions import find_value_positions

VALUES = st.one_of(
    st.binary(max_size=300),
    st.integers(0, 2**63 - 1),
    st.floats(width=32, allow_nan=False),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50),
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
def test_finds_the_places_of_values(features: dict[str, Any]) -> None:
    for data in (encode_example(features), _serialize(features)):
        found = find_value_positions(data)
        assert found is not None
        assert set(found) == set(features)
        for name, value in features.items():
            kind, begin, end = found[name]
            if isinstance(value, bytes):
                assert (kind, data[begin:end]) == ("bytes", value)
            elif isinstance(value, int):
                number = sum((byte & 127) << 7 * place for place, byte in enumerate(data[begin:end]))
                assert (kind, number) == ("int64", value)
            else:
                expected = np.atleast_1d(np.float32(value))
                assert kind == "float"
                np.testing.assert_array_equal(np.frombuffer(data[begin:end], "<f4"), expected)


def _serialize(features: dict[str, Any]) -> bytes:
    example = tf.train.Example()
    for name, value in features.items():
        entry = example.features.feature[name]
        if isinstance(value, bytes):
            entry.bytes_list.value.append(value)
        elif isinstance(value, int):
            entry.int64_list.value.append(value)
        else:
            entry.float_list.value.extend(value if isinstance(value, list) else [value])
    data: bytes = example.SerializeToString()
    return data


def _length(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def test_finds_the_places_of_unpacked_values() -> None:
    number = b"\x0a" + _length(b"\x0a" + _length(b"a") + b"\x12" + _length(b"\x1a" + _length(b"\x08\x96\x01")))
    decimal = b"\x0a" + _length(
        b"\x0a" + _length(b"b") + b"\x12" + _length(b"\x12" + _length(b"\x0d" + struct.pack("<f", 1.5)))
    )
    example = b"\x0a" + _length(number + decimal)
    parsed = tf.train.Example.FromString(example).features.feature
    assert (parsed["a"].int64_list.value[0], parsed["b"].float_list.value[0]) == (150, 1.5)
    found = find_value_positions(example)
    assert found is not None
    assert example[found["a"].begin : found["a"].end] == b"\x96\x01"
    assert example[found["b"].begin : found["b"].end] == struct.pack("<f", 1.5)


def test_finds_no_places_in_lists_and_damaged_examples() -> None:
    several = encode_example({"a": [b"x", b"y"]})
    once = encode_example({"a": b"x"})
    for data in (several, once + once, encode_example({"a": []}), once[:-1], b"\xff", b"\x0b", b"\x08\x01"):
        assert find_value_positions(data) is None
    assert find_value_positions(b"") == {}


def test_finds_no_places_in_an_entry_with_a_repeated_part() -> None:
    key, value = b"\x0a" + _length(b"a"), b"\x12" + _length(b"\x1a" + _length(b"\x08\x01"))
    other = b"\x12" + _length(b"\x1a" + _length(b"\x08\x02"))
    for parts in (key + value + other, key + key + value, b"\x0a" + _length(b"b") + key + value):
        assert find_value_positions(b"\x0a" + _length(b"\x0a" + _length(parts))) is None
    # Of two values, protobuf makes one of both.
    merged = b"\x0a" + _length(b"\x0a" + _length(key + value + other))
    assert list(tf.train.Example.FromString(merged).features.feature["a"].int64_list.value) == [1, 2]


@given(st.binary(max_size=80))
def test_any_bytes_raise_no_error(data: bytes) -> None:
    find_value_positions(data)

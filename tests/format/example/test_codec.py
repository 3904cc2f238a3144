"""The Example codec against TensorFlow's protobuf."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tpudata.errors import CorruptionError, FeatureError
from tpudata.format import decode_example, encode_example

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.lists(INT64, min_size=1, max_size=6),
    st.lists(FLOAT32, min_size=1, max_size=6),
)
FEATURES = st.dictionaries(st.text(max_size=12), VALUES, max_size=5)


def to_proto(features: dict[str, Any]) -> Any:
    """The same features through tf.train.Example."""
    message = tf.train.Example()
    for name, values in features.items():
        feature = message.features.feature[name]
        if not values:
            continue
        if isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return message


def from_proto(message: Any) -> dict[str, list[Any]]:
    result = {}
    for name, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        result[name] = list(getattr(feature, kind).value) if kind else []
    return result


@given(FEATURES)
@example({})
@example({"": [b""], "é": [-1], "z": [0.5, -0.0]})
def test_encodes_as_protobuf_does(features: dict[str, Any]) -> None:
    data = encode_example(features)
    message = tf.train.Example.FromString(data)
    assert from_proto(message) == features
    assert decode_example(data) == features
    if len(features) == 1:  # Of several, protobuf orders the keys in another way.
        assert data == to_proto(features).SerializeToString(deterministic=True)


@given(FEATURES)
def test_decodes_what_protobuf_writes(features: dict[str, Any]) -> None:
    assert decode_example(to_proto(features).SerializeToString()) == features


def test_keeps_nan_and_infinities() -> None:
    values = decode_example(encode_example({"f": [math.inf, -math.inf, math.nan]}))["f"]
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(float(values[2]))


@pytest.mark.parametrize("data", [b"", b"\x0a\x00"])
def test_decodes_an_example_without_features(data: bytes) -> None:
    assert decode_example(data) == from_proto(tf.train.Example.FromString(data)) == {}


def test_decoded_values_belong_to_the_caller() -> None:
    data = encode_example({"label": 3})
    decode_example(data)["label"].append(4)  # type: ignore[arg-type]
    assert decode_example(data) == {"label": [3]}


def test_decodes_a_feature_without_values() -> None:
    data = encode_example({"a": [], "b": 1})
    assert from_proto(tf.train.Example.FromString(data)) == decode_example(data) == {"a": [], "b": [1]}
    message = tf.train.Example()
    message.features.feature["a"].int64_list.SetInParent()
    message.features.feature["b"].bytes_list.SetInParent()
    assert decode_example(message.SerializeToString()) == {"a": [], "b": []}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("é", ["é".encode()]),
        (b"x", [b"x"]),
        (3, [3]),
        (True, [1]),
        (0.5, [0.5]),
        ([True, False], [1, 0]),
        ((1, 2), [1, 2]),
        (["a", b"b"], [b"a", b"b"]),
        (np.int16(-4), [-4]),
        (np.float64(0.25), [0.25]),
        (np.arange(4, dtype=np.uint8).reshape(2, 2), [0, 1, 2, 3]),
        (np.array([True, False]), [1, 0]),
        (np.array([0.5, 1.5], np.float16), [0.5, 1.5]),
        (np.array(["a", "ä"]), [b"a", "ä".encode()]),
        (np.array([b"a"]), [b"a"]),
        ([np.int64(7), 8], [7, 8]),
    ],
)
def test_encodes_python_and_numpy_values(value: Any, expected: list[Any]) -> None:
    assert from_proto(tf.train.Example.FromString(encode_example({"x": value}))) == {"x": expected}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 0.5], "float, int"),
        ([b"a", 1], "bytes, int"),
        ([None], "NoneType"),
        (None, "NoneType"),
        ({"a": 1}, "dict"),
        (2**63, "does not fit int64"),
        (-(2**63) - 1, "does not fit int64"),
        (np.array([1j]), "complex128"),
        ([[1, 2], [3]], "list"),
    ],
)
def test_rejects_unsupported_values_by_feature(value: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=f"'the name'.*{message}"):
        encode_example({"ok": 1, "the name": value})


# A writer of the wire format by hand, for what protobuf's own writer never does.
def varint(value: int) -> bytes:
    out = bytearray()
    value &= 2**64 - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def block(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


UNKNOWN = st.one_of(
    st.builds(lambda n, v: varint(n << 3) + varint(v), st.integers(9, 300), st.integers(0, 2**64 - 1)),
    st.builds(lambda n, v: varint(n << 3 | 1) + v, st.integers(9, 300), st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, v: varint(n << 3 | 5) + v, st.integers(9, 300), st.binary(min_size=4, max_size=4)),
    st.builds(block, st.integers(9, 300), st.binary(max_size=9)),
    st.just(b""),
)


@st.composite
def odd_examples(draw: st.DrawFn) -> bytes:
    """Examples with unpacked lists, unknown fields, swapped and repeated entries."""
    entries = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from((1, 2, 3)))
        values = b""
        packed = draw(st.booleans())
        for _ in range(draw(st.integers(0, 1 if packed and kind != 1 else 4))):
            if kind == 1:
                values += block(1, draw(st.binary(max_size=5)))
            elif kind == 2:
                numbers = [struct.pack("<f", draw(FLOAT32)) for _ in range(draw(st.integers(0, 3)))]
                values += block(1, b"".join(numbers)) if packed else b"".join(varint(1 << 3 | 5) + n for n in numbers)
            else:
                numbers = [varint(draw(INT64)) for _ in range(draw(st.integers(0, 3)))]
                values += block(1, b"".join(numbers)) if packed else b"".join(varint(1 << 3) + n for n in numbers)
            values += draw(UNKNOWN)
        feature = draw(UNKNOWN) + block(kind, values) + draw(UNKNOWN)
        name = block(1, draw(st.sampled_from(["a", "b", "ü", ""])).encode())
        # No unknown fields here: of protobuf's parsers, one drops an entry that has them, and nobody writes them.
        parts = draw(st.permutations([name, block(2, feature)]))
        entries.append(block(1, b"".join(parts)) + draw(UNKNOWN))
    split = draw(st.integers(0, len(entries)))
    # A message that stands twice is merged.
    return block(1, b"".join(entries[:split])) + draw(UNKNOWN) + block(1, b"".join(entries[split:]))


@settings(max_examples=150)
@given(odd_examples())
def test_decodes_every_encoding_of_an_example_as_protobuf_does(data: bytes) -> None:
    assert decode_example(data) == from_proto(tf.train.Example.FromString(data))


@given(FEATURES.filter(bool), st.data())
def test_rejects_a_truncated_example(features: dict[str, Any], data: st.DataObject) -> None:
    encoded = encode_example(features)
    cut = data.draw(st.integers(1, len(encoded) - 1))
    with pytest.raises(CorruptionError) as caught:
        decode_example(encoded[:cut], path="some.tfrecord", offset=77)
    assert (caught.value.path, caught.value.offset) == ("some.tfrecord", 77)


# What decode_example rejects although protobuf reads it, as TensorFlow's parser or protobuf's other one reads something else.
NAMED = (
    "a feature has several lists",
    "packed values in several pieces",
    "an entry of the map has two keys, two values or another field",
    "a group, which no Example has",
    "a tag that is longer than needed",
    "it is a tf.train.SequenceExample, of which only the context would be read",
)


def check_as_protobuf(data: bytes) -> None:
    """Decode bytes as protobuf does, or reject what it rejects, or for a named reason."""
    try:
        expected = from_proto(tf.train.Example.FromString(data))
    except DecodeError:
        with pytest.raises(CorruptionError):
            decode_example(data)
        return
    reason, found = "", {}
    try:
        found = decode_example(data)
    except CorruptionError as error:
        reason = error.reason.removeprefix("the record is not a tf.train.Example: ")
    if reason:
        assert reason in NAMED
        return
    # NaN equals nothing.
    assert repr(found) == repr({name: expected[name] for name in found})
    assert found.keys() == expected.keys()


@settings(max_examples=250)
@given(odd_examples() | FEATURES.map(encode_example), st.data())
def test_decodes_damaged_bytes_as_protobuf_does_or_rejects_them(example: bytes, data: st.DataObject) -> None:
    encoded = bytearray(example)
    for _ in range(data.draw(st.integers(1, 4))):
        if encoded:
            place = data.draw(st.integers(0, len(encoded) - 1))
            value = data.draw(st.sampled_from([*range(19), 0x53, 0x54, 0x7F, 0x80, 0x8A, 0xFF]) | st.integers(0, 255))
            encoded[place : place + data.draw(st.integers(0, 1))] = bytes([value])
    check_as_protobuf(bytes(encoded))


INTS, FLOATS = block(3, block(1, b"\1\2")), block(2, block(1, struct.pack("<f", 1)))


def example_of(feature: bytes) -> bytes:
    return block(1, block(1, block(1, b"x") + block(2, feature)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (example_of(INTS + INTS), NAMED[0]),
        (example_of(INTS + FLOATS), NAMED[0]),
        (example_of(INTS + FLOATS + INTS), NAMED[0]),
        (example_of(block(3, block(1, b"\1\2") + block(1, b"\3"))), NAMED[1]),
        (example_of(block(3, b"\x08\x01" + block(1, b"\2"))), NAMED[1]),
        (block(1, block(1, block(1, b"x") + block(2, INTS) + block(2, INTS))), NAMED[2]),
        (block(1, block(1, block(1, b"y") + block(1, b"x") + block(2, INTS))), NAMED[2]),
        (block(1, block(1, block(1, b"x") + block(2, INTS) + block(9, b""))), NAMED[2]),
        (example_of(INTS) + b"\x53\x08\x01\x54", NAMED[3]),
        (example_of(INTS + b"\x53\x54"), NAMED[3]),
        (b"\x8a\x00" + example_of(INTS)[1:], NAMED[4]),
        (example_of(INTS) + block(2, b""), NAMED[5]),
    ],
)
def test_rejects_encodings_on_which_parsers_differ(data: bytes, reason: str) -> None:
    tf.train.Example.FromString(data)
    with pytest.raises(CorruptionError, match=reason):
        decode_example(data)


@pytest.mark.parametrize(
    "data",
    [
        example_of(block(2, block(1, b"\0\0") + block(1, b"\x80\x3f"))),
        example_of(block(2, block(1, b"\0\0\0"))),
        b"\x8a\x80\x80\x80\x80\x00" + example_of(INTS)[1:],
        varint(2**29 << 3 | 2) + b"\0" + example_of(INTS),
        example_of(INTS) + b"\x54",
        example_of(block(3, block(1, b"\xff" * 10 + b"\1"))),
    ],
)
def test_rejects_what_protobuf_rejects(data: bytes) -> None:
    with pytest.raises(DecodeError):
        tf.train.Example.FromString(data)
    with pytest.raises(CorruptionError):
        decode_example(data)


# At every depth of an Example, anything.
ANY_FEATURE = st.one_of(st.binary(max_size=20), st.builds(block, st.integers(1, 3), st.binary(max_size=20)))
ANY_ENTRY = st.builds(lambda name, value: block(1, name) + block(2, value), st.binary(max_size=6), ANY_FEATURE)
ANY_FEATURES = st.builds(block, st.just(1), st.one_of(st.binary(max_size=20), ANY_ENTRY))
ANY_BYTES = st.one_of(st.binary(max_size=60), st.builds(block, st.just(1), ANY_FEATURES))


@settings(max_examples=400)
@given(ANY_BYTES)
@example(block(1, block(1, block(1, b"\xff") + block(2, b""))))
@example(block(1, block(1, block(1, b"\xff" * 80) + block(2, b""))))
def test_decodes_any_bytes_as_protobuf_does_or_rejects_them(data: bytes) -> None:
    check_as_protobuf(data)


@given(ANY_BYTES)
def test_any_bytes_decode_or_raise_corruption_error(data: bytes) -> None:
    found: Any
    try:
        found = decode_example(data, path="a.tfrecord", offset=7)
    except CorruptionError as error:
        found = error
    if isinstance(found, CorruptionError):
        assert (found.path, found.offset) == ("a.tfrecord", 7)
        assert found.reason.startswith("the record is not a tf.train.Example: ")
        return
    for name, values in found.items():
        assert isinstance(name, str)
        assert {type(value) for value in values} in (set(), {bytes}, {int}, {float})

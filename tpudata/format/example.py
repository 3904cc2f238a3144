"""The `tf.train.Example` codec: features to bytes and back, without TensorFlow or protobuf.

Protocol buffer wire format (tensorflow/core/example/{example,feature}.proto):

    Example   { Features features = 1 }
    Features  { map<string, Feature> feature = 1 }      a map entry is { string key = 1; Feature value = 2 }
    Feature   { oneof { BytesList = 1, FloatList = 2, Int64List = 3 } }
    BytesList { repeated bytes value = 1 }
    FloatList { repeated float value = 1 [packed] }
    Int64List { repeated int64 value = 1 [packed] }

Keys are written in sorted order, so equal features give equal bytes. Reading accepts everything a protobuf parser does: packed
and unpacked lists, fields in any order, unknown fields, and for a repeated key the last entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tpudata.errors import CorruptionError, FeatureError

Value: TypeAlias = "list[bytes] | list[int] | list[float]"

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Serialises features to a `tf.train.Example`.

    Args:
        features: by name: bytes, str (stored as UTF-8), int, bool, float, a sequence of one of these, or a numpy array or scalar
            (integers and bools become the int64 list, floats the float32 list; flattened in C order). An empty sequence
            is a feature with no list.

    Raises:
        FeatureError: a value is of another type, mixed, or an integer does not fit int64; names the feature.
    """
    entries = []
    for name in sorted(features):
        value = _feature(name, features[name])
        entry = _field(1, name.encode()) + _tag(2, _LENGTH) + _varint(len(value)) + value
        entries.append(_tag(1, _LENGTH) + _varint(len(entry)) + entry)
    body = b"".join(entries)
    return _tag(1, _LENGTH) + _varint(len(body)) + body


def decode_example(data: bytes, *, path: str = "tf.train.Example", offset: int = 0) -> dict[str, Value]:
    """Parses a `tf.train.Example`.

    Args:
        data: the serialised Example.
        path: the file it comes from, for messages.
        offset: the byte offset of the record in that file, for messages.

    Returns:
        By name, a list of bytes, ints or floats; an empty list for a feature without values.

    Raises:
        CorruptionError: the bytes are no Example.
    """
    features: dict[str, Value] = {}
    try:
        for number, wire, body in _fields(data):
            if (number, wire) != (1, _LENGTH):
                continue
            for inner_number, inner_wire, entry in _fields(body):
                if (inner_number, inner_wire) == (1, _LENGTH):
                    name, value = _parse_entry(entry)
                    features[name] = value
    except (IndexError, ValueError, struct.error) as error:
        raise CorruptionError(path, offset, f"the record is not a tf.train.Example: {error}") from None
    return features


def _tag(number: int, wire: int) -> bytes:
    return bytes((number << 3 | wire,))


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _tag(number, _LENGTH) + _varint(len(data)) + data


def _feature(name: str, value: Any) -> bytes:
    """The Feature message of a value."""
    if isinstance(value, bytes):
        return _field(_BYTES_LIST, _field(1, value))
    items = _items(name, value)
    if not items:
        return b""
    if all(isinstance(item, bytes) for item in items):
        return _field(_BYTES_LIST, b"".join(_field(1, item) for item in items))
    if all(isinstance(item, int) for item in items):
        for item in items:
            if not _INT64_MIN <= item <= _INT64_MAX:
                raise FeatureError(f"Feature {name!r}: {item} does not fit int64. Store it as bytes, or scale it.")
        return _field(_INT64_LIST, _field(1, b"".join(_varint(item & (2**64 - 1)) for item in items)))
    if all(isinstance(item, float) for item in items):
        return _field(_FLOAT_LIST, _field(1, np.asarray(items, "<f4").tobytes()))
    kinds = sorted({type(item).__name__ for item in items})
    raise FeatureError(
        f"Feature {name!r}: values of type {', '.join(kinds)}; allowed is one type out of bytes, str, int, bool and float."
    )


def _items(name: str, value: Any) -> list[Any]:
    """A value as a list of bytes, ints or floats."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind not in "biufSU":
            raise FeatureError(
                f"Feature {name!r}: numpy dtype {array.dtype} is not bool, integer, float, bytes or str."
            )
        value = array.ravel().tolist()
    elif isinstance(value, (str, int, float)):
        value = [value]
    elif not isinstance(value, Sequence):
        raise FeatureError(
            f"Feature {name!r}: {type(value).__name__}; allowed are bytes, str, int, bool, float, sequences of one of"
            " them, and numpy arrays."
        )
    return [_item(item) for item in value]


def _item(item: Any) -> Any:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bool, np.generic)):
        return int(item) if isinstance(item, (bool, np.bool_, np.integer)) else item.item()
    return item


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields (field number, wire type, payload) of a message; a varint's payload is its own bytes."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _read_varint(data, position)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("field number 0")
        if wire == _LENGTH:
            size, position = _read_varint(data, position)
        elif wire == _VARINT:
            size = _read_varint(data, position)[1] - position
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire}")
        if size > end - position:
            raise ValueError(f"a field of {size} bytes in {end - position}")
        yield number, wire, data[position : position + size]
        position += size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The varint at a position, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 10 bytes")


def _parse_entry(entry: bytes) -> tuple[str, Value]:
    name, value = "", b""
    for number, wire, body in _fields(entry):
        if wire == _LENGTH and number == 1:
            name = body.decode()
        elif wire == _LENGTH and number == 2:
            value = body
    return name, _parse_feature(value)


def _parse_feature(data: bytes) -> Value:
    result: Value = []
    for number, wire, body in _fields(data):
        if wire != _LENGTH:
            continue
        if number == _BYTES_LIST:
            result = [item for inner, kind, item in _fields(body) if (inner, kind) == (1, _LENGTH)]
        elif number == _FLOAT_LIST:
            packed = b"".join(item for inner, kind, item in _fields(body) if inner == 1 and kind in (_LENGTH, _FIXED32))
            result = list(struct.unpack(f"<{len(packed) // 4}f", packed))
        elif number == _INT64_LIST:
            result = _parse_ints(body)
    return result


def _parse_ints(body: bytes) -> list[int]:
    values: list[int] = []
    for number, wire, item in _fields(body):
        if number != 1 or wire not in (_LENGTH, _VARINT):
            continue
        position = 0
        while position < len(item):
            value, position = _read_varint(item, position)
            values.append(value - 2**64 if value > _INT64_MAX else value)
    return values

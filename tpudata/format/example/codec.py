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

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError, FeatureError

Value: TypeAlias = "list[bytes] | list[int] | list[float]"

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
# Longest bytes value whose head is kept for the next record that has one as long.
_SHORT = 256
# From this length on, a copy costs more than a separate part.
_LARGE = 1 << 14
# Longest map entry whose content is kept, in case that it comes again.
_SHORT_ENTRY = 64
_EXAMPLE_TAG = b"\x0a"
# No parser of protocol buffers takes a message of more bytes.
MAX_EXAMPLE_BYTES = 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Serialise features to a `tf.train.Example`.

    Args:
        features: by name: bytes, bytearray, memoryview of bytes, str (stored as UTF-8), int, bool, float, a sequence of one of
            these, or a numpy array or scalar
            (integers and bools become the int64 list, floats the float32 list; flattened in C order). An empty sequence
            is a feature with no list.

    Raises:
        FeatureError: a value is of another type, mixed, an integer that does not fit int64, a finite float that does not fit
            float32, or text that UTF-8 cannot encode; names the feature.
    """
    return b"".join(encode_example_parts(features))


def encode_example_parts(features: Mapping[str, Any]) -> list[bytes]:
    """Serialise features in parts, whose concatenation is the Example: bytes values of 16 kB and more are not copied."""
    parts: list[bytes] = []
    small: list[bytes] = []
    total = 0
    for name in _in_order(tuple(features)):
        value = features[name]
        if type(value) is bytes and len(value) >= _LARGE:
            head = _bytes_head(name, len(value))
            total += len(head) + len(value)
            parts += (b"".join((*small, head)), value)
            small = []
        else:
            entry = encode_entry(name, value)
            small.append(entry)
            total += len(entry)
    if small:
        parts.append(b"".join(small))
    head = _EXAMPLE_TAG + _varint(total)
    return [head + parts[0], *parts[1:]] if parts else [head]


def plain_bytes(name: str, value: bytes | bytearray | memoryview) -> bytes:
    """Return a value as bytes; FeatureError for a memoryview of other items than bytes.

    Args:
        name: of the feature, for the message.
        value: to sequences, a bytearray and a memoryview are lists of integers, but they hold bytes.
    """
    if isinstance(value, memoryview) and (value.itemsize != 1 or value.ndim != 1):
        raise FeatureError(
            f"Feature {name!r}: a memoryview of format {value.format!r} and {value.ndim} dimensions, expected bytes in one. Pass"
            " numpy.asarray(view) to store its items, or bytes(view)."
        )
    return bytes(value)


def check_unmasked(name: str, value: Any) -> None:
    """Raise FeatureError if a value is an array in which some values are masked: they would be stored."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise FeatureError(f"Feature {name!r}: a numpy array with masked values. Pass array.filled(VALUE).")


def encode_entry(name: str, value: Any) -> bytes:
    """Return the entry of one feature.

    Args:
        name: of the feature.
        value: its value or values, as `encode_example` takes them.

    Raises:
        FeatureError: the value is of another kind.
    """
    kind = type(value)
    entry: bytes
    if kind is int:
        entry = _int_entry(name, value)
    elif kind is bytes:
        head = _short_head(name, len(value)) if len(value) <= _SHORT else _bytes_head(name, len(value))
        entry = head + value
    else:
        entry = _entry(name, _feature(name, value))
    return entry


def decode_example(data: bytes, *, path: str = "tf.train.Example", offset: int = 0) -> dict[str, Value]:
    """Parse a `tf.train.Example`.

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
        # Through a view, an image is copied once, at the leaf, and not at every level that wraps it.
        for number, wire, body in _fields(memoryview(data)):
            if (number, wire) != (1, _LENGTH):
                continue
            for inner_number, inner_wire, entry in _fields(body):
                if (inner_number, inner_wire) != (1, _LENGTH):
                    continue
                if len(entry) <= _SHORT_ENTRY:
                    name, values = _parse_short_entry(bytes(entry))
                    features[name] = values.copy()
                else:
                    name, features[name] = _parse_entry(entry)
    except (IndexError, ValueError, struct.error) as error:
        raise CorruptionError(path, offset, f"the record is not a tf.train.Example: {error}") from None
    return features


def _tag(number: int, wire: int) -> bytes:
    return bytes((number << 3 | wire,))


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    # In one go, for lengths of images and of short features.
    if value < 0x4000:
        return (value & 0x7F | (value & 0x3F80) << 1 | 0x80).to_bytes(2, "little")
    if value < 0x200000:
        return (value & 0x7F | (value & 0x3F80) << 1 | (value & 0x1FC000) << 2 | 0x8080).to_bytes(3, "little")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _tag(number, _LENGTH) + _varint(len(data)) + data


def _entry(name: str, feature: bytes) -> bytes:
    """Return the map entry of a feature, with its tag."""
    return _field(1, _key_field(name) + _field(2, feature))


@functools.lru_cache(maxsize=256)
def _in_order(names: tuple[str, ...]) -> list[str]:
    # Kept, because one record has the features of the one before.
    return sorted(names)


@functools.lru_cache(maxsize=8192)
def _int_entry(name: str, value: int) -> bytes:
    # Kept, because labels and sizes recur from record to record.
    return _entry(name, _feature(name, value))


def _bytes_head(name: str, size: int) -> bytes:
    """Return what stands before the value in the map entry of a feature that is one bytes value of `size` bytes."""
    # From the value outwards: each level is a tag, the length of what is inside, and the inside.
    value = _varint(size)
    size += 1 + len(value)
    values = _varint(size)
    size += 1 + len(values)
    feature, key = _varint(size), _key_field(name)
    entry = _varint(size + 1 + len(feature) + len(key))
    return b"\x0a%b%b\x12%b\x0a%b\x0a%b" % (entry, key, feature, values, value)


_short_head = functools.lru_cache(maxsize=8192)(_bytes_head)


@functools.lru_cache(maxsize=1024)
def _key_field(name: str) -> bytes:
    return _field(1, name.encode())


def _feature(name: str, value: Any) -> bytes:
    """Return the Feature message of a value."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _field(_BYTES_LIST, _field(1, plain_bytes(name, value)))
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
        return _field(_FLOAT_LIST, _field(1, _float32(name, items).tobytes()))
    kinds = sorted({type(item).__name__ for item in items})
    raise FeatureError(
        f"Feature {name!r}: values of type {', '.join(kinds)}; allowed is one type out of bytes, str, int, bool and float."
    )


def _float32(name: str, values: list[float]) -> npt.NDArray[np.float32]:
    exact = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        stored = exact.astype("<f4")
    wrong = np.isinf(stored) & np.isfinite(exact)
    if wrong.any():
        raise FeatureError(f"Feature {name!r}: {exact[wrong][0]} does not fit float32. Scale it, or store it as bytes.")
    return stored


def _items(name: str, value: Any) -> list[Any]:
    """Return a value as a list of bytes, ints or floats."""
    if isinstance(value, (np.ndarray, np.generic)):
        check_unmasked(name, value)
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
    try:
        return [_item(name, item) for item in value]
    except UnicodeEncodeError as error:
        raise FeatureError(
            f"Feature {name!r}: the text {error.object!r} is not UTF-8. Store it as bytes (of a file name: os.fsencode)."
        ) from None


def _item(name: str, item: Any) -> Any:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bytes, bytearray, memoryview)):
        # Also of numpy.bytes_, whose item() drops zero bytes at the end.
        return plain_bytes(name, item)
    if isinstance(item, (bool, np.generic)):
        return int(item) if isinstance(item, (bool, np.bool_, np.integer)) else item.item()
    return item


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (field number, wire type, payload) of a message; a varint's payload is its own bytes."""
    position, end = 0, len(data)
    while position < end:
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = _read_varint(data, position - 1)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("field number 0")
        if wire == _LENGTH:
            size = data[position]
            position += 1
            if size >= 0x80:
                size, position = _read_varint(data, position - 1)
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


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it."""
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


def _parse_entry(entry: memoryview) -> tuple[str, Value]:
    name, value = "", memoryview(b"")
    for number, wire, body in _fields(entry):
        if wire == _LENGTH and number == 1:
            name = str(body, "utf-8")
        elif wire == _LENGTH and number == 2:
            value = body
    return name, _parse_feature(value)


@functools.lru_cache(maxsize=8192)
def _parse_short_entry(entry: bytes) -> tuple[str, Value]:
    # Kept, because labels, sizes and formats recur from record to record. The list is the cache's: it is copied out.
    return _parse_entry(memoryview(entry))


def _parse_feature(data: memoryview) -> Value:
    result: Value = []
    for number, wire, body in _fields(data):
        if wire != _LENGTH:
            continue
        if number == _BYTES_LIST:
            result = [bytes(item) for inner, kind, item in _fields(body) if (inner, kind) == (1, _LENGTH)]
        elif number == _FLOAT_LIST:
            packed = b"".join(item for inner, kind, item in _fields(body) if inner == 1 and kind in (_LENGTH, _FIXED32))
            result = list(struct.unpack(f"<{len(packed) // 4}f", packed))
        elif number == _INT64_LIST:
            result = _parse_ints(body)
    return result


def _parse_ints(body: memoryview) -> list[int]:
    values: list[int] = []
    for number, wire, item in _fields(body):
        if number != 1 or wire not in (_LENGTH, _VARINT):
            continue
        position = 0
        while position < len(item):
            value, position = _read_varint(item, position)
            values.append(value - 2**64 if value > _INT64_MAX else value)
    return values

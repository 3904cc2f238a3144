"""Decoding of a `tf.train.Example`, to the values that a protobuf parser gives.

That is packed and unpacked lists, fields in any order, unknown fields, and for a repeated key the last entry.

Some messages no writer of Examples makes, and parsers differ on: protobuf merges their parts or skips them, TensorFlow's
`parse_example` reads the first part or none. They are errors here:

- a Feature with several lists, and a list with packed values in several pieces;
- an entry of the map with two keys, two values, or other fields;
- groups, and tags that are longer than needed;
- a `tf.train.SequenceExample` with feature lists, of which both would read only the context.
"""

from __future__ import annotations

import functools
import struct

from tpudata.errors import CorruptionError
from tpudata.format.example.wire import (
    BYTES_LIST,
    FIXED32,
    FLOAT_LIST,
    INT64_LIST,
    INT64_MAX,
    LENGTH,
    VARINT,
    Value,
    fields,
    read_varint,
)

# Field of a SequenceExample, whose first field is its context.
_FEATURE_LISTS = 2
# Longest map entry whose content is cached.
_SHORT_ENTRY = 64


def decode_example(data: bytes, *, path: str = "tf.train.Example", offset: int = 0) -> dict[str, Value]:
    """Parse a `tf.train.Example`.

    Args:
        data: the serialised Example.
        path: file that it comes from, for messages.
        offset: byte offset of the record in that file, for messages.

    Returns:
        By name, a list of bytes, ints or floats; an empty list for a feature without values.

    Raises:
        CorruptionError: the bytes are not an Example.
    """
    features: dict[str, Value] = {}
    try:
        # A view copies an image once, at the leaf, instead of at each level.
        view = memoryview(data)
        for number, wire, begin, end in fields(view):
            if wire != LENGTH:
                continue
            if number == _FEATURE_LISTS:
                raise ValueError("it is a tf.train.SequenceExample, of which only the context would be read")
            if number != 1:
                continue
            for inner_number, inner_wire, start, stop in fields(view, begin, end):
                if (inner_number, inner_wire) != (1, LENGTH):
                    continue
                if stop - start <= _SHORT_ENTRY:
                    name, values = _parse_short_entry(bytes(view[start:stop]))
                    features[name] = values.copy()
                else:
                    name, features[name] = _parse_entry(view[start:stop])
    except (IndexError, ValueError, struct.error) as error:
        raise CorruptionError(path, offset, f"the record is not a tf.train.Example: {error}") from None
    return features


def _parse_entry(entry: memoryview) -> tuple[str, Value]:
    """Return the name and the values of a map entry."""
    key: memoryview | None = None
    value: memoryview | None = None
    for number, wire, begin, end in fields(entry):
        if (number, wire) == (1, LENGTH) and key is None:
            key = entry[begin:end]
        elif (number, wire) == (2, LENGTH) and value is None:
            value = entry[begin:end]
        else:
            raise ValueError("an entry of the map is not one key and one value")
    name = "" if key is None else str(key, "utf-8")
    return name, [] if value is None else _parse_feature(value)


@functools.lru_cache(maxsize=8192)
def _parse_short_entry(entry: bytes) -> tuple[str, Value]:
    # Cached, because labels, sizes and formats recur from record to record. Callers copy the list, which is the cache's.
    return _parse_entry(memoryview(entry))


def _parse_feature(data: memoryview) -> Value:
    """Return the values of a serialized Feature."""
    decoded: Value | None = None
    for number, wire, begin, end in fields(data):
        if wire != LENGTH or number not in (BYTES_LIST, FLOAT_LIST, INT64_LIST):
            continue
        if decoded is not None:
            raise ValueError("a feature has several lists")
        body = data[begin:end]
        if number == BYTES_LIST:
            decoded = [
                bytes(body[start:stop]) for inner, kind, start, stop in fields(body) if (inner, kind) == (1, LENGTH)
            ]
        elif number == FLOAT_LIST:
            packed = b"".join(_list_pieces(body, FIXED32))
            if len(packed) % 4:
                raise ValueError(f"floats in {len(packed)} bytes")
            decoded = list(struct.unpack(f"<{len(packed) // 4}f", packed))
        else:
            decoded = _parse_ints(body)
    return [] if decoded is None else decoded


def _list_pieces(body: memoryview, single: int) -> list[memoryview]:
    """Return the values of a list: one packed piece, or a piece for each value.

    Args:
        body: the list's message.
        single: wire type of a value that is not packed.
    """
    pieces: list[memoryview] = []
    is_packed = False
    for number, wire, begin, end in fields(body):
        if number == 1 and wire in (LENGTH, single):
            if pieces and (is_packed or wire == LENGTH):
                raise ValueError("packed values in several pieces")
            is_packed = wire == LENGTH
            pieces.append(body[begin:end])
    return pieces


def _parse_ints(body: memoryview) -> list[int]:
    values: list[int] = []
    for varint in _list_pieces(body, VARINT):
        position = 0
        while position < len(varint):
            value, position = read_varint(varint, position)
            values.append(value - 2**64 if value > INT64_MAX else value)
    return values

"""Decoding of a `tf.train.Example`: everything that a protobuf parser accepts.

That is packed and unpacked lists, fields in any order, unknown fields, and for a repeated key the last entry.
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
        for number, wire, body in fields(memoryview(data)):
            if (number, wire) != (1, LENGTH):
                continue
            for inner_number, inner_wire, entry in fields(body):
                if (inner_number, inner_wire) != (1, LENGTH):
                    continue
                if len(entry) <= _SHORT_ENTRY:
                    name, values = _parse_short_entry(bytes(entry))
                    features[name] = values.copy()
                else:
                    name, features[name] = _parse_entry(entry)
    except (IndexError, ValueError, struct.error) as error:
        raise CorruptionError(path, offset, f"the record is not a tf.train.Example: {error}") from None
    return features


def _parse_entry(entry: memoryview) -> tuple[str, Value]:
    name, value = "", memoryview(b"")
    for number, wire, body in fields(entry):
        if wire == LENGTH and number == 1:
            name = str(body, "utf-8")
        elif wire == LENGTH and number == 2:
            value = body
    return name, _parse_feature(value)


@functools.lru_cache(maxsize=8192)
def _parse_short_entry(entry: bytes) -> tuple[str, Value]:
    # Cached, because labels, sizes and formats recur from record to record. Callers copy the list, which is the cache's.
    return _parse_entry(memoryview(entry))


def _parse_feature(data: memoryview) -> Value:
    result: Value = []
    for number, wire, body in fields(data):
        if wire != LENGTH:
            continue
        if number == BYTES_LIST:
            result = [bytes(item) for inner, kind, item in fields(body) if (inner, kind) == (1, LENGTH)]
        elif number == FLOAT_LIST:
            packed = b"".join(item for inner, kind, item in fields(body) if inner == 1 and kind in (LENGTH, FIXED32))
            result = list(struct.unpack(f"<{len(packed) // 4}f", packed))
        elif number == INT64_LIST:
            result = _parse_ints(body)
    return result


def _parse_ints(body: memoryview) -> list[int]:
    values: list[int] = []
    for number, wire, item in fields(body):
        if number != 1 or wire not in (LENGTH, VARINT):
            continue
        position = 0
        while position < len(item):
            value, position = read_varint(item, position)
            values.append(value - 2**64 if value > INT64_MAX else value)
    return values

"""The protocol buffer wire format of a `tf.train.Example` (tensorflow/core/example/{example,feature}.proto).

Example   { Features features = 1 }
Features  { map<string, Feature> feature = 1 }      a map entry is { string key = 1; Feature value = 2 }
Feature   { oneof { BytesList = 1, FloatList = 2, Int64List = 3 } }
BytesList { repeated bytes value = 1 }
FloatList { repeated float value = 1 [packed] }
Int64List { repeated int64 value = 1 [packed] }
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = "list[bytes] | list[int] | list[float]"

# Wire types; LENGTH is the type of bytes and messages.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
# Field numbers: of an Example, of its Features, of an entry of the map, of a Feature, and of each list.
FEATURES = 1
MAP_ENTRY = 1
KEY, VALUE = 1, 2
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
LIST_VALUE = 1
# Parsers of protocol buffers reject larger messages.
MAX_EXAMPLE_BYTES = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_START_GROUP, _END_GROUP = 3, 4
_MAX_FIELD_NUMBER = 2**29 - 1


def iterate_fields(
    data: memoryview, message_begin: int = 0, message_end: int | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, wire type, begin, end) of each field of a message.

    `begin` and `end` are the offsets in `data` of the field's content: the bytes of a varint or a fixed-size number, or the
    bytes that follow the length.

    Args:
        data: bytes with the message.
        message_begin: offset of the message.
        message_end: offset of the byte after it; None for the end of the data.

    Raises:
        ValueError: the bytes are not a message, or have a group, which no Example has, or a tag that is longer than needed, which
            TensorFlow's parser takes for an unknown field.
        IndexError: the data ends inside a tag, a size or a varint.
    """
    position = message_begin
    if message_end is None:
        message_end = len(data)
    while position < message_end:
        # Tags and sizes of one byte, the most frequent ones, are read without a call.
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = read_varint(data, position - 1)
            # The last byte of the shortest varint for a number is not 0.
            if not data[position - 1]:
                raise ValueError("a tag that is longer than needed")
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _MAX_FIELD_NUMBER:
            raise ValueError(f"field number {number}")
        if wire == LENGTH:
            size = data[position]
            position += 1
            if size >= 0x80:
                size, position = read_varint(data, position - 1)
        elif wire == VARINT:
            size = read_varint(data, position)[1] - position
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        elif wire in (_START_GROUP, _END_GROUP):
            raise ValueError("a group, which no Example has")
        else:
            raise ValueError(f"wire type {wire}")
        if size > message_end - position:
            raise ValueError(f"a field of {size} bytes in {message_end - position}")
        content_begin = position
        position += size
        yield number, wire, content_begin, position


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it.

    Raises:
        ValueError: the varint has more than 10 bytes.
        IndexError: the data ends inside it.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # As parsers of protocol buffers do, drop the bits beyond 64, which the tenth byte may have.
            return value & (2**64 - 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 10 bytes")

"""Decoding of a `tf.train.Example`, to the values that a protobuf parser gives.

Lists may be packed or not, fields come in any order, unknown fields are skipped, and the last entry of a repeated key counts.

Messages that no writer of Examples makes, and that parsers read differently, are errors: protobuf merges or skips their parts,
and TensorFlow's `parse_example` reads the first part or none. These are:

- a Feature with several lists, and a list with packed values in several pieces;
- an entry of the map with two keys, two values, or other fields;
- groups, and tags that are longer than needed;
- a `tf.train.SequenceExample` with feature lists: both parsers would read only its context.
"""

from __future__ import annotations

import functools
import struct

from tpudata.errors import CorruptionError
from tpudata.format.example.wire import (
    BYTES_LIST,
    FEATURES,
    FIXED32,
    FLOAT_LIST,
    INT64_LIST,
    INT64_MAX,
    KEY,
    LENGTH,
    LIST_VALUE,
    MAP_ENTRY,
    VALUE,
    VARINT,
    Value,
    iterate_fields,
    read_varint,
)

# Field number in a SequenceExample, whose first field, the context, looks like the features of an Example.
_FEATURE_LISTS = 2
_LIST_KINDS = {BYTES_LIST: "bytes", FLOAT_LIST: "float", INT64_LIST: "int64"}
# Longest map entry whose content is cached.
_MAX_CACHED_ENTRY_BYTES = 64


def decode_example(data: bytes, *, path: str = "tf.train.Example", offset: int = 0) -> dict[str, Value]:
    """Parse a `tf.train.Example`.

    Args:
        data: the serialized Example.
        path: file that it comes from, for messages.
        offset: byte offset of the record in that file, for messages.

    Returns:
        By name, a list of bytes, ints or floats; an empty list for a feature without values.

    Raises:
        CorruptionError: the bytes are not an Example.
    """
    features: dict[str, Value] = {}
    try:
        # Slices of a view are not copies, so an image is copied once, as a value, and not at each level.
        view = memoryview(data)
        for number, wire, begin, end in iterate_fields(view):
            if wire != LENGTH:
                continue
            if number == _FEATURE_LISTS:
                raise ValueError("it is a tf.train.SequenceExample, of which only the context would be read")
            if number != FEATURES:
                continue
            for entry_number, entry_wire, entry_begin, entry_end in iterate_fields(view, begin, end):
                if (entry_number, entry_wire) != (MAP_ENTRY, LENGTH):
                    continue
                entry = view[entry_begin:entry_end]
                # Short entries, such as labels, recur, so they are cached; the caller gets a copy of the list.
                if len(entry) <= _MAX_CACHED_ENTRY_BYTES:
                    name, values = _parse_short_entry(bytes(entry))
                    features[name] = values.copy()
                else:
                    name, features[name] = _parse_entry(entry)
    except (IndexError, ValueError, struct.error) as error:
        raise CorruptionError(path, offset, f"the record is not a tf.train.Example: {error}") from None
    return features


def read_list_kinds(data: bytes) -> dict[str, str]:
    """Return the kind of each feature's list, `bytes`, `float` or `int64`; values show it as well, except in empty lists.

    Args:
        data: a serialized Example that `decode_example` accepts. A feature without a list is not in the result.
    """
    view = memoryview(data)
    kinds: dict[str, str] = {}
    for number, wire, begin, end in iterate_fields(view):
        if (number, wire) != (FEATURES, LENGTH):
            continue
        for _, _, entry_begin, entry_end in iterate_fields(view, begin, end):
            contents = {number: (begin, end) for number, _, begin, end in iterate_fields(view, entry_begin, entry_end)}
            key_begin, key_end = contents.get(KEY, (0, 0))
            for list_number, *_ in iterate_fields(view, *contents.get(VALUE, (0, 0))):
                if list_number in _LIST_KINDS:
                    kinds[str(view[key_begin:key_end], "utf-8")] = _LIST_KINDS[list_number]
    return kinds


def _parse_entry(entry: memoryview) -> tuple[str, Value]:
    """Return the name and the values of a map entry.

    As protobuf defines it, a missing key stands for the name "", and a missing value for an empty list.

    Raises:
        ValueError, IndexError: the entry has two keys, two values or another field, or is damaged.
    """
    key: memoryview | None = None
    value: memoryview | None = None
    for number, wire, begin, end in iterate_fields(entry):
        if (number, wire) == (KEY, LENGTH) and key is None:
            key = entry[begin:end]
        elif (number, wire) == (VALUE, LENGTH) and value is None:
            value = entry[begin:end]
        else:
            raise ValueError("an entry of the map has two keys, two values or another field")
    name = "" if key is None else str(key, "utf-8")
    return name, [] if value is None else _parse_feature(value)


@functools.lru_cache(maxsize=8192)
def _parse_short_entry(entry: bytes) -> tuple[str, Value]:
    # Cached, because labels, sizes and formats recur from record to record. Callers copy the list, which is the cache's.
    return _parse_entry(memoryview(entry))


def _parse_feature(data: memoryview) -> Value:
    """Return the values of a serialized Feature.

    Raises:
        ValueError, IndexError: the Feature has several lists, or is damaged.
    """
    values: Value | None = None
    for number, wire, begin, end in iterate_fields(data):
        if wire != LENGTH or number not in (BYTES_LIST, FLOAT_LIST, INT64_LIST):
            continue
        if values is not None:
            raise ValueError("a feature has several lists")
        message = data[begin:end]
        if number == BYTES_LIST:
            values = _parse_bytes(message)
        elif number == FLOAT_LIST:
            values = _parse_floats(message)
        else:
            values = _parse_ints(message)
    return [] if values is None else values


def _parse_bytes(message: memoryview) -> list[bytes]:
    """Return the values of a BytesList message.

    Raises:
        ValueError, IndexError: the message is damaged.
    """
    return [
        bytes(message[begin:end])
        for number, wire, begin, end in iterate_fields(message)
        if (number, wire) == (LIST_VALUE, LENGTH)
    ]


def _parse_floats(message: memoryview) -> list[float]:
    """Return the values of a FloatList message.

    Raises:
        ValueError, IndexError: the bytes are not whole floats, packed values are in several pieces, or the message is damaged.
    """
    packed = b"".join(_list_pieces(message, FIXED32))
    if len(packed) % 4:
        raise ValueError(f"floats in {len(packed)} bytes")
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def _parse_ints(message: memoryview) -> list[int]:
    """Return the values of an Int64List message.

    Raises:
        ValueError, IndexError: packed values are in several pieces, or the message is damaged.
    """
    values: list[int] = []
    for varints in _list_pieces(message, VARINT):
        position = 0
        while position < len(varints):
            value, position = read_varint(varints, position)
            # A negative integer is encoded as the unsigned one of the same 64 bits.
            values.append(value - 2**64 if value > INT64_MAX else value)
    return values


def _list_pieces(message: memoryview, single_wire: int) -> list[memoryview]:
    """Return the encoded numbers of a list: all in one piece if they are packed, otherwise each in a piece.

    Args:
        message: the list's message.
        single_wire: wire type of a number that is not packed.

    Raises:
        ValueError, IndexError: packed values are in several pieces, or the message is damaged.
    """
    pieces: list[memoryview] = []
    is_packed = False
    for number, wire, begin, end in iterate_fields(message):
        if number == LIST_VALUE and wire in (LENGTH, single_wire):
            if pieces and (is_packed or wire == LENGTH):
                raise ValueError("packed values in several pieces")
            is_packed = wire == LENGTH
            pieces.append(message[begin:end])
    return pieces

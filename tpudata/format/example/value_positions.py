"""Positions of the values in a serialized `tf.train.Example`.

A field of protobuf is a tag (field number * 8 + wire type) as a varint, followed by a length and that many bytes (wire type 2), a
varint (0), or four bytes (5). In an Example:

    Example   1: Features
    Features  1: an entry of the map, repeated
    entry     1: the key, 2: Feature
    Feature   1: BytesList, 2: FloatList, 3: Int64List
    List      1: values, repeated; floats and integers also packed into one field of wire type 2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _BYTES, _FOUR_BYTES = 0, 2, 5
_KINDS = {1: "bytes", 2: "float", 3: "int64"}


class ValuePosition(NamedTuple):
    """Position of a feature's value or packed values.

    Attributes:
        kind: "bytes", "float" or "int64".
        begin: offset of the first byte.
        end: offset of the byte after the last one.
    """

    kind: str
    begin: int
    end: int


def value_places(example: bytes) -> dict[str, ValuePosition] | None:
    """Return the places of all features by name, or None if one is in several pieces: several values, or a repeated key."""
    places: dict[str, ValuePosition] = {}
    try:
        for number, kind, begin, end in _iterate_fields(example, 0, len(example)):
            if (number, kind) != (1, _BYTES):
                return None
            for entry in _iterate_fields(example, begin, end):
                place = _read_map_entry(example, entry)
                if place is None or place[0] in places:
                    return None
                places[place[0]] = place[1]
    except (IndexError, ValueError):
        return None
    return places


def _read_map_entry(example: bytes, entry: tuple[int, int, int, int]) -> tuple[str, ValuePosition] | None:
    """Return the key and the place of a feature, from its entry in the map."""
    if entry[:2] != (1, _BYTES):
        return None
    fields = list(_iterate_fields(example, *entry[2:]))
    parts = {number: (begin, end) for number, kind, begin, end in fields if kind == _BYTES}
    # Parsers merge or reject a repeated key or value.
    if len(fields) != 2 or set(parts) != {1, 2}:
        return None
    lists = list(_iterate_fields(example, *parts[2]))
    if len(lists) != 1 or lists[0][1] != _BYTES:
        return None
    values = list(_iterate_fields(example, *lists[0][2:]))
    if len(values) != 1 or values[0][0] != 1:
        return None
    _, wire, begin, end = values[0]
    kind = _KINDS.get(lists[0][0], "")
    if wire not in {"bytes": (_BYTES,), "float": (_BYTES, _FOUR_BYTES), "int64": (_BYTES, _VARINT)}.get(kind, ()):
        return None
    return example[slice(*parts[1])].decode(), ValuePosition(kind, begin, end)


def _iterate_fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, wire type, first byte, byte after the last one) of the fields of a message.

    Raises:
        IndexError: the data ends inside a field.
        ValueError: the wire type is unknown.
    """
    while place < end:
        tag, place = _read_varint(data, place)
        number, wire = divmod(tag, 8)
        if wire == _VARINT:
            stop = _read_varint(data, place)[1]
        elif wire == _FOUR_BYTES:
            stop = place + 4
        elif wire == _BYTES:
            size, place = _read_varint(data, place)
            stop = place + size
        else:
            raise ValueError(f"wire type {wire}")
        if stop > end:
            raise IndexError
        yield number, wire, place, stop
        place = stop


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a varint and the offset after it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place

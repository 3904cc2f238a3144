"""Positions of the values in a serialized `tf.train.Example`, whose wire format `tpudata.format.example.wire` has."""

from __future__ import annotations

from typing import NamedTuple

from tpudata.format.example.wire import BYTES_LIST, FIXED32, FLOAT_LIST, INT64_LIST, LENGTH, VARINT, fields

# By the field of a list, the kind of its values and the wire types that they may have.
_KINDS = {
    BYTES_LIST: ("bytes", (LENGTH,)),
    FLOAT_LIST: ("float", (LENGTH, FIXED32)),
    INT64_LIST: ("int64", (LENGTH, VARINT)),
}


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
    positions: dict[str, ValuePosition] = {}
    view = memoryview(example)
    try:
        for number, wire, begin, end in fields(view):
            if (number, wire) != (1, LENGTH):
                return None
            for entry in fields(view, begin, end):
                position = _read_map_entry(view, entry)
                if position is None or position[0] in positions:
                    return None
                positions[position[0]] = position[1]
    except (IndexError, ValueError):
        return None
    return positions


def _read_map_entry(example: memoryview, entry: tuple[int, int, int, int]) -> tuple[str, ValuePosition] | None:
    """Return the key and the place of a feature, from its entry in the map."""
    if entry[:2] != (1, LENGTH):
        return None
    halves = list(fields(example, *entry[2:]))
    parts = {number: (begin, end) for number, wire, begin, end in halves if wire == LENGTH}
    # Parsers merge or reject a repeated key or value.
    if len(halves) != 2 or set(parts) != {1, 2}:
        return None
    lists = list(fields(example, *parts[2]))
    if len(lists) != 1 or lists[0][1] != LENGTH:
        return None
    values = list(fields(example, *lists[0][2:]))
    if len(values) != 1 or values[0][0] != 1:
        return None
    _, wire, begin, end = values[0]
    kind, wires = _KINDS.get(lists[0][0], ("", ()))
    if wire not in wires:
        return None
    return str(example[slice(*parts[1])], "utf-8"), ValuePosition(kind, begin, end)

"""Positions of the values in a serialized `tf.train.Example`; `tpudata.format.example.wire` has the wire format."""

from __future__ import annotations

from typing import NamedTuple

from tpudata.format.example.wire import (
    BYTES_LIST,
    FEATURES,
    FIXED32,
    FLOAT_LIST,
    INT64_LIST,
    KEY,
    LENGTH,
    LIST_VALUE,
    MAP_ENTRY,
    VALUE,
    VARINT,
    iterate_fields,
)

# By the field number of a list, the kind of its values and the wire types that they may have.
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


def find_value_positions(example: bytes) -> dict[str, ValuePosition] | None:
    """Return the position of each feature's value, or of its packed values, by the feature's name.

    Returns None if a feature has no value, or values in several pieces, if a key is repeated, or if the bytes are not an Example or
    have fields that an Example does not have.
    """
    positions: dict[str, ValuePosition] = {}
    view = memoryview(example)
    try:
        for number, wire, features_begin, features_end in iterate_fields(view):
            if (number, wire) != (FEATURES, LENGTH):
                return None
            for entry_number, entry_wire, begin, end in iterate_fields(view, features_begin, features_end):
                if (entry_number, entry_wire) != (MAP_ENTRY, LENGTH):
                    return None
                entry = _read_map_entry(view, begin, end)
                if entry is None:
                    return None
                name, position = entry
                if name in positions:
                    return None
                positions[name] = position
    except (IndexError, ValueError):
        return None
    return positions


def _read_map_entry(example: memoryview, entry_begin: int, entry_end: int) -> tuple[str, ValuePosition] | None:
    """Return the name of a feature and the position of its value, from its entry in the map.

    Returns None unless the entry is one key and one list, and the list one value or one piece of packed values.

    Raises:
        ValueError, IndexError: the entry is damaged.
    """
    fields = list(iterate_fields(example, entry_begin, entry_end))
    ranges_by_number = {number: (begin, end) for number, wire, begin, end in fields if wire == LENGTH}
    # Parsers merge or reject a repeated key or value.
    if len(fields) != 2 or set(ranges_by_number) != {KEY, VALUE}:
        return None
    lists = list(iterate_fields(example, *ranges_by_number[VALUE]))
    if len(lists) != 1:
        return None
    ((list_number, list_wire, list_begin, list_end),) = lists
    values = list(iterate_fields(example, list_begin, list_end)) if list_wire == LENGTH else []
    if len(values) != 1:
        return None
    ((number, wire, begin, end),) = values
    # An unknown list has no allowed wire types.
    kind, wires = _KINDS.get(list_number, ("", ()))
    if number != LIST_VALUE or wire not in wires:
        return None
    return str(example[slice(*ranges_by_number[KEY])], "utf-8"), ValuePosition(kind, begin, end)

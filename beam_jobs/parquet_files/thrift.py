"""Structs of Thrift's compact protocol, in which Parquet writes its footer and the headers of its pages.

pyarrow aborts the process when it is asked about a damaged footer, so the footer is read here first. Source: Apache Thrift,
doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Struct: TypeAlias = "dict[int, Any]"

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
_INTEGERS = (4, 5, 6)
# Bytes of values of fixed size.
_FIXED = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
_MAX_DEPTH = 16
_VARINT_BITS = 64


class ThriftError(ValueError):
    """The bytes are not a Thrift struct."""


class TruncatedError(ThriftError):
    """The bytes end inside a struct."""


def read_struct(data: bytes, position: int = 0) -> tuple[Struct, int]:
    """Return a struct and the position after it.

    Args:
        data: bytes that contain the struct.
        position: offset in the bytes at which the struct begins.

    Returns:
        The values by the number of their field: integers, booleans, bytes, lists, and dicts for maps and structs; and the position.

    Raises:
        TruncatedError: the bytes end inside the struct.
        ThriftError: the bytes are not a struct.
    """
    reader = _ThriftReader(data, position)
    try:
        return reader.read_struct(depth=0), reader.position
    except IndexError:
        raise TruncatedError("it ends too soon") from None


class _ThriftReader:
    """Reader of values: each method begins at `position`, and moves it past the value."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def read_struct(self, depth: int) -> Struct:
        """Return the fields of a struct by number.

        A field's header gives the difference of its number from the one before, or 0 if the number follows, and the type of its
        value; the type of a boolean is also its value. A header of 0 ends the struct.

        Raises:
            IndexError, TruncatedError: the bytes end inside the struct.
            ThriftError: the bytes are not a struct, or it is nested too deep.
        """
        if depth > _MAX_DEPTH:
            raise ThriftError("it is nested too deep")
        values: Struct = {}
        number = 0
        while header := self._data[self.position]:
            self.position += 1
            difference, type_code = header >> 4, header & 15
            number = number + difference if difference else self._read_integer()
            values[number] = (
                type_code == _TRUE if type_code in (_TRUE, _FALSE) else self._read_value(type_code, depth + 1)
            )
        self.position += 1
        return values

    def _read_value(self, type_code: int, depth: int) -> Any:
        """Return a value of one of Thrift's types."""
        if type_code in _INTEGERS:
            return self._read_integer()
        if type_code == _BINARY:
            return self._take(self._read_varint())
        if type_code == _STRUCT:
            return self.read_struct(depth)
        if type_code in (_LIST, _SET):
            return self._read_list(depth)
        if type_code == _MAP:
            return self._read_map(depth)
        if type_code in (_TRUE, _FALSE):
            # An element of a list or a map; booleans of structs are in the headers of fields.
            return self._take(1) == b"\x01"
        if type_code in _FIXED:
            return self._take(_FIXED[type_code])
        raise ThriftError(f"unknown type {type_code} at byte {self.position}")

    def _read_list(self, depth: int) -> list[Any]:
        """Return a list or set; ThriftError if it is nested too deep."""
        # The first byte has the number of elements in its high half, and their type in the low one.
        header = self._data[self.position]
        self.position += 1
        short_count, type_code = header >> 4, header & 15
        # 15 stands for a count that follows.
        count = short_count if short_count < 15 else self._read_varint()
        self._check_count(count)
        if depth > _MAX_DEPTH:
            raise ThriftError("it is nested too deep")
        return [self._read_value(type_code, depth + 1) for _ in range(count)]

    def _read_map(self, depth: int) -> dict[Any, Any]:
        """Return a map; ThriftError if its keys are containers or structs, or it is nested too deep."""
        count = self._read_varint()
        self._check_count(count)
        if not count:
            # The byte of the types is omitted for an empty map.
            return {}
        codes = self._take(1)[0]
        key_code, value_code = codes >> 4, codes & 15
        if depth > _MAX_DEPTH or key_code in (_LIST, _SET, _MAP, _STRUCT):
            raise ThriftError("a map, which no structure of Parquet has")
        return {self._read_value(key_code, depth + 1): self._read_value(value_code, depth + 1) for _ in range(count)}

    def _check_count(self, element_count: int) -> None:
        """Raise TruncatedError if the bytes end before this number of elements, since each has at least one byte."""
        if element_count > len(self._data) - self.position:
            raise TruncatedError("it ends too soon")

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes; TruncatedError if there are fewer."""
        start, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise TruncatedError("it ends too soon")
        return self._data[start : self.position]

    def _read_varint(self) -> int:
        """Return an unsigned integer of 7 bits a byte, the lowest first."""
        data, position = self._data, self.position
        value = shift = 0
        while True:
            octet = data[position]
            position += 1
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                self.position = position
                return value
            shift += 7
            if shift >= _VARINT_BITS:
                raise ThriftError(f"a number of more than 64 bits at byte {self.position}")

    def _read_integer(self) -> int:
        """Return a signed integer in zigzag encoding, in which 0, -1, 1, -2 and so on are written as 0, 1, 2, 3."""
        zigzag = self._read_varint()
        return (zigzag >> 1) ^ -(zigzag & 1)

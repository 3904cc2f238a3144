"""Structs of Thrift's compact protocol, in which Parquet writes its footer and the headers of its pages.

pyarrow's accessors of a damaged footer abort the process, so the footer is read here first. Source: Apache Thrift,
doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Struct: TypeAlias = "dict[int, Any]"

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
_INTEGERS = (4, 5, 6)
# Bytes of values of fixed size.
_FIXED = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
_MOST_DEPTH = 16
_VARINT_BITS = 64


class ThriftError(ValueError):
    """Bytes are not a struct of Thrift."""


class CutError(ThriftError):
    """The bytes end inside a struct."""


def read_struct(data: bytes, position: int = 0) -> tuple[Struct, int]:
    """Return a struct and the position after it.

    Args:
        data: bytes that contain it.
        position: offset at which it begins.

    Returns:
        The values by number of their field: integers, booleans, bytes, lists, dicts for maps and structs; and the position.

    Raises:
        CutError: the bytes end inside it.
        ThriftError: they are not a struct.
    """
    reader = _ThriftReader(data, position)
    try:
        return reader.struct(0), reader.position
    except IndexError:
        raise CutError("it ends too soon") from None


class _ThriftReader:
    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def struct(self, depth: int) -> Struct:
        """Return the fields of a struct by number; booleans are in the field's header."""
        if depth > _MOST_DEPTH:
            raise ThriftError("it is nested too deep")
        values: Struct = {}
        data, number = self._data, 0
        while head := data[self.position]:
            self.position += 1
            number = number + (head >> 4) if head >> 4 else self._read_integer()
            kind = head & 15
            values[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._read_value(kind, depth + 1)
        self.position += 1
        return values

    def _read_value(self, kind: int, depth: int) -> Any:
        """Return a value of one of Thrift's types."""
        if kind in _INTEGERS:
            return self._read_integer()
        if kind == _BINARY:
            return self._take(self._read_varint())
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in (_LIST, _SET):
            return self._read_list(depth)
        if kind == _MAP:
            return self._read_map(depth)
        if kind in (_TRUE, _FALSE):
            # An element of a list.
            return self._take(1) == b"\x01"
        if kind in _FIXED:
            return self._take(_FIXED[kind])
        raise ThriftError(f"unknown type {kind} at byte {self.position}")

    def _read_list(self, depth: int) -> list[Any]:
        head = self._data[self.position]
        self.position += 1
        size = self._check_count(head >> 4 if head >> 4 < 15 else self._read_varint())
        if depth > _MOST_DEPTH:
            raise ThriftError("it is nested too deep")
        return [self._read_value(head & 15, depth + 1) for _ in range(size)]

    def _read_map(self, depth: int) -> dict[Any, Any]:
        """Return a map; ThriftError if its keys are containers or structs, or it is nested too deep."""
        size = self._check_count(self._read_varint())
        if not size:
            return {}
        kinds = self._take(1)[0]
        if depth > _MOST_DEPTH or kinds >> 4 in (_LIST, _SET, _MAP, _STRUCT):
            raise ThriftError("a map, which no structure of Parquet has")
        return {self._read_value(kinds >> 4, depth + 1): self._read_value(kinds & 15, depth + 1) for _ in range(size)}

    def _check_count(self, size: int) -> int:
        """Return a number of elements, each of which has a byte at least."""
        if size > len(self._data) - self.position:
            raise CutError("it ends too soon")
        return size

    def _take(self, size: int) -> bytes:
        begin, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise CutError("it ends too soon")
        return self._data[begin : self.position]

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
        value = self._read_varint()
        return value >> 1 ^ -(value & 1)

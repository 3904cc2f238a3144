"""The footer of a Parquet file: its row groups, and where their columns are.

The file ends with the footer, its length in four bytes, and PAR1, or PARE if the footer is encrypted. Field numbers are those of
apache/parquet-format, src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from beam_jobs.parquet_files.thrift import Struct, ThriftError, read_struct
from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError, SourceError
from tpudata.storage import storage_for

_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
_TAIL = struct.Struct("<I4s")
_DECRYPT = "Decrypt it, and write it again without encryption"


class ColumnChunk(NamedTuple):
    """One column of a row group.

    Attributes:
        column: name of the column in the schema, without names of fields of a struct.
        start: offset of its first page.
        size: bytes of its pages.
        values: number of its values, with nulls.
        kind: physical type, such as 6 for arrays of bytes.
        width: bytes of a value of fixed size; 0 for other types.
        is_encrypted: whether it cannot be read without a key.
    """

    column: str
    start: int
    size: int
    values: int
    kind: int
    width: int
    is_encrypted: bool


class RowGroup(NamedTuple):
    """A row group.

    Attributes:
        rows: number of its rows.
        chunks: its columns.
    """

    rows: int
    chunks: tuple[ColumnChunk, ...]

    @property
    def bytes(self) -> int:
        """Size of all columns in the file."""
        return sum(chunk.size for chunk in self.chunks)


class Footer(NamedTuple):
    """The footer of a file.

    Attributes:
        groups: its row groups.
    """

    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        """Number of rows of the file."""
        return sum(group.rows for group in self.groups)


def read_footer(path: str, size: int) -> Footer:
    """Read the footer of a Parquet file.

    Args:
        path: path of the file.
        size: its size in bytes.

    Raises:
        CorruptionError: the file is truncated or damaged: its footer cannot be read, or contradicts itself.
        SourceError: the footer is encrypted.
    """
    storage = storage_for(path)
    if size < 2 * _TAIL.size:
        raise make_damage_error(path, f"it has {size} bytes")
    tail = storage.read_range(path, size - _TAIL.size, _TAIL.size)
    length, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, b"")
    if magic == _ENCRYPTED_MAGIC:
        raise SourceError(f"{path} is an encrypted Parquet file. {_DECRYPT}.")
    if magic != _MAGIC:
        raise make_damage_error(path, f"it ends with {magic.hex(' ') or 'nothing'} (expected PAR1)")
    if length > size - _TAIL.size - len(_MAGIC):
        raise make_damage_error(path, f"its footer has {length:,} bytes, more than the file")
    data = storage.read_range(path, size - _TAIL.size - length, length)
    try:
        return _parse_footer(data, size)
    except ThriftError as error:
        raise make_damage_error(path, f"its footer cannot be read: {error}") from None


def make_damage_error(path: str, reason: str) -> CorruptionError:
    """Return the error of a file that is damaged."""
    return CorruptionError(path, 0, f"the Parquet file is cut or damaged: {reason}")


def make_encryption_error(path: str, name: str) -> SourceError:
    """Return the error of a column that cannot be read without a key."""
    return SourceError(f"{path}: column {name!r} is encrypted. {_DECRYPT}.")


# Each row group is listed by itself, and a file may have a thousand. The bytes are the key, as a file may be replaced.
@functools.lru_cache(maxsize=4)
def _parse_footer(data: bytes, size: int) -> Footer:
    """Return the row groups and columns in the Thrift bytes of a footer; ThriftError if these are damaged or inconsistent."""
    values, _ = read_struct(data)
    rows, elements = _get_field(values, 3, int), _get_field(values, 2, list)
    # The first is the root. Elements without children are columns; the others are structs.
    leaves = [element for element in elements[1:] if isinstance(element, dict) and not element.get(5)]
    groups = tuple(_group(group, leaves, size) for group in _get_field(values, 4, list))
    total = sum(group.rows for group in groups)
    if total != rows:
        raise ThriftError(f"its row groups have {count_text(total, 'row')}, and it counts {rows:,}")
    return Footer(groups)


def _group(values: Any, leaves: list[Struct], size: int) -> RowGroup:
    rows, columns = _get_field(values, 3, int), _get_field(values, 1, list)
    if rows < 0:
        raise ThriftError(f"the number of rows of a row group is negative: {rows}")
    if len(columns) != len(leaves):
        raise ThriftError(f"a row group has {count_text(len(columns), 'column')}, and its schema {len(leaves)}")
    return RowGroup(rows, tuple(_parse_chunk(column, leaf, size) for column, leaf in zip(columns, leaves, strict=True)))


def _parse_chunk(values: Any, leaf: Mapping[int, Any], size: int) -> ColumnChunk:
    """Return the place and the type of a column chunk; without the place of an encrypted one. ThriftError if it is damaged."""
    kind, width = leaf.get(1, -1), leaf.get(2) or 0
    metadata = values.get(3) if isinstance(values, dict) else None
    crypto = values.get(8) if isinstance(values, dict) else None
    if isinstance(crypto, dict):
        # With a separate key; its metadata are encrypted, too.
        path = crypto[2].get(1) if isinstance(crypto.get(2), dict) else None
        # With the key of a footer that is in plain text, they are not.
        path = path or (metadata.get(3) if isinstance(metadata, dict) else None) or [leaf.get(4, b"")]
        return ColumnChunk(_decode_name(path), 0, 0, 0, kind, width, True)
    path, start, length = _get_field(metadata, 3, list), _get_field(metadata, 9, int), _get_field(metadata, 7, int)
    first = metadata.get(11) if isinstance(metadata, dict) else None
    # Some writers put 0 for no dictionary, and Arrow's for the first page of a column without rows.
    start = min(start or first, first) if isinstance(first, int) and first > 0 else start
    if length and (start < len(_MAGIC) or length < 0 or start + length > size):
        raise ThriftError(f"a column lies outside of the file (got {length:,} bytes at byte {start:,})")
    return ColumnChunk(_decode_name(path), start, length, _get_field(metadata, 5, int), kind, width, False)


def _decode_name(path: Any) -> str:
    first = path[0] if isinstance(path, list) and path and isinstance(path[0], bytes) else b""
    return first.decode("utf-8", "surrogateescape")


def _get_field(values: Any, number: int, kind: type) -> Any:
    """Return the field of a number; ThriftError if it is absent or of another type."""
    value = values.get(number) if isinstance(values, dict) else None
    if not isinstance(value, kind):
        raise ThriftError(f"its field {number} is missing")
    return value

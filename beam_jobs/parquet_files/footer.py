"""The footer of a Parquet file: its row groups, and where their columns are.

The file ends with the footer, its length in four bytes, and PAR1, or PARE if the footer is encrypted. The constants that number
fields of Thrift structs have the names of apache/parquet-format, src/main/thrift/parquet.thrift.
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
# Length of the footer, and the magic.
_TAIL = struct.Struct("<I4s")
# FileMetaData, SchemaElement, and RowGroup.
_SCHEMA, _NUM_ROWS, _ROW_GROUPS = 2, 3, 4
_TYPE, _TYPE_LENGTH, _NAME, _NUM_CHILDREN = 1, 2, 4, 5
_COLUMNS, _GROUP_NUM_ROWS = 1, 3
# ColumnChunk, and the union in its crypto_metadata with the path of a column that has a separate key.
_META_DATA, _CRYPTO_METADATA = 3, 8
_ENCRYPTION_WITH_COLUMN_KEY, _KEY_PATH_IN_SCHEMA = 2, 1
# ColumnMetaData.
_PATH_IN_SCHEMA, _NUM_VALUES, _TOTAL_COMPRESSED_SIZE, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 3, 5, 7, 9, 11
_DECRYPT = "Decrypt it, and write it again without encryption"


class ColumnChunk(NamedTuple):
    """One column of a row group.

    Attributes:
        column: name of the column in the schema; for a field of a struct, the name of the struct.
        start: offset of its first page in the file.
        size: bytes of its pages.
        value_count: number of its values, including nulls.
        kind: physical type, such as 6 for arrays of bytes; -1 if the schema has none.
        width: bytes of a value of fixed size; 0 for other types.
        is_encrypted: whether it cannot be read without a key; then start, size and value_count are 0.
    """

    column: str
    start: int
    size: int
    value_count: int
    kind: int
    width: int
    is_encrypted: bool


class RowGroup(NamedTuple):
    """A row group.

    Attributes:
        row_count: number of its rows.
        chunks: a chunk of each column.
    """

    row_count: int
    chunks: tuple[ColumnChunk, ...]

    @property
    def bytes(self) -> int:
        """Size of the group's columns in the file."""
        return sum(chunk.size for chunk in self.chunks)


class Footer(NamedTuple):
    """The footer of a file.

    Attributes:
        groups: row groups of the file, in order.
    """

    groups: tuple[RowGroup, ...]

    @property
    def row_count(self) -> int:
        """Number of rows of the file."""
        return sum(group.row_count for group in self.groups)


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
    # Even an empty table takes 4 bytes of PAR1, more than 4 of a footer, and the tail of 8.
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
    """Return the error of a damaged file."""
    return CorruptionError(path, offset=0, reason=f"the Parquet file is cut or damaged: {reason}")


def make_encryption_error(path: str, name: str) -> SourceError:
    """Return the error of a column that cannot be read without a key."""
    return SourceError(f"{path}: column {name!r} is encrypted. {_DECRYPT}.")


# Cached, since each row group is listed separately, and a file may have a thousand. The key is the bytes: a file may be replaced.
@functools.lru_cache(maxsize=4)
def _parse_footer(data: bytes, file_size: int) -> Footer:
    """Return the row groups and columns in the Thrift bytes of a footer; ThriftError if these are damaged or inconsistent.

    `file_size` is the size of the file in bytes, in which all columns must lie.
    """
    metadata, _ = read_struct(data)
    row_count = _get_field(metadata, _NUM_ROWS, int)
    elements = _get_field(metadata, _SCHEMA, list)
    # The first is the root. Elements without children are columns; the others are structs.
    leaves = [element for element in elements[1:] if isinstance(element, dict) and not element.get(_NUM_CHILDREN)]
    groups = tuple(_parse_group(group, leaves, file_size) for group in _get_field(metadata, _ROW_GROUPS, list))
    total = sum(group.row_count for group in groups)
    if total != row_count:
        raise ThriftError(f"its row groups have {count_text(total, 'row')}, and it counts {row_count:,}")
    return Footer(groups)


def _parse_group(group: Any, leaves: list[Struct], file_size: int) -> RowGroup:
    """Return a row group, with a chunk for each leaf of the schema, in a file of `file_size` bytes; ThriftError if damaged."""
    row_count = _get_field(group, _GROUP_NUM_ROWS, int)
    columns = _get_field(group, _COLUMNS, list)
    if row_count < 0:
        raise ThriftError(f"the number of rows of a row group is negative: {row_count}")
    if len(columns) != len(leaves):
        raise ThriftError(f"a row group has {count_text(len(columns), 'column')}, and its schema {len(leaves)}")
    return RowGroup(
        row_count, tuple(_parse_chunk(column, leaf, file_size) for column, leaf in zip(columns, leaves, strict=True))
    )


def _parse_chunk(chunk: Any, leaf: Mapping[int, Any], file_size: int) -> ColumnChunk:
    """Return a column chunk of a file of `file_size` bytes, without a position if it is encrypted; ThriftError if it is damaged."""
    kind, width = leaf.get(_TYPE, -1), leaf.get(_TYPE_LENGTH) or 0
    metadata = chunk.get(_META_DATA) if isinstance(chunk, dict) else None
    crypto = chunk.get(_CRYPTO_METADATA) if isinstance(chunk, dict) else None
    if isinstance(crypto, dict):
        column_key = crypto.get(_ENCRYPTION_WITH_COLUMN_KEY)
        # With a separate key the metadata is also encrypted; with the key of a footer in plain text it is not.
        schema_path = column_key.get(_KEY_PATH_IN_SCHEMA) if isinstance(column_key, dict) else None
        if not schema_path and isinstance(metadata, dict):
            schema_path = metadata.get(_PATH_IN_SCHEMA)
        schema_path = schema_path or [leaf.get(_NAME, b"")]
        return ColumnChunk(
            _decode_name(schema_path), start=0, size=0, value_count=0, kind=kind, width=width, is_encrypted=True
        )
    schema_path = _get_field(metadata, _PATH_IN_SCHEMA, list)
    value_count = _get_field(metadata, _NUM_VALUES, int)
    start = _get_field(metadata, _DATA_PAGE_OFFSET, int)
    length = _get_field(metadata, _TOTAL_COMPRESSED_SIZE, int)
    dictionary_start = metadata.get(_DICTIONARY_PAGE_OFFSET) if isinstance(metadata, dict) else None
    # Some writers put 0 for no dictionary; Arrow's puts 0 for the data pages of a column without rows.
    if isinstance(dictionary_start, int) and dictionary_start > 0:
        start = min(start or dictionary_start, dictionary_start)
    if length and (start < len(_MAGIC) or length < 0 or start + length > file_size):
        raise ThriftError(f"a column lies outside of the file (got {length:,} bytes at byte {start:,})")
    return ColumnChunk(_decode_name(schema_path), start, length, value_count, kind, width, is_encrypted=False)


def _decode_name(schema_path: Any) -> str:
    """Return the first name in a path of the schema; an empty string if the path is invalid."""
    is_path = isinstance(schema_path, list) and schema_path and isinstance(schema_path[0], bytes)
    name = schema_path[0] if is_path else b""
    return name.decode("utf-8", "surrogateescape")


def _get_field(fields: Any, field_number: int, field_type: type) -> Any:
    """Return a field of a struct by its number; ThriftError if it is missing or of another type."""
    value = fields.get(field_number) if isinstance(fields, dict) else None
    if not isinstance(value, field_type):
        raise ThriftError(f"its field {field_number} is missing")
    return value

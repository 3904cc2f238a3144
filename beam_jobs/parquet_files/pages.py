"""The headers of a column's pages, from which the memory that reading takes is estimated before the column is read.

A page of a few bytes may unpack to 2 GB, and a column of a few bytes may repeat one value of a dictionary a billion times.
Constants are numbers from apache/parquet-format, src/main/thrift/parquet.thrift; constants of fields have the fields' names.
"""

from __future__ import annotations

from typing import Any

from beam_jobs.parquet_files.footer import ColumnChunk, make_damage_error
from beam_jobs.parquet_files.thrift import Struct, ThriftError, TruncatedError, read_struct
from beam_jobs.references.reading import MAX_INPUT_BYTES
from tpudata.errors import CorruptionError, SourceError
from tpudata.storage import is_remote, storage_for

# Bytes to read for a header. From an object store they include some pages, since a request takes as long as reading some MB.
_HEADER_BYTES, _REMOTE_HEADER_BYTES = 1 << 13, 1 << 22
# Headers may contain a smallest and a largest value. pyarrow has the same limit.
_MAX_HEADER_BYTES = 1 << 24
# Kinds of pages, and physical types.
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_BYTE_ARRAY, _FIXED = 6, 7
# Fields of PageHeader, its fields that hold a DataPageHeader or DataPageHeaderV2, and fields of these two.
_TYPE, _UNCOMPRESSED_PAGE_SIZE, _COMPRESSED_PAGE_SIZE = 1, 2, 3
_DATA_PAGE_HEADER, _DATA_PAGE_HEADER_V2 = 5, 8
_NUM_VALUES, _ENCODING, _ENCODING_V2 = 1, 2, 4
# Encodings that store each value's bytes in the page (PLAIN, DELTA_LENGTH_BYTE_ARRAY), and those that refer to a dictionary.
_PLAIN = (0, 6)
_DICTIONARY_ENCODINGS = (2, 8)
# Maximum size in memory of a number or a boolean, in bytes.
_NUMBER_BYTES = 16
# Bytes of a large page, and its largest plausible compression ratio: text reaches 10, and snappy and LZ4 at most 255.
_LARGE_PAGE_BYTES, _MAX_RATIO = 1 << 26, 256


def estimate_value_bytes(path: str, chunk: ColumnChunk) -> int:
    """Return the size in bytes of a column's value in memory: its width if fixed, else an average or a bound for the worst page.

    Args:
        path: path of the file.
        chunk: a column of a row group that is not encrypted.

    Raises:
        CorruptionError: the header of a page is damaged, or is not in the file.
        SourceError: a page is too large to be unpacked.
    """
    # 0 if values vary in size: then `max_value_bytes` becomes the estimate of the worst page.
    fixed_bytes = _find_fixed_bytes(chunk)
    max_value_bytes = fixed_bytes
    dictionary_bytes = read_value_count = 0
    headers = _HeaderReader(path, chunk)
    # The headers are read even if the width is fixed, since each page's size is checked.
    position, end = chunk.start, chunk.start + chunk.size
    while position < end and read_value_count < chunk.value_count:
        header, page_start = headers.read(position)
        kind, size, packed_size = (
            header.get(field) for field in (_TYPE, _UNCOMPRESSED_PAGE_SIZE, _COMPRESSED_PAGE_SIZE)
        )
        if not isinstance(size, int) or not isinstance(packed_size, int) or size < 0 or packed_size < 0:
            raise make_damage_error(
                path, f"column {chunk.column!r}: the header of the page at byte {position} has no sizes"
            )
        if size > MAX_INPUT_BYTES or (size > _LARGE_PAGE_BYTES and size > packed_size * _MAX_RATIO):
            raise SourceError(
                f"{path}: a page of column {chunk.column!r} is too large (got {size:,} bytes packed to {packed_size:,}, expected at"
                f" most {MAX_INPUT_BYTES:,}, and {_LARGE_PAGE_BYTES:,} of what is packed to less than 1/{_MAX_RATIO})."
                " Write the file with smaller pages or row groups."
            )
        if kind == _DICTIONARY:
            dictionary_bytes = size
        elif kind in (_DATA, _DATA_V2):
            value_count, encoding = _parse_data_header(header, kind)
            read_value_count += value_count
            if not fixed_bytes:
                max_value_bytes = max(max_value_bytes, _estimate_bytes(size, value_count, encoding, dictionary_bytes))
        position = page_start + packed_size
    return max_value_bytes


def _find_fixed_bytes(chunk: ColumnChunk) -> int:
    """Return the size in bytes of each value of a column; for numbers and booleans the maximum, 16; 0 if sizes vary."""
    if chunk.kind == _BYTE_ARRAY:
        return 0
    return chunk.width if chunk.kind == _FIXED else _NUMBER_BYTES


def _estimate_bytes(page_bytes: int, value_count: int, encoding: Any, dictionary_bytes: int) -> int:
    """Return the size in bytes of a value of varying length in a data page: the average if values are plain, otherwise a bound.

    Args:
        page_bytes: unpacked bytes of the page.
        value_count: number of values in the page.
        encoding: Parquet's number of the encoding of the values.
        dictionary_bytes: unpacked bytes of the column's dictionary; 0 if it has none.
    """
    if encoding in _DICTIONARY_ENCODINGS:
        # All values may be the longest of the dictionary.
        return dictionary_bytes
    # With any other encoding, such as prefix compression, each value may be as long as the page.
    return -(-page_bytes // value_count) if encoding in _PLAIN and value_count > 0 else page_bytes


def _parse_data_header(header: Struct, kind: int) -> tuple[int, Any]:
    """Return the number of values of a data page, 0 if that is invalid, and the encoding of the values."""
    is_v2 = kind == _DATA_V2
    data_header = header.get(_DATA_PAGE_HEADER_V2 if is_v2 else _DATA_PAGE_HEADER)
    data_header = data_header if isinstance(data_header, dict) else {}
    value_count = data_header.get(_NUM_VALUES)
    encoding = data_header.get(_ENCODING_V2 if is_v2 else _ENCODING)
    return value_count if isinstance(value_count, int) and value_count > 0 else 0, encoding


class _HeaderReader:
    """Reader of the headers of a column's pages."""

    def __init__(self, path: str, chunk: ColumnChunk) -> None:
        self._path = path
        self._chunk = chunk
        # Number of bytes of a read, unless a header is longer.
        self._step = _REMOTE_HEADER_BYTES if is_remote(path) else _HEADER_BYTES
        # Bytes of the file from byte `_start` on.
        self._data, self._start = b"", 0

    def read(self, position: int) -> tuple[Struct, int]:
        """Return the header of the page at an offset in the file, and the offset after it; CorruptionError if it is damaged."""
        length = self._step
        while True:
            if not self._start <= position < self._start + len(self._data):
                self._data = storage_for(self._path).read_range(self._path, position, length)
                self._start = position
            try:
                header, header_end = read_struct(self._data, position - self._start)
                return header, self._start + header_end
            except TruncatedError as error:
                # The data ends inside the header: read again from the header's start or, if the data began there, read more.
                if self._start == position:
                    if len(self._data) < length or length >= _MAX_HEADER_BYTES:
                        # The file ends inside the header, or the header is longer than any valid one.
                        raise self._make_error(position, error) from None
                    length *= 16
                self._data = b""
            except ThriftError as error:
                raise self._make_error(position, error) from None

    def _make_error(self, position: int, error: ThriftError) -> CorruptionError:
        return make_damage_error(
            self._path,
            f"column {self._chunk.column!r}: the header of the page at byte {position} cannot be read: {error}",
        )

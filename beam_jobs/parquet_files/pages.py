"""The pages of a column, by their headers: the memory that reading them takes, before it is taken.

A page of a few bytes may unpack to 2 GB, and a column of a few bytes may repeat one value of a dictionary a billion times.
"""

from __future__ import annotations

from typing import Any

from beam_jobs.parquet_files.footer import ColumnChunk, make_damage_error
from beam_jobs.parquet_files.thrift import CutError, Struct, ThriftError, read_struct
from beam_jobs.references.reading import MOST_INPUT_BYTES
from tpudata.errors import SourceError
from tpudata.storage import is_remote, storage_for

# Bytes that are read for a header. From an object store some pages come with it, as a request takes as long as some MB.
_HEAD_BYTES, _REMOTE_HEAD_BYTES = 1 << 13, 1 << 22
# Headers may contain a smallest and a largest value. pyarrow's limit.
_MOST_HEAD_BYTES = 1 << 24
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_BYTE_ARRAY, _FIXED = 6, 7
# Encodings by which a value takes its own bytes of the page, and those that refer to a dictionary.
_PLAIN = (0, 6)
_DICTIONARY_ENCODINGS = (2, 8)
_NUMBER_BYTES = 16
# Bytes of a large page, and its largest plausible compression ratio: text reaches 10, and snappy and LZ4 at most 255.
_LARGE_PAGE_BYTES, _MOST_RATIO = 1 << 26, 256


def value_bytes(path: str, chunk: ColumnChunk) -> int:
    """Return the bytes that a value of a column takes in memory: on average in its largest page, or at most.

    Args:
        path: path of the file.
        chunk: a column of a row group that is not encrypted.

    Raises:
        CorruptionError: the header of a page is damaged, or is not in the file.
        SourceError: a page is too large to be unpacked.
    """
    fixed = _NUMBER_BYTES if chunk.kind not in (_BYTE_ARRAY, _FIXED) else chunk.width if chunk.kind == _FIXED else 0
    largest, dictionary, values_read = fixed, 0, 0
    heads = _Heads(path, chunk)
    position, end = chunk.start, chunk.start + chunk.size
    while position < end and values_read < chunk.values:
        head, after = heads.read(position)
        kind, size, packed = (head.get(number) for number in (1, 2, 3))
        if not isinstance(size, int) or not isinstance(packed, int) or size < 0 or packed < 0:
            raise make_damage_error(
                path, f"column {chunk.column!r}: the header of the page at byte {position} has no sizes"
            )
        if size > MOST_INPUT_BYTES or (size > _LARGE_PAGE_BYTES and size > packed * _MOST_RATIO):
            raise SourceError(
                f"{path}: a page of column {chunk.column!r} is too large (got {size:,} bytes packed to {packed:,}, expected at"
                f" most {MOST_INPUT_BYTES:,}, and {_LARGE_PAGE_BYTES:,} of what is packed to less than 1/{_MOST_RATIO})."
                " Write the file with smaller pages or row groups."
            )
        if kind == _DICTIONARY:
            dictionary = size
        elif kind in (_DATA, _DATA_V2):
            values, encoding = _parse_values(head, kind)
            values_read += values
            if not fixed:
                largest = max(largest, _estimate_bytes(size, values, encoding, dictionary))
        position = after + packed
    return largest


def _estimate_bytes(size: int, values: int, encoding: Any, dictionary: int) -> int:
    if encoding in _DICTIONARY_ENCODINGS:
        return dictionary
    # With any other encoding, such as prefix compression, each value may be as long as the page.
    return -(-size // values) if encoding in _PLAIN and values > 0 else size


def _parse_values(head: Struct, kind: int) -> tuple[int, Any]:
    """Return the number of values of a data page, and their encoding."""
    inner = head.get(5 if kind == _DATA else 8)
    inner = inner if isinstance(inner, dict) else {}
    values = inner.get(1)
    return values if isinstance(values, int) and values > 0 else 0, inner.get(2 if kind == _DATA else 4)


class _Heads:
    """Reader of the headers of a column's pages."""

    def __init__(self, path: str, chunk: ColumnChunk) -> None:
        self._path = path
        self._chunk = chunk
        self._step = _REMOTE_HEAD_BYTES if is_remote(path) else _HEAD_BYTES
        self._held, self._start = b"", 0

    def read(self, position: int) -> tuple[Struct, int]:
        """Return the header of the page at a place of the file, and the place after it."""
        length = self._step
        while True:
            if not self._start <= position < self._start + len(self._held):
                self._held, self._start = storage_for(self._path).read_range(self._path, position, length), position
            try:
                head, after = read_struct(self._held, position - self._start)
                return head, self._start + after
            except CutError as error:
                if self._start == position:
                    if len(self._held) < length or length >= _MOST_HEAD_BYTES:
                        raise self._describe_damage(position, error) from None
                    length *= 16
                self._held = b""
            except ThriftError as error:
                raise self._describe_damage(position, error) from None

    def _describe_damage(self, position: int, error: ThriftError) -> Exception:
        return make_damage_error(
            self._path,
            f"column {self._chunk.column!r}: the header of the page at byte {position} cannot be read: {error}",
        )

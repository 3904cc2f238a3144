"""Rows of Parquet files, which are read by row groups.

A row has no contiguous bytes in the file, so its fields travel as a JSON object.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet

from beam_jobs.references.ranged_file import open_ranged
from beam_jobs.text_files.options import TextOptions
from tpudata.console.nearest import suggestion
from tpudata.errors import CorruptionError, SourceError, UsageError

# Rows that are in memory at the same time, in addition to the pages of the row group.
_BATCH_ROWS = 256


class RowGroups(NamedTuple):
    """The row groups of a file.

    Attributes:
        rows: number of rows of each.
        bytes: size of each in the file.
        names: the file's columns.
    """

    rows: tuple[int, ...]
    bytes: tuple[int, ...]
    names: tuple[str, ...]


def row_groups(path: str, size: int, options: TextOptions) -> RowGroups:
    """Read the footer of a Parquet file.

    Args:
        path: path of the file.
        size: size of the file in bytes.
        options: options with the required fields.

    Raises:
        CorruptionError: the file is cut or damaged.
        SourceError: a required field appears twice.
        UsageError: a required field is missing.
    """
    with _opened(path, size) as file:
        names = file.schema_arrow.names
        for field in options.fields:
            if field.name not in names:
                raise UsageError(
                    f"{path} has no column {field.name!r}; it has {', '.join(map(repr, names))}"
                    f"{suggestion(field.name, names)}. Name columns with --field."
                )
            if names.count(field.name) > 1:
                raise SourceError(f"{path}: column {field.name!r} appears twice. Rename one.")
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        sizes = tuple(sum(group.column(n).total_compressed_size for n in range(group.num_columns)) for group in groups)
        return RowGroups(tuple(group.num_rows for group in groups), sizes, tuple(names))


def group_rows(path: str, size: int, group: int, first: int, options: TextOptions) -> Iterator[bytes]:
    """Yield the rows of one row group, each as a JSON object of `options.fields`.

    Args:
        path: path of the file.
        size: size of the file in bytes.
        group: number of the row group.
        first: number of its first row in the file, for messages.
        options: options with the fields.

    Raises:
        CorruptionError: the file is cut or damaged; names the column, if known.
        SourceError: a value is of an unsupported type; names column and row.
    """
    names = [field.name for field in options.fields]
    with _opened(path, size) as file:
        batches = _batches(file, group, names)
        for batch in batches:
            columns = [_values(batch.column(name), name, first) for name in names]
            for number, values in enumerate(zip(*columns, strict=True), first):
                yield _row(dict(zip(names, values, strict=True)), number)
            first += batch.num_rows


@contextlib.contextmanager
def _opened(path: str, size: int) -> Iterator[Any]:
    """Yield a Parquet file; errors of pyarrow name the file. Read through `open_ranged`, local or gs://."""
    with open_ranged(path, size) as raw:
        try:
            yield parquet.ParquetFile(raw, pre_buffer=False)
        except _UnreadableError as error:
            raise SourceError(f"{path}: {error}") from None
        except _DamagedColumnError as error:
            raise CorruptionError(path, 0, f"the Parquet file is cut or damaged: {error}") from None
        except MemoryError:  # Arrow's is an ArrowException, too.
            raise
        except (pyarrow.ArrowException, OSError) as error:
            raise CorruptionError(path, 0, f"the Parquet file is cut or damaged: {_one_line(error)}") from None


class _UnreadableError(TypeError):
    """A value of an unsupported type."""


class _DamagedColumnError(ValueError):
    """A column that pyarrow cannot read."""


def _batches(file: Any, group: int, names: list[str]) -> Iterator[Any]:
    try:
        yield from file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names, use_threads=False)
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError):
        # pyarrow does not name the column, so each is read again.
        for name in names:
            try:
                for _ in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False):
                    pass
            except (pyarrow.ArrowException, OSError) as error:
                raise _DamagedColumnError(f"column {name!r}: {_one_line(error)}") from None
        raise


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _values(column: Any, name: str, first: int) -> list[Any]:
    """Return the values of a column; `first` is the number of its first row."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        values = [_value(scalar, name, row) for row, scalar in enumerate(column, first)]
    return values


def _value(scalar: Any, name: str, row: int) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as error:
        # Such as a time that does not fit Python's types.
        raise _UnreadableError(
            f"column {name!r}, row {row}: a value cannot be read: {_one_line(error)}. Store it as a string or number."
        ) from None


def _row(values: dict[str, Any], row: int) -> bytes:
    try:
        return json.dumps(values, ensure_ascii=False, default=_default).encode()
    except _UnreadableError:
        for name, value in values.items():
            try:
                json.dumps(value, default=_default)
            except _UnreadableError as error:
                raise _UnreadableError(f"column {name!r}, row {row}: {error}") from None
        raise


def _default(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise _UnreadableError("its bytes are not UTF-8. Store it as strings.") from None
    raise _UnreadableError(
        f"unsupported type (got {type(value).__name__}, expected strings or numbers). Store it as a string."
    )

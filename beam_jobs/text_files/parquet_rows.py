"""Rows of Parquet files, which are read by row groups.

A row has no contiguous bytes in the file, so its fields travel as a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from pyarrow import compute, types  # type: ignore[import-untyped]

from beam_jobs.parquet_files.reader import ParquetReader, open_parquet
from beam_jobs.parquet_files.values import (
    NOT_UTF8,
    UnreadableValue,
    convert_column,
    is_list,
    is_supported_type,
)
from beam_jobs.text_files.fields import TEXT_KINDS
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.spans.lines import Span
from beam_jobs.values.column_kinds import LIST_KINDS
from tpudata.console.nearest import did_you_mean
from tpudata.errors import SourceError, UsageError

# Rows that are in memory at the same time, if these are not more than 64 MB, in addition to the pages of the row group.
_BATCH_ROWS = 256
_FIXES = {NOT_UTF8: ". Store it as UTF-8, or pass --invalid-utf8=replace"}
# json.dumps makes a new encoder for each row.
# Dates in the messages of a chat become text.
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)
# Takes the number of a row that cannot be read, and the reason.
RejectRow: TypeAlias = Callable[[int, str], None]


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
        CorruptionError: the file is truncated or damaged.
        SourceError: a required field appears twice, or is of a type that is neither text nor number; or the file is encrypted.
        UsageError: a required field is missing.
    """
    with open_parquet(path, size) as file:
        _check_fields(file, path, options)
        groups, names = file.footer.groups, tuple(file.schema.names)
        return RowGroups(tuple(group.rows for group in groups), tuple(group.bytes for group in groups), names)


def group_rows(path: str, size: int, group: int, first: int, options: TextOptions, reject: RejectRow) -> Iterator[Span]:
    """Yield the rows of one row group, each as a JSON object of `options.columns`; its number stands for its offset.

    Args:
        path: path of the file.
        size: size of the file in bytes.
        group: index of the row group.
        first: index of its first row in the file.
        options: options with the fields.
        reject: called with a row of which a value cannot be read. If it returns, the row is omitted.

    Raises:
        CorruptionError: the file is truncated or damaged; names the column, if known.
        SourceError: a column cannot be read at all.
    """
    names = [field.name for field in options.columns]
    with open_parquet(path, size) as file:
        for batch in file.read_batches(group, names, _BATCH_ROWS):
            columns = [
                convert_column(
                    _read_column(batch, field.name),
                    as_text=field.kind in TEXT_KINDS,
                    replace_invalid=options.replace_invalid,
                )
                for field in options.columns
            ]
            for index, values in enumerate(zip(*columns, strict=True), first):
                if UnreadableValue in map(type, values):
                    reject(index, _find_problem(names, values))
                else:
                    yield _encode_row(index, dict(zip(names, values, strict=True)), options.document_bytes)
            first += batch.num_rows


def check_group(path: str, size: int, group: int, options: TextOptions) -> None:
    """Read a row group without its values; raise as `group_rows` if its columns are damaged."""
    with open_parquet(path, size) as file:
        file.check(group, [field.name for field in options.columns], _BATCH_ROWS)


def _check_fields(file: ParquetReader, path: str, options: TextOptions) -> None:
    """Raise UsageError if the column of a field is missing, SourceError if it is repeated or of an unsupported type."""
    names = file.schema.names
    for field in options.columns:
        kind = _find_type(file.schema, field.name)
        if kind is None:
            columns = [
                *names,
                *(f"{column.name}.{inner.name}" for column in file.schema for inner in _list_fields(column.type)),
            ]
            raise UsageError(
                f"{path} has no column {field.name!r}; it has {', '.join(map(repr, columns))}."
                f"{did_you_mean(field.name, columns)} Name columns with --field."
            )
        if names.count(field.name) > 1:
            raise SourceError(f"{path}: column {field.name!r} appears twice. Rename one.")
        takes_lists = field.kind in LIST_KINDS or field.name == options.labels.label_field
        if not is_supported_type(kind) and field.name not in options.chat and not (takes_lists and is_list(kind)):
            raise SourceError(
                f"{path}: column {field.name!r} has an unsupported type (got {kind}, expected text, numbers, dates or times)."
                " Store it as a string."
            )


def _find_type(schema: Any, name: str) -> Any:
    """Return the type of a column, or of the field of a struct that a name with dots stands for; None if there is none."""
    if name in schema.names:
        return schema.field(schema.names.index(name)).type
    column, *inner = name.split(".")
    kind = schema.field(column).type if schema.names.count(column) == 1 else None
    for inner_name in inner:
        kind = next((field.type for field in _list_fields(kind) if field.name == inner_name), None)
    return kind


def _list_fields(kind: Any) -> Iterable[Any]:
    return kind if kind is not None and types.is_struct(kind) else ()


def _read_column(batch: Any, name: str) -> Any:
    """Return the column of a name, as `_find_type` finds it; a null struct has null fields."""
    if name in batch.schema.names:
        return batch.column(name)
    column, *inner = name.split(".")
    return compute.struct_field(batch.column(column), inner)


def _find_problem(names: list[str], values: tuple[Any, ...]) -> str:
    return next(
        f"{value.problem}: column {name!r}, {value.detail}{_FIXES.get(value.problem, '')}"
        for name, value in zip(names, values, strict=True)
        if isinstance(value, UnreadableValue)
    )


def _encode_row(index: int, values: dict[str, Any], limit: int) -> Span:
    """Return a row as JSON, whose index is its offset; without data if its texts exceed the limit."""
    size = 0
    for value in values.values():
        if isinstance(value, str):
            size += len(value)
    if size > limit:
        # As JSON, it may be six times as large.
        return Span(index, size, b"")
    data = _JSON.encode(values).encode()
    return Span(index, len(data), data)

"""Rows of Parquet files, which are read one row group at a time.

A row has no contiguous bytes in the file, so its fields become a JSON object.
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
    is_supported_list,
    is_supported_type,
)
from beam_jobs.text_files.fields import TEXT_KINDS
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.spans.lines import Span
from beam_jobs.values.column_kinds import LIST_KINDS
from tpudata.console.nearest import did_you_mean
from tpudata.errors import SourceError, UsageError

# Rows that are in memory at the same time, besides the pages of their row group; fewer if they take more than 64 MB.
_BATCH_ROWS = 256
_FIXES = {NOT_UTF8: ". Store it as UTF-8, or pass --invalid-utf8=replace"}
# One encoder: json.dumps would make a new one for each row. Dates in the messages of a chat become strings.
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)
# Takes the number of a row that cannot be read, and the reason.
RejectRow: TypeAlias = Callable[[int, str], None]


class RowGroups(NamedTuple):
    """The row groups of a file.

    Attributes:
        row_counts: number of rows of each group.
        sizes: bytes of each group in the file.
        names: names of the file's columns.
    """

    row_counts: tuple[int, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...]


def read_row_groups(path: str, size: int, options: TextOptions) -> RowGroups:
    """Return the row groups of a Parquet file, from its footer.

    Args:
        path: path of the file.
        size: size of the file in bytes.
        options: options with the required fields.

    Raises:
        CorruptionError: the file is truncated or damaged.
        SourceError: a required field appears twice, or has an unsupported type; or the file is encrypted.
        UsageError: a required field is missing.
    """
    with open_parquet(path, size) as file:
        _check_fields(file, path, options)
        groups = file.footer.groups
        names = tuple(file.schema.names)
        return RowGroups(tuple(group.row_count for group in groups), tuple(group.bytes for group in groups), names)


def read_group_rows(
    path: str, size: int, group_index: int, first_row: int, options: TextOptions, reject: RejectRow
) -> Iterator[Span]:
    """Yield the rows of one row group, each as a JSON object of `options.columns`, with its number in the file as its offset.

    Args:
        path: path of the file.
        size: size of the file in bytes.
        group_index: index of the row group.
        first_row: index of its first row in the file.
        options: options with the fields.
        reject: called with the number of a row with an unreadable value, and the reason. If it returns, the row is omitted.

    Raises:
        CorruptionError: the file is truncated or damaged; the message names the column, if known.
        SourceError: a column cannot be read at all.
    """
    names = [field.name for field in options.columns]
    batch_first_row = first_row
    with open_parquet(path, size) as file:
        for batch in file.read_batches(group_index, names, _BATCH_ROWS):
            columns = [
                convert_column(
                    _read_column(batch, field.name),
                    as_text=field.kind in TEXT_KINDS,
                    replace_invalid=options.replace_invalid,
                )
                for field in options.columns
            ]
            for row, values in enumerate(zip(*columns, strict=True), batch_first_row):
                if UnreadableValue in map(type, values):
                    reject(row, _describe_problem(names, values))
                else:
                    yield _encode_row(row, dict(zip(names, values, strict=True)), options.document_bytes)
            batch_first_row += batch.num_rows


def check_group(path: str, size: int, group_index: int, options: TextOptions) -> None:
    """Read a row group without making its values, only for the errors of damaged columns.

    Args:
        path: path of the file.
        size: size of the file in bytes.
        group_index: index of the row group.
        options: options with the fields.

    Raises:
        CorruptionError: the file is truncated or damaged; the message names the column, if known.
        SourceError: a column cannot be read at all.
    """
    with open_parquet(path, size) as file:
        file.check(group_index, [field.name for field in options.columns], _BATCH_ROWS)


def _check_fields(file: ParquetReader, path: str, options: TextOptions) -> None:
    """Raise UsageError if the column of a field is missing, SourceError if it is repeated or of an unsupported type."""
    names = file.schema.names
    for field in options.columns:
        arrow_type = _find_type(file.schema, field.name)
        if arrow_type is None:
            columns = [
                *names,
                *(
                    f"{column.name}.{inner.name}"
                    for column in file.schema
                    for inner in _list_struct_fields(column.type)
                ),
            ]
            raise UsageError(
                f"{path} has no column {field.name!r}; it has {', '.join(map(repr, columns))}."
                f"{did_you_mean(field.name, columns)} Name columns with --field."
            )
        if names.count(field.name) > 1:
            raise SourceError(f"{path}: column {field.name!r} appears twice. Rename one.")
        takes_lists = field.kind in LIST_KINDS or field.name == options.labels.label_field
        is_read = is_supported_type(arrow_type) or (takes_lists and is_supported_list(arrow_type))
        # The messages of a chat may have any type here; each is checked when it is read.
        if not is_read and field.name not in options.chat:
            raise SourceError(
                f"{path}: column {field.name!r} has an unsupported type (got {arrow_type}, expected text, numbers, dates or times)."
                " Store it as a string."
            )


def _find_type(schema: Any, name: str) -> Any:
    """Return the Arrow type of a column, or of the field of a struct that a dotted name refers to; None if there is none."""
    if name in schema.names:
        return schema.field(schema.names.index(name)).type
    column, *inner = name.split(".")
    arrow_type = schema.field(column).type if schema.names.count(column) == 1 else None
    for inner_name in inner:
        arrow_type = next((field.type for field in _list_struct_fields(arrow_type) if field.name == inner_name), None)
    return arrow_type


def _list_struct_fields(arrow_type: Any) -> Iterable[Any]:
    """Return the fields of a struct; empty for another type or None."""
    return arrow_type if arrow_type is not None and types.is_struct(arrow_type) else ()


def _read_column(batch: Any, name: str) -> Any:
    """Return a column by name, or by a dotted name the field of a struct; fields of a null struct are null."""
    if name in batch.schema.names:
        return batch.column(name)
    column, *inner = name.split(".")
    return compute.struct_field(batch.column(column), inner)


def _describe_problem(names: list[str], values: tuple[Any, ...]) -> str:
    """Return why the first unreadable value of a row cannot be read, with its column and the fix."""
    return next(
        f"{value.problem}: column {name!r}, {value.detail}{_FIXES.get(value.problem, '')}"
        for name, value in zip(names, values, strict=True)
        if isinstance(value, UnreadableValue)
    )


def _encode_row(row: int, values: dict[str, Any], max_bytes: int) -> Span:
    """Return a row as JSON, with its number as its offset; without data if its strings have more than `max_bytes` characters."""
    strings = [value for value in values.values() if isinstance(value, str)]
    # Checked first, since JSON may be six times as large.
    if sum(map(len, strings)) > max_bytes:
        return Span(row, sum(len(string.encode()) for string in strings), b"")
    data = _JSON.encode(values).encode()
    return Span(row, len(data), data)

"""Parsing of a document's bytes to the values of its fields."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from beam_jobs.chats.messages import encode_chat
from beam_jobs.references.reference import Payload, Reference
from beam_jobs.text_files.document_form import (
    CONLL_ROW,
    CONLLU_ROW,
    FILE,
    JSON_ROW,
    PLAIN,
    RAW_ROW,
    TSV_ROW,
    DocumentForm,
    RowForm,
)
from beam_jobs.text_files.fields import TEXT, TextField
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.sentences import split_sentence
from beam_jobs.text_files.spans.csv_rows import split_cells
from beam_jobs.text_files.spans.lines import BOM
from beam_jobs.values.column_kinds import (
    FLOAT,
    FLOAT32,
    INT,
    LIST_KINDS,
    TOO_LARGE,
    fits_int64,
    float32_problem,
    parse_float,
)
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, UsageError
from tpudata.json_values import abbreviate_json, parse_input_json

Value: TypeAlias = "str | int | float | list[str | int | float]"

# A JSON string may contain half of a surrogate pair, which is not a character.
_SURROGATE = re.compile("[\ud800-\udfff]")


class DocumentError(ValueError):
    """A document is invalid; `offset` is the byte of the problem in the document, or None."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason)
        self.offset = offset


def parse_document(data: bytes, form: Payload, options: TextOptions) -> list[Value]:
    """Return the values of `options.record_fields`, in their order.

    Args:
        data: bytes of one document.
        form: rules for reading the bytes: a `RowForm`, a `DocumentForm`, or any other for plain text.
        options: the fields, and the treatment of bytes that are not UTF-8.

    Raises:
        DocumentError: the bytes are not UTF-8 or not a row of this kind, or a field is missing or of the wrong kind.
        UsageError: a form of another package returns neither text nor a row.
    """
    if isinstance(form, RowForm):
        if form.kind in (PLAIN, FILE):
            return [_decode_document(data, form, options)]
        row = parse_row(data, form, options)
    else:
        document = _read_by_form(data, form, options)
        # A text is the value of the only field, whatever its name.
        if isinstance(document, str) and not options.chat and [field.kind for field in options.fields] == [TEXT]:
            return [document]
        row = {TEXT: document} if isinstance(document, str) else document
    if options.chat:
        # The fields of the chat come first.
        other_fields = options.fields[len(options.chat) :]
        return [_encode_chat(row, options.chat), *(_convert_value(field, row) for field in other_fields)]
    values = [_convert_value(field, row) for field in options.fields]
    return _join_pair(options, values) if options.has_pairs else values


def _read_by_form(data: bytes, form: Payload, options: TextOptions) -> str | dict[str, Any]:
    """Return a document as its form, perhaps of another package, reads it: its text, or the values of a row by name.

    Raises:
        DocumentError: the form rejects the document, or the text is not UTF-8.
        UsageError: the form's `read` returns neither text nor a row.
    """
    try:
        document = form.read(data) if isinstance(form, DocumentForm) else data
    except ValueError as error:
        raise DocumentError(str(error)) from error
    if isinstance(document, Mapping):
        return dict(document)
    if not isinstance(document, (str, bytes)):
        raise UsageError(
            f"{type(form).__module__}.{type(form).__qualname__}.read: not a document (got {type(document).__name__}, expected str,"
            " bytes or a dict of fields). Change the source."
        )
    if isinstance(document, str):
        if _SURROGATE.search(document):
            raise DocumentError("the text has half of a surrogate pair, which is not a character")
        return document
    return _decode(document, start=0, replace_invalid=options.replace_invalid)


def parse_row(data: bytes, form: RowForm, options: TextOptions) -> dict[str, Any]:
    """Return the values of a row by name, as written.

    Args:
        data: bytes of one row.
        form: kind of the row, which is not plain text, and its rules.
        options: the columns, some of which may be nested, and the treatment of bytes that are not UTF-8.

    Raises:
        DocumentError: the bytes are not UTF-8, or not a row of this kind.
    """
    text = _decode_document(data, form, options)
    if form.kind in (CONLL_ROW, CONLLU_ROW):
        return _parse_sentence(text, form, options)
    return _add_nested(_parse_object(text), options) if form.kind == JSON_ROW else _parse_cells(text, form)


def _decode_document(data: bytes, form: RowForm, options: TextOptions) -> str:
    """Return the text of a document without a byte order mark; DocumentError if it is not UTF-8."""
    # Only a file that is one document still has its mark; in other documents it is an ordinary character.
    mark_size = len(BOM) if form.kind == FILE and data.startswith(BOM) else 0
    return _decode(data[mark_size:], mark_size, options.replace_invalid)


def _encode_chat(values: dict[str, Any], columns: Sequence[str]) -> str:
    """Return the messages of a row as JSON; DocumentError if they are invalid."""
    try:
        text = encode_chat(values, columns)
    except ValueError as error:
        raise DocumentError(str(error)) from None
    if _SURROGATE.search(text):
        raise DocumentError("a message has half of a surrogate pair, which is not a character")
    return text


def _join_pair(options: TextOptions, values: list[Value]) -> list[Value]:
    """Return the values with all inputs as one text; DocumentError if a side of the pair is blank."""
    *input_names, target_name = options.sides
    input_count = len(input_names)
    input_texts = [str(value) for value in values[:input_count]]
    # A blank input adds nothing, as in chats of columns.
    inputs = input_texts[0] if input_count == 1 else "\n\n".join(text for text in input_texts if text.strip())
    for side, text in ((", ".join(map(repr, input_names)), inputs), (repr(target_name), str(values[input_count]))):
        if not text.strip():
            raise DocumentError(f"one side of the pair is blank: field {side}")
    return [inputs, *values[input_count:]]


def read_texts(
    documents: Iterable[tuple[Reference, bytes | BadRecordError]] | Iterable[tuple[Reference, bytes]],
    options: TextOptions,
) -> Iterator[list[str] | None]:
    """Yield for each document the values of its text fields, or None if it cannot be read."""
    text_indices = [index for index, field in enumerate(options.record_fields) if field.kind == TEXT]
    for reference, data in documents:
        texts = None
        if not isinstance(data, BadRecordError):
            with contextlib.suppress(DocumentError):
                values = parse_document(data, reference.payload, options)
                texts = [str(values[index]) for index in text_indices]
        yield texts


def _decode(data: bytes, start: int, replace_invalid: bool) -> str:
    """Return bytes that begin at byte `start` of a document as text; DocumentError if they are not UTF-8."""
    try:
        return data.decode("utf-8", "replace" if replace_invalid else "strict")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"not UTF-8: byte {data[error.start]:#04x}. Save the file as UTF-8, or pass --invalid-utf8=replace",
            start + error.start,
        ) from None


def _parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; DocumentError if the string is not one."""
    try:
        values = parse_input_json(text)
    except ValueError as error:
        raise DocumentError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise DocumentError(f'not a JSON object (got {type(values).__name__}, expected a row such as {{"text": ...}})')
    return values


def _add_nested(values: dict[str, Any], options: TextOptions) -> dict[str, Any]:
    """Add to a row the values in objects that columns name with dots, such as `translation.en`, and return the row."""
    for field in options.columns:
        if "." in field.name and field.name not in values:
            value: Any = values
            for name in field.name.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                values[field.name] = value
    return values


def _parse_sentence(text: str, form: RowForm, options: TextOptions) -> dict[str, Any]:
    """Return the columns of a sentence: a list of words for a field that is a list, otherwise the words joined by blanks.

    Raises:
        DocumentError: a word differs from the first one in its number of columns, or there is no word.
    """
    try:
        columns = split_sentence(text, is_conllu=form.kind == CONLLU_ROW)
    except ValueError as error:
        raise DocumentError(str(error)) from None
    list_names = {field.name for field in options.fields if field.kind in LIST_KINDS}
    return {name: words if name in list_names else " ".join(words) for name, words in columns.items()}


def _parse_cells(text: str, form: RowForm) -> dict[str, str]:
    """Return the cells of a row by column; DocumentError if their number or quotes are wrong."""
    try:
        cells = split_cells(text, form.delimiter, is_raw=form.kind == RAW_ROW)
    except ValueError as error:
        # An unexpected quote joins all lines up to the next quote, or to the end of the file.
        line_count = text.count("\n") + 1
        extent = f" (a row of {count_text(line_count, 'line')}, all of which are rejected)" if line_count > 1 else ""
        hint = "; if quotes are ordinary characters, pass --form raw-tsv" if form.kind == TSV_ROW else ""
        raise DocumentError(f"not CSV: {error}{extent}{hint}") from None
    if len(cells) != len(form.columns):
        raise DocumentError(
            f"wrong number of cells (got {count_text(len(cells), 'cell')}, expected {count_text(len(form.columns), 'column')}"
            f" as in the first row: {_format_names(form.columns)})"
        )
    return dict(zip(form.columns, cells, strict=True))


def _convert_value(field: TextField, values: dict[str, Any]) -> Value:
    """Return the value of a field as its kind stores it; DocumentError if it is missing or does not fit."""
    value = values.get(field.name)
    is_number = field.kind in (INT, FLOAT, FLOAT32)
    if value is None or (is_number and value == ""):
        if field.missing is not None:
            return field.missing
        if field.name not in values:
            raise make_missing_field_error(field.name, values)
        example = {INT: "0", FLOAT: "nan", FLOAT32: "nan"}.get(field.kind, "")
        raise DocumentError(
            f"field {field.name!r} has no value: {abbreviate_json(value)}; to store another one there, pass --field"
            f" {field.name}:{field.kind}={example}"
        )
    if field.kind in LIST_KINDS:
        return _convert_list(field, value)
    if is_number:
        return _convert_number(field, value)
    if not isinstance(value, str):
        raise DocumentError(f"field {field.name!r} is not a string: {abbreviate_json(value)}")
    if not value.isascii() and _SURROGATE.search(value):
        raise DocumentError(f"field {field.name!r} has half of a surrogate pair, which is not a character")
    return value


def _convert_list(field: TextField, value: Any) -> list[Any]:
    """Return the items of a list as the field's kind stores them; a string is split at blanks. DocumentError if they do not fit."""
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list):
        raise DocumentError(f"field {field.name!r} is not a list: {abbreviate_json(value)}")
    null_index = next((index for index, item in enumerate(items) if item is None), None)
    if null_index is not None:
        raise DocumentError(f"field {field.name!r} has a list with a hole: item {null_index} is null")
    item_field = TextField(field.name, LIST_KINDS[field.kind])
    return [_convert_value(item_field, {field.name: item}) for item in items]


def make_missing_field_error(name: str, values: Iterable[str]) -> DocumentError:
    """Return the error of a row that lacks a field."""
    return DocumentError(f"no field {name!r}: the row has {_format_names(values) or 'none'}")


def _format_names(names: Iterable[str]) -> str:
    """Return the first ten names and the number of the others, as one string: a row may have thousands of names."""
    all_names = list(names)
    return ", ".join(map(repr, all_names[:10])) + (f" and {len(all_names) - 10} more" if len(all_names) > 10 else "")


def _convert_number(field: TextField, value: Any) -> int | float:
    """Return a number as the field's kind stores it; DocumentError if it does not fit."""
    number: int | float | None = value if isinstance(value, (int, float)) else None
    if isinstance(value, str):
        number = _parse_integer(value)
        if number is None and field.kind != INT:
            number = parse_float(value)
    if field.kind == INT:
        if isinstance(number, int) and fits_int64(number):
            return int(number)
        raise DocumentError(f"field {field.name!r} is not a whole number that fits int64: {abbreviate_json(value)}")
    if number is None:
        raise DocumentError(f"field {field.name!r} is not a number that fits float32: {abbreviate_json(value)}")
    problem = float32_problem(number, rounds=field.kind == FLOAT32)
    if problem:
        fix = f"; store it as {field.name}:str, or round with {field.name}:float32" if problem != TOO_LARGE else ""
        raise DocumentError(
            f"field {field.name!r} is not a number that fits float32: {abbreviate_json(value)} {problem}{fix}"
        )
    return float(number)


def _parse_integer(text: str) -> int | None:
    """Return the integer in a string; None for any other string, including `1_000`, which Python would accept."""
    try:
        return None if "_" in text else int(text)
    except ValueError:
        return None

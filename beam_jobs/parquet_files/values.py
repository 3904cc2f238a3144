"""Values of a Parquet column, by its type.

    column                     as text                                   as a number
    string, binary             the text, in UTF-8                        the text
    integer, float, boolean    the number                                the number
    date                       2020-01-31                                days since 1970-01-01
    time                       12:34:56.123456                           count of the column's unit since midnight
    timestamp                  2020-01-31T12:34:56.123456, with Z if     count of the column's unit since 1970-01-01
                               the column has a time zone (then UTC)
    duration                   the number                                count of the column's unit
    decimal                    12.50                                     the number if it is whole, else the text
    dictionary, extension      as the type of its values                 the same

    list of text or numbers    a list of these                           the same

Maps and structs are converted only in columns of chats.
"""

from __future__ import annotations

import decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow  # type: ignore[import-untyped]
from pyarrow import types

NOT_UTF8 = "not UTF-8"
_DAY_MILLISECONDS = 86_400_000


class UnreadableValue(NamedTuple):
    """Placeholder for a value that cannot be read.

    Attributes:
        problem: why it cannot be read, in a few words.
        detail: where the problem is, or how to fix it.
    """

    problem: str
    detail: str


def is_supported_type(arrow_type: Any) -> bool:
    """Return whether a pyarrow type is one of single values that can be converted.

    These are text, bytes, numbers, booleans, times and nulls. For lists, see `is_supported_list`.
    """
    arrow_type = _find_inner_type(arrow_type)
    # pyarrow counts intervals among the temporal types, but they have no single value, so they are excluded.
    return bool(
        _is_text_or_bytes(arrow_type)
        or types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_boolean(arrow_type)
        or types.is_temporal(arrow_type)
        or types.is_decimal(arrow_type)
        or types.is_null(arrow_type)
    ) and not types.is_interval(arrow_type)


def is_supported_list(arrow_type: Any) -> bool:
    """Return whether values of a pyarrow type are lists of text or numbers."""
    if not (types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type)):
        return False
    element_type = arrow_type.value_type
    is_text = types.is_string(element_type) or types.is_large_string(element_type)
    return bool(is_text or types.is_integer(element_type) or types.is_floating(element_type))


def convert_column(column: Any, *, as_text: bool = True, replace_invalid: bool = False) -> list[Any]:
    """Return the values of a column: strings, numbers, booleans, lists, None for null, and `UnreadableValue`.

    Args:
        column: an array of pyarrow of a type for which `is_supported_type` or `is_supported_list` is true, or of chats.
        as_text: whether dates, times and decimals become strings; otherwise dates, times and whole decimals become numbers.
        replace_invalid: whether bytes that are not UTF-8 become U+FFFD; otherwise their value is `UnreadableValue`.
    """
    while types.is_dictionary(column.type) or isinstance(column.type, pyarrow.BaseExtensionType):
        column = column.dictionary_decode() if types.is_dictionary(column.type) else column.storage
    arrow_type = column.type
    if types.is_nested(arrow_type):
        return _convert_nested(column, errors="replace" if replace_invalid else "strict")
    if _is_text_or_bytes(arrow_type):
        return _decode_texts(column, replace_invalid)
    if types.is_decimal(arrow_type):
        return [_convert_decimal(value, as_text) for value in column.to_pylist()]
    if types.is_duration(arrow_type):
        return list(column.cast(pyarrow.int64()).to_pylist())
    if types.is_temporal(arrow_type):
        return _format_times(column) if as_text else _count_times(column)
    if types.is_float16(arrow_type):
        # For float16, `to_pylist` returns scalars of NumPy; for float64, floats of Python.
        column = pyarrow.array(np.asarray(column.to_pylist(), np.float64), mask=np.asarray(column.is_null()))
    return list(column.to_pylist())


def _convert_nested(column: Any, errors: str) -> list[Any]:
    """Return lists and structs as Python values, with an UnreadableValue in place of each that has text that is not UTF-8.

    Args:
        column: an array of pyarrow.
        errors: how to decode bytes, "strict" or "replace".
    """
    # Lists of text or numbers have no bytes, and looking for them would take half as long again.
    has_bytes = not is_supported_list(column.type)
    values: list[Any] = []
    for value in column:
        try:
            python_value = value.as_py()
            values.append(_decode_nested(python_value, errors) if has_bytes else python_value)
        except UnicodeDecodeError as error:
            values.append(UnreadableValue(NOT_UTF8, f"an item of the list, byte {error.object[error.start]:#04x}"))
    return values


def _decode_nested(value: Any, errors: str) -> Any:
    """Return a value with the bytes in it, including those in lists and dicts, decoded as UTF-8; raise as `bytes.decode` does."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors)
    if isinstance(value, dict):
        return {name: _decode_nested(element, errors) for name, element in value.items()}
    return [_decode_nested(element, errors) for element in value] if isinstance(value, list) else value


def _find_inner_type(arrow_type: Any) -> Any:
    """Return the type of the values of a dictionary or an extension type; other types unchanged."""
    while True:
        if types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        elif isinstance(arrow_type, pyarrow.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        else:
            return arrow_type


def _is_text_or_bytes(arrow_type: Any) -> bool:
    """Return whether a type is text or bytes, of varying or fixed length."""
    return bool(
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_string_view(arrow_type)
        or types.is_binary(arrow_type)
        or types.is_large_binary(arrow_type)
        or types.is_binary_view(arrow_type)
        or types.is_fixed_size_binary(arrow_type)
    )


def _decode_texts(column: Any, replace_invalid: bool) -> list[Any]:
    """Return the values of a column of text or bytes as strings, None for null; see `convert_column` for invalid bytes."""
    try:
        values = list(column.to_pylist())
    except UnicodeDecodeError:
        # pyarrow fails at the first invalid text; as bytes, each value is decoded by itself.
        is_large = types.is_large_string(column.type)
        values = column.cast(pyarrow.large_binary() if is_large else pyarrow.binary()).to_pylist()
    return [_decode_text(value, replace_invalid) if isinstance(value, bytes) else value for value in values]


def _decode_text(value: bytes, replace_invalid: bool) -> str | UnreadableValue:
    """Return bytes as a string; what is not UTF-8 becomes U+FFFD with `replace_invalid`, otherwise the value is unreadable."""
    try:
        return value.decode("utf-8", "replace" if replace_invalid else "strict")
    except UnicodeDecodeError as error:
        return UnreadableValue(NOT_UTF8, f"byte {value[error.start]:#04x} (byte {error.start} of the value)")


def _convert_decimal(value: decimal.Decimal | None, as_text: bool) -> str | int | None:
    """Return a decimal as a string, or with `as_text` false as an int if it is whole; None for null."""
    if value is None:
        return None
    # A decimal without a fraction is exact as an int. A fraction stays a string, which the caller parses.
    return int(value) if not as_text and value == value.to_integral_value() else f"{value:f}"


def _format_times(column: Any) -> list[Any]:
    """Return dates and times in ISO 8601, None for null, and `UnreadableValue` for times that pyarrow cannot format."""
    if types.is_timestamp(column.type) and column.type.tz is not None:
        # The count is in UTC; the zone is only for display.
        column = column.cast(pyarrow.timestamp(column.type.unit, "UTC"))
    if types.is_date64(column.type):
        # date64 counts milliseconds, of which only the day is shown.
        column = column.cast(pyarrow.timestamp("ms")).cast(pyarrow.date32())
    return [None if text is None else _format_time(text) for text in column.cast(pyarrow.string()).to_pylist()]


def _format_time(text: str) -> str | UnreadableValue:
    """Return a time that pyarrow has formatted in ISO 8601, or an UnreadableValue if pyarrow could not format it.

    In place of a time that is out of its range of years, pyarrow writes `<value out of range: ...>`.
    """
    if text.startswith("<"):
        return UnreadableValue("a time cannot be read", f"{text.strip('<>')}. Store it as a string or number")
    return text.replace(" ", "T")


def _count_times(column: Any) -> list[int | None]:
    """Return dates as days, and times as counts of the column's unit; None for null."""
    if types.is_date64(column.type):
        milliseconds = column.cast(pyarrow.int64()).to_pylist()
        return [None if count is None else count // _DAY_MILLISECONDS for count in milliseconds]
    # pyarrow casts types of 32 bits only to int32.
    is_narrow = types.is_date32(column.type) or types.is_time32(column.type)
    return list(column.cast(pyarrow.int32() if is_narrow else pyarrow.int64()).to_pylist())

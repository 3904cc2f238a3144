"""JSON values of an input, such as a row of a list. `tpudata.checked_json` reads the files that tpudata writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tpudata.error_text.values import shorten_value

_SHOWN_CHARACTERS = 80


def parse_input_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value that JSON stands for.

    Args:
        text: the JSON.
        parse_constant: function from NaN, Infinity or -Infinity to its value, which may raise; None reads them as floats.

    Raises:
        ValueError: `text` is not JSON, is nested too deep, or has an integer of more than 4,300 digits.
    """
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        raise explain_json_error(error) from None


def explain_json_error(error: ValueError) -> ValueError:
    """Return an error of the JSON parser, or a new error in place of Python's advice on integers of more than 4,300 digits."""
    return ValueError("it has an integer of too many digits") if "integer string conversion" in str(error) else error


def abbreviate_json(value: Any) -> str:
    """Return the first 80 characters of a value as JSON, for a message.

    A value with an integer of more than 4,300 digits is shortened by `shorten_value`; one with too many levels becomes its type.
    """
    try:
        return json.dumps(value)[:_SHOWN_CHARACTERS]
    except ValueError:  # An integer of more than 4,300 digits.
        return shorten_value(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"


def convert_json_number(value: Any, name: str) -> float:
    """Return a JSON value as a float; ValueError that names the field `name` if it is not a number, or too large."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass  # An integer beyond the largest float.
    raise ValueError(f"{name!r} is not a number: {abbreviate_json(value)}")

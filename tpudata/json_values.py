"""JSON values of an input, such as a row of a list. `tpudata.checked_json` reads the files that tpudata writes."""

from __future__ import annotations

import json
from typing import Any

_SHOWN_CHARACTERS = 80


def parse_input_json(text: str | bytes) -> Any:
    """Return the value that JSON stands for, NaN and infinity included; ValueError if it is not JSON, or nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def abbreviate_json(value: Any) -> str:
    """Return the first 80 characters of a value as JSON, for a message; only its type if it is nested too deep."""
    try:
        return json.dumps(value)[:_SHOWN_CHARACTERS]
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

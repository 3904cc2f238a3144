"""JSON of an input, such as a row of a list. Files that tpudata writes are read by `tpudata.checked_json`."""

from __future__ import annotations

import json
from typing import Any

# Characters of a value in a message.
_SHOWN = 80


def parse_input_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, NaN and infinity included; ValueError if it is not JSON, or nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def abbreviate_json(value: Any) -> str:
    """Return the first characters of a value as JSON, for a message."""
    try:
        return json.dumps(value)[:_SHOWN]
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"


def convert_json_number(value: Any, name: str) -> float:
    """Return a JSON value as a float; ValueError with `name`, that of its field, if it is not a number or too large."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise ValueError(f"{name!r} is no number: {abbreviate_json(value)}")

"""JSON of an input: values of any depth, without a RecursionError."""

from __future__ import annotations

import json
from typing import Any

# Of a value that a message shows.
_SHOWN = 80


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; ValueError if it is none, or nested too deep for Python's parser."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def shown_json(value: Any) -> str:
    """Return the begin of a value as JSON, for a message."""
    try:
        return json.dumps(value)[:_SHOWN]
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"


def json_number(value: Any, name: str) -> float:
    """Return the number that a value is; ValueError, with the name of what it is of, if it is none that a float holds."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise ValueError(f"{name!r} is no number: {shown_json(value)}")

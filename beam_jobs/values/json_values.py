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

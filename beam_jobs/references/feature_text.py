"""The features of a reference as text, for the hash that identifies an input for --append."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_DIGEST_BYTES = 16


def features_text(features: Mapping[str, Any], *, is_escaped: bool) -> str:
    """Return features as JSON: an object in their order, with NaN as Python writes it; an empty string without features.

    Args:
        features: values by name; see `_to_json_value` for those that JSON cannot hold.
        is_escaped: whether characters that are not ASCII are escaped.
    """
    return _ENCODERS[is_escaped].encode(features) if features else ""


def _to_json_value(value: Any) -> Any:
    """Convert a value that JSON cannot hold: bytes to their digest; NumPy's values and a `RangedMap` to lists or numbers."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"blake2b:{hashlib.blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()}"
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a number, string, bytes, array or list of these")


# By `is_escaped`; json.dumps would make an encoder for each call.
_ENCODERS = {
    is_escaped: json.JSONEncoder(ensure_ascii=is_escaped, default=_to_json_value) for is_escaped in (False, True)
}

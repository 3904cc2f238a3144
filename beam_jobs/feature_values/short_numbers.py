"""Numbers of the ml_dtypes package, such as bfloat16, as the numpy numbers that hold each of them.

The package is not needed: its types are known by their module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MODULE = "ml_dtypes"


def widen(value: Any) -> Any:
    """Return arrays, scalars and sequences of ml_dtypes' floats as float32, of its integers as int64, and others unchanged."""
    if isinstance(value, np.ndarray):
        return value.astype(_widen_type(value.dtype.type)) if _is_short(value.dtype.type) else value
    if isinstance(value, np.generic):
        return _widen_type(type(value))(value) if _is_short(type(value)) else value
    if isinstance(value, (list, tuple)) and any(map(_is_short, {*map(type, value)})):
        return [widen(element) for element in value]
    return value


def _is_short(kind: type) -> bool:
    return kind.__module__ == _MODULE and kind.__name__.startswith(("bfloat", "float", "int", "uint"))


def _widen_type(kind: type) -> type[np.float32] | type[np.int64]:
    return np.float32 if "float" in kind.__name__ else np.int64

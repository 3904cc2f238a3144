"""Values as parts of a message, with integers of more than 4,300 digits, which Python does not convert to strings."""

from __future__ import annotations

import reprlib
from typing import Any


class _Repr(reprlib.Repr):
    """Short repr of a value, which describes an integer that is too large for a string."""

    def repr_int(self, x: int, level: int) -> str:
        try:
            repr(x)
        except ValueError:
            # Newer releases of Python return a string with an address, which differs between runs.
            return f"an integer of {x.bit_length():,} bits"
        return super().repr_int(x, level)

    def repr_instance(self, x: object, level: int) -> str:
        try:
            repr(x)
        except Exception:
            # reprlib returns a string with an address, which differs between runs.
            return f"a {type(x).__name__}"
        return super().repr_instance(x, level)


_REPR = _Repr()


def format_value(value: Any) -> str:
    """Return the repr of a value; what `shorten_value` returns if an integer in it is too large for a repr."""
    try:
        return repr(value)
    except ValueError:
        return shorten_value(value)


def shorten_value(value: Any) -> str:
    """Return the repr of a value that omits the middle of long strings and numbers, and the rest of long lists."""
    return _REPR.repr(value)

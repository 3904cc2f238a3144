"""Kinds of columns and fields as flags write them, and numbers that float32 would change.

    KIND            int, float, float32, str (in conversions of text also text), or a list: ints, floats, strings
    KIND=VALUE      the same, but no list; VALUE is stored for values that are missing, such as int=0 or float=nan

`float` rejects a number that float32 stores as another one, such as an id: an integer that is not exact, and a fraction above
2**24 that changes by 1/2 or more. `float32` rounds all numbers. Below 2**24, both round fractions as float32 does.
"""

from __future__ import annotations

import math
import re
import struct
from typing import NamedTuple

INT, FLOAT, FLOAT32, STR = "int", "float", "float32", "str"
# Kinds of lists, each with the kind of its items.
LIST_KINDS = {"ints": INT, "floats": FLOAT, "strings": STR}
# Up to these numbers, float32 and float64 represent every integer.
FLOAT32_WHOLE = 2**24
FLOAT64_WHOLE = 2**53
# The largest float32.
FLOAT32_MAX = (2 - 2**-23) * 2.0**127
# A result of `float32_problem`, which rounding does not fix.
TOO_LARGE = "is too large for float32"
_INT = re.compile(r"[+-]?[0-9]+")
# Strings that count as numbers if the kind of a column is inferred: `007` does not.
_PLAIN_INT = re.compile(r"0|-?[1-9][0-9]*")
_PLAIN_FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Characters of the smallest int64, with its sign.
_MAX_INT64_CHARACTERS = 20


class ColumnKind(NamedTuple):
    """The kind of a column, and its value for missing ones.

    Attributes:
        kind: `"int"`, `"float"`, `"float32"`, `"str"` or `"text"`, or one of `LIST_KINDS`.
        missing: value that is stored in place of a missing one; None if none is declared.
    """

    kind: str
    missing: str | int | float | None = None

    @classmethod
    def parse(cls, text: str) -> ColumnKind:
        """Parse `KIND` or `KIND=VALUE`; ValueError with the reason if the value is not of the kind. Kinds are not checked."""
        kind, equals, value = text.partition("=")
        if not equals:
            return cls(kind)
        if kind == INT:
            if not (_INT.fullmatch(value) and text_fits_int64(value)):
                raise ValueError(f"{value!r} is not a whole number that fits int64")
            return cls(kind, int(value))
        if kind in (FLOAT, FLOAT32):
            number = parse_float(value)
            problem = "is not a number" if number is None else float32_problem(number)
            if problem:
                raise ValueError(f"{value!r} {problem}")
            return cls(kind, number)
        return cls(kind, value)

    def __str__(self) -> str:
        return self.kind if self.missing is None else f"{self.kind}={self.missing}"


def get_item_kind(kind: str) -> str:
    """Return the kind of a column's values; for a column of lists, the kind of their items."""
    return LIST_KINDS.get(kind, kind)


def find_kind_of_text(text: str) -> str:
    """Return the narrowest of `int`, `float` and `str` that a string fits.

    An integer with leading zeros is `str`, and so is one beyond int64: as a float it would lose its last digits.
    """
    if _PLAIN_INT.fullmatch(text):
        return INT if text_fits_int64(text) else STR
    return FLOAT if _PLAIN_FLOAT.fullmatch(text) else STR


def text_fits_int64(text: str) -> bool:
    """Return whether int64 holds the integer in a text; False for more than 20 characters: int() may reject long texts."""
    return len(text) <= _MAX_INT64_CHARACTERS and fits_int64(int(text))


def fits_int64(number: int) -> bool:
    """Return whether int64 holds a number."""
    return -(2**63) <= number < 2**63


def parse_float(text: str) -> float | None:
    """Parse a number; None if the string is not one, or exceeds float64, such as 1e400."""
    try:
        number = float(text)
    except ValueError:
        return None
    # Python accepts `1_000`, which other programs do not.
    if "_" in text:
        return None
    overflows = math.isinf(number) and "inf" not in text.lower()
    return None if overflows else number


def float32_problem(number: int | float, *, rounds: bool = False) -> str:
    """Return why float32 cannot hold a number, or an empty string; changing a fraction by less than 0.5 is not a problem.

    Args:
        number: number to be stored.
        rounds: whether every number that is not too large is accepted.
    """
    try:
        stored: float = struct.unpack("<f", struct.pack("<f", float(number)))[0]
    except OverflowError:
        return TOO_LARGE
    if rounds or abs(number) < FLOAT32_WHOLE or not math.isfinite(number):
        return ""
    if isinstance(number, int):
        return "" if int(stored) == number else f"would become {int(stored)} in float32"
    # From 2**53 on, the float64 is not exact itself.
    if abs(number) < FLOAT64_WHOLE and abs(stored - number) >= 0.5:
        return f"would become {stored:.1f} in float32"
    return ""

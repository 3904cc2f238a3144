"""Checks of arguments. Each raises an error of one line that says where, what was got, what is expected, and the fix.

Integers and numbers may be Python's or numpy's; a bool is none.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from numbers import Real
from typing import Any

from tpudata.errors import TpudataError, UsageError


def is_integer(value: Any, least: int | None = None, most: int | None = None) -> bool:
    """Return whether a value is an integer within limits."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    number = operator.index(value)
    return (least is None or number >= least) and (most is None or number <= most)


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether a value is a finite number within limits."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return math.isfinite(value) and least <= float(value) <= most


def check(
    where: str, value: Any, is_valid: bool, expected: str, fix: str = "", error: type[TpudataError] = UsageError
) -> None:
    """Check an argument or an attribute.

    Args:
        where: its name.
        value: its value.
        is_valid: whether it is one that is expected.
        expected: these values, in words.
        fix: what to do, a sentence; none if it follows from what is expected.
        error: class of the error.

    Raises:
        UsageError: it is not valid; or an error of another class.
    """
    if not is_valid:
        raise error(f"{where}: invalid value (got {value!r}, expected {expected}).{fix and f' {fix}'}")


def check_passed(name: str, value: Any, is_valid: bool, what: str) -> None:
    """Check an argument whose value is an object: UsageError with what to pass."""
    if not is_valid:
        raise UsageError(f"{name}={value!r}: pass {what}.")


def check_integer(
    where: str, value: Any, least: int, most: int | None = None, *, or_none: bool = False, fix: str = ""
) -> None:
    """Check that an argument is an integer within limits; UsageError if not."""
    limits = f"of {least} or more" if most is None else f"from {least} to {_in_words(most)}"
    is_valid = is_integer(value, least, most) or (or_none and value is None)
    check(where, value, is_valid, f"{'None or ' if or_none else ''}an integer {limits}", fix)


def check_flag(where: str, value: Any, *, or_none: bool = False) -> None:
    """Check that an argument is True or False; UsageError if not."""
    is_valid = isinstance(value, bool) or (or_none and value is None)
    check(where, value, is_valid, f"{'None, ' if or_none else ''}True or False")


def check_one_of(where: str, value: Any, choices: Collection[str]) -> None:
    """Check that an argument is one of some strings; UsageError if not."""
    check(where, value, isinstance(value, str) and value in choices, " or ".join(f'"{choice}"' for choice in choices))


def _in_words(number: int) -> str:
    """Return a number, a large power of two less one as such."""
    return f"2**{number.bit_length()} - 1" if number >= 2**31 - 1 and number & (number + 1) == 0 else str(number)

"""Checks of arguments. They raise an error of one line that names the argument, what was got, and what is expected.

`check` and `check_...` raise UsageError by default; `require` and `require_...` raise what TensorFlow's TPUEstimator raises.
Integers and numbers may be Python's or numpy's, but of numpy's numbers `require_seconds` takes only float64;
a bool is neither.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any, overload

from tpudata.error_text.values import format_value
from tpudata.errors import TpudataError, UsageError


def is_integer(value: Any, least: int | None = None, most: int | None = None) -> bool:
    """Return whether a value is an integer from `least` to `most`, both included; a limit of None does not apply."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    try:
        number = operator.index(value)
    # Arrays of NumPy and TensorFlow have __index__ whatever they hold: it raises TypeError, or AttributeError for a TensorFlow
    # scalar that is not an integer.
    except (TypeError, AttributeError):
        return False
    return (least is None or number >= least) and (most is None or number <= most)


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether a value is a finite number from `least` to `most`, both included."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return _fits_float(value) and math.isfinite(value) and least <= float(value) <= most


def _fits_float(value: Real) -> bool:
    """Return whether a number converts to a float; an integer beyond the largest float does not, infinity and NaN do."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def check(
    where: str, value: Any, is_valid: bool, expected: str, fix: str = "", error: type[TpudataError] = UsageError
) -> None:
    """Check an argument or an attribute.

    Args:
        where: name of the argument or attribute.
        value: its value.
        is_valid: whether the value is allowed.
        expected: description of the allowed values.
        fix: a sentence that says what to do; empty if it follows from `expected`.
        error: class of the error.

    Raises:
        `error`, by default UsageError: the value is not allowed.
    """
    if not is_valid:
        advice = f" {fix}" if fix else ""
        raise error(f"{where}: invalid value (got {format_value(value)}, expected {expected}).{advice}")


def check_argument(name: str, value: Any, is_valid: bool, expected: str) -> None:
    """Check an argument; if it is invalid, raise a UsageError that shows `name=value` and what to pass instead.

    Args:
        name: name of the argument.
        value: its value.
        is_valid: whether the value is allowed.
        expected: what to pass instead, which follows "pass " in the message.
    """
    if not is_valid:
        raise UsageError(f"{name}={format_value(value)}: pass {expected}.")


def check_integer(
    where: str, value: Any, least: int, most: int | None = None, *, or_none: bool = False, fix: str = ""
) -> None:
    """Check that an argument is an integer from `least` to `most`, or None if `or_none`; UsageError if not.

    Args:
        where: name of the argument.
        value: its value.
        least: smallest integer that is allowed.
        most: largest integer that is allowed; None without a limit.
        or_none: whether None is also allowed.
        fix: a sentence that says what to do; empty if it follows from the limits.
    """
    limits = f"of {least} or more" if most is None else f"from {least} to {format_bound(most)}"
    is_valid = is_integer(value, least, most) or (or_none and value is None)
    check(where, value, is_valid, f"{'None or ' if or_none else ''}an integer {limits}", fix)


def convert_integers(options: object, *names: str) -> None:
    """Replace integers of NumPy by Python's in a frozen dataclass: NumPy's may overflow or have dtypes that TensorFlow rejects.

    Args:
        options: the dataclass, in its `__post_init__`, after the checks of these attributes.
        names: attributes, each an integer, a sequence of integers, which becomes a tuple, or None.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None:
            converted = operator.index(value) if is_integer(value) else tuple(map(operator.index, value))
            # Plain assignment fails, since the dataclass is frozen.
            object.__setattr__(options, name, converted)


def check_flag(where: str, value: Any, *, or_none: bool = False) -> None:
    """Check that an argument is True or False, or None if `or_none`; UsageError if not."""
    is_valid = isinstance(value, bool) or (or_none and value is None)
    check(where, value, is_valid, f"{'None, ' if or_none else ''}True or False")


def check_one_of(where: str, value: Any, choices: Collection[str]) -> None:
    """Check that an argument is one of some strings; UsageError if not."""
    check(where, value, isinstance(value, str) and value in choices, " or ".join(f'"{choice}"' for choice in choices))


def require(
    owner: str, name: str, value: Any, is_valid: bool, allowed: str, error: type[Exception] = TypeError
) -> None:
    """Check an argument, raising the class of error that TPUEstimator raises.

    Args:
        owner: name of the class or function.
        name: name of the argument.
        value: its value.
        is_valid: whether the value is allowed.
        allowed: description of the allowed values.
        error: class of the error.

    Raises:
        `error`, by default TypeError: the value is not allowed.
    """
    if not is_valid:
        raise error(f"{owner}({name}=...) must be {allowed}, got {format_value(value)} ({type(value).__name__}).")


def require_type(
    where: str, value: Any, is_valid: bool, allowed: str, error: type[Exception] = TypeError, fix: str = ""
) -> None:
    """Check the type of a value. The message shows only the type; the message of `require` also shows the value.

    Args:
        where: name of the value.
        value: the value.
        is_valid: whether its type is allowed.
        allowed: description of the allowed values.
        error: class of the error.
        fix: a sentence that says what to do; empty if it follows from `allowed`.

    Raises:
        `error`, by default TypeError: the type is not allowed.
    """
    if not is_valid:
        advice = f" {fix}" if fix else ""
        raise error(f"{where} must be {allowed}, got {type(value).__name__}.{advice}")


def require_one_of(where: str, value: Any, choices: Collection[str], error: type[Exception] = ValueError) -> None:
    """Check that a value is one of `choices`; raise `error` if not.

    Args:
        where: name of the value.
        value: the value.
        choices: the allowed values.
        error: class of the error.
    """
    if value not in choices:
        raise error(f"{where} must be one of {', '.join(choices)}, got {format_value(value)}.")


@overload
def require_positive_int(owner: str, name: str, value: Any) -> int: ...
@overload
def require_positive_int(owner: str, name: str, value: Any, *, or_none: bool) -> int | None: ...
def require_positive_int(owner: str, name: str, value: Any, *, or_none: bool = False) -> int | None:
    """Check that an argument is a positive int, or None if `or_none`; return it as Python's int.

    TensorFlow would make a tensor of another dtype than int32 from most integers of numpy.

    Args:
        owner: name of the class or function.
        name: name of the argument.
        value: its value.
        or_none: whether None is also allowed.

    Raises:
        TypeError: the value is not an int.
        ValueError: the value is not positive.
    """
    if value is None and or_none:
        return None
    allowed = "a positive int" + (" or None" if or_none else "")
    require(owner, name, value, isinstance(value, Integral) and not isinstance(value, bool), allowed)
    require(owner, name, value, value >= 1, allowed, ValueError)
    return operator.index(value)


def require_seconds(owner: str, name: str, value: Any, *, rejects_zero: bool = False, or_none: bool = False) -> None:
    """Check a number of seconds, or of another unit of time.

    Args:
        owner: name of the class.
        name: name of the argument.
        value: its value.
        rejects_zero: whether 0 is rejected, like negative values.
        or_none: whether None is also allowed.

    Raises:
        TypeError: the value is not a number.
        ValueError: the value is negative, NaN, a rejected 0, or an integer beyond the largest float.
    """
    if value is None and or_none:
        return
    allowed = f"a number {'above 0' if rejects_zero else 'of 0 or more'}{' or None' if or_none else ''}"
    require(owner, name, value, isinstance(value, int | float) and not isinstance(value, bool), allowed)
    is_in_range = (value > 0 if rejects_zero else value >= 0) and _fits_float(value)
    require(owner, name, value, is_in_range, allowed, ValueError)


def require_flag(owner: str, name: str, value: Any) -> None:
    """Check a bool; TypeError if it is not one."""
    require(owner, name, value, isinstance(value, bool), "a bool")


def format_bound(number: int) -> str:
    """Return a bound as a string: 2^n - 1 from 31 bits on as a power, such as `2**63 - 1`, other numbers in digits."""
    is_power_less_one = number & (number + 1) == 0
    return f"2**{number.bit_length()} - 1" if number >= 2**31 - 1 and is_power_less_one else str(number)

"""Checks of numbers among arguments."""

from numbers import Integral


def require_positive_int(owner: str, name: str, value: object, *, or_none: bool = False) -> None:
    """Check a positive int.

    Raises:
        TypeError: the value is not an int.
        ValueError: the value is not positive.
    """
    if value is None and or_none:
        return
    allowed = "a positive int" + (" or None" if or_none else "")
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{owner}({name}=...) must be {allowed}, got {value!r} ({type(value).__name__}).")
    if value < 1:
        raise ValueError(f"{owner}({name}=...) must be {allowed}, got {value!r}.")

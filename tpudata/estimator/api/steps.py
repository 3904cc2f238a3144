"""Checks of the number of steps of a call."""

from typing import Any


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Check train's limits.

    Raises:
        TypeError: not an int.
        ValueError: both are given, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ValueError(f"train takes steps or max_steps, not both: got steps={steps}, max_steps={max_steps}.")
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        require_steps("train", name, value)


def require_steps(owner: str, name: str, value: Any) -> None:
    """Check a number of steps: a positive int, or None.

    Raises:
        TypeError: not an int.
        ValueError: not positive.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}({name}=...) must be an int or None, got {value!r} ({type(value).__name__}).")
    if value <= 0:
        raise ValueError(f"{owner}({name}=...) must be positive, got {value}.")

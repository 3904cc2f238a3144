"""Checks of counts among arguments: steps, and rows of a batch."""

from typing import Any


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Check the limits of a call of train.

    Raises:
        TypeError: one is not an int.
        ValueError: there are both, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ValueError(
            f"train takes steps or max_steps, not both (got steps={steps}, max_steps={max_steps}). Pass one."
        )
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        require_count("train", name, value)


def require_count(owner: str, name: str, value: Any) -> None:
    """Check a count: a positive int, or None.

    Raises:
        TypeError: the value is not an int.
        ValueError: the value is not positive.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}({name}=...) must be an int or None, got {value!r} ({type(value).__name__}).")
    if value <= 0:
        raise ValueError(f"{owner}({name}=...) must be positive, got {value}.")

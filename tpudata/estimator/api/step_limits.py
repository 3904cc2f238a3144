"""Check of the arguments that limit training."""

from tpudata.checks import require_positive_int


def check_steps(steps: int | None, max_steps: int | None) -> None:
    """Raise an error if the limits of a call of train are not valid.

    Args:
        steps: number of steps to add, or None.
        max_steps: global step to stop at, or None.

    Raises:
        TypeError: a limit is not an int.
        ValueError: both are set, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ValueError(
            f"train takes steps or max_steps, not both (got steps={steps}, max_steps={max_steps}). Pass one."
        )
    for name, limit in (("steps", steps), ("max_steps", max_steps)):
        require_positive_int("train", name, limit, or_none=True)

"""Check of the arguments that limit training."""

from tpudata.checks import require_positive_int


def check_steps(steps: int | None, max_steps: int | None) -> tuple[int | None, int | None]:
    """Check the limits of a call of train, and return them, steps and max_steps, as Python's ints.

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
    return (
        require_positive_int("train", "steps", steps, or_none=True),
        require_positive_int("train", "max_steps", max_steps, or_none=True),
    )

"""Check of the limits of training."""

from tpudata.checks import require_positive_int


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
        require_positive_int("train", name, value, or_none=True)

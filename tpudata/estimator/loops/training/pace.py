"""Number of steps in a loop of the device, and intervals of the work between two loops."""

import time
from collections.abc import Iterable

from tpudata.estimator.config.tpu_config import TPUConfig

_MAX_LOOP_STEPS = 2**31 - 1  # Loops count their steps in an int32.


class LoopSize:
    """Number of steps in the next loop.

    Attributes:
        step_seconds: seconds of a step of the last loop; 0 until the second loop has ended.

    Args:
        config: TPUConfig whose `iterations_per_loop` is a number of steps, or a time to which the number is fitted.
    """

    def __init__(self, config: TPUConfig) -> None:
        self._target_seconds = config.loop_seconds  # None if the number of steps is fixed.
        # To fit the number to a time, begin with single steps and measure them.
        self._steps = 1 if self._target_seconds is not None else int(config.iterations_per_loop)
        self._has_compiled = False
        self.step_seconds = 0.0

    def next(self, step: int, ends: Iterable[int | None]) -> int:
        """Return the number of steps of the next loop, at least one.

        Args:
            step: step at which the loop begins.
            ends: steps that the loop must not pass; None entries are ignored.
        """
        limits = [end - step for end in ends if end is not None]
        # A hook that sets the global step may have passed an end, but a loop has at least one step.
        return max(1, min([self._steps, _MAX_LOOP_STEPS, *limits]))

    def fit(self, num_steps: int, seconds: float) -> None:
        """Fit the size of the next loop to the last loop, which took `seconds` for `num_steps` steps.

        The first loop, which compiles, is ignored. If iterations_per_loop is a number, only the time of a step is recorded.
        """
        if self._has_compiled and num_steps:
            self.step_seconds = seconds / num_steps
        if self._has_compiled and num_steps and self._target_seconds is not None:
            fitted_steps = int(self._target_seconds * num_steps / max(seconds, 1e-6))
            # Limit the growth, since one loop may have taken unusually little time.
            self._steps = max(1, min(fitted_steps, 10 * num_steps, _MAX_LOOP_STEPS))
        self._has_compiled = True


class Cadence:
    """The steps at which a periodic action runs.

    Args:
        start_step: step at which training begins.
        steps: interval in steps, or None.
        seconds: interval in seconds, or None. At most one of the two is set; if neither is, the action never runs.
        runs_at_first_step: whether an action with an interval in steps also runs at the first step, as TensorFlow's Estimator does.
    """

    def __init__(
        self,
        start_step: int,
        steps: int | None = None,
        seconds: float | None = None,
        *,
        runs_at_first_step: bool = False,
    ) -> None:
        self._steps = steps
        self._seconds = seconds
        self._due_step: int | None = None  # None without an interval in steps.
        self.restart(start_step)
        if runs_at_first_step and steps is not None:  # The first interval is one step.
            self._due_step = start_step + 1

    def restart(self, step: int) -> None:
        """Start an interval at `step`."""
        self._start_step = step
        self._start_time = time.monotonic()
        self._due_step = None if self._steps is None else step + self._steps

    def is_due(self, step: int) -> bool:
        """Return whether the interval has passed at `step`, now."""
        if self._due_step is not None:
            return step >= self._due_step
        return self._seconds is not None and time.monotonic() - self._start_time >= self._seconds

    def find_next_step(self, step: int, step_seconds: float) -> int | None:
        """Return the next due step; None if it is unknown, or if the action never runs.

        Args:
            step: the current step.
            step_seconds: seconds of a step, from which the due step is estimated for an interval in seconds; 0 if unknown.
        """
        if self._seconds is None or not step_seconds:
            return self._due_step  # None without an interval in steps.
        remaining_seconds = self._seconds - (time.monotonic() - self._start_time)
        return step + max(1, int(min(remaining_seconds / step_seconds, _MAX_LOOP_STEPS)))

    def compute_speed(self, step: int) -> float:
        """Return the number of steps per second from the last restart to `step`, the current one."""
        return (step - self._start_step) / max(time.monotonic() - self._start_time, 1e-9)

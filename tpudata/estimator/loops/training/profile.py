"""Profiles of some steps of a training, for TensorBoard's profile plugin."""

import logging
from collections.abc import Callable

from tpudata.estimator.hooks.profiler import begin_profile

_log = logging.getLogger("tpudata")


class Profiler:
    """Profiler of one range of steps.

    Args:
        folder: folder whose plugins/profile gets the profile.
        steps: (first, last) step, counted from 1; None for no profile.
        on_devices: whether jax runs the steps.
    """

    def __init__(self, folder: str, steps: tuple[int, int] | None, *, on_devices: bool = False) -> None:
        self._folder = folder
        self._steps = steps
        self._on_devices = on_devices
        self._begun: int | None = None
        self._end: Callable[[], None] | None = None

    def end(self, step: int) -> int | None:
        """Return the step at which a loop that begins after `step` must end; None for no such step."""
        if self._steps is None:
            return None
        first, last = self._steps
        return first - 1 if step < first - 1 else last if step < last else None

    def before_loop(self, step: int) -> None:
        """Begin the profile, if the next step is in the range."""
        if self._steps is None or self._begun is not None or not self._steps[0] - 1 <= step < self._steps[1]:
            return
        self._end = begin_profile(self._folder, on_devices=self._on_devices)
        if self._end is None:
            _log.warning("Steps %d to %d are not profiled: another profile is running in this process.", *self._steps)
            self._steps = None
            return
        self._begun = step + 1

    def after_loop(self, step: int) -> None:
        """Write the profile, if the last step of the range is done."""
        if self._steps is not None and self._begun is not None and step >= self._steps[1]:
            self.close(step)

    def close(self, step: int) -> None:
        """Write a profile that has begun."""
        if self._end is None:
            return
        self._steps = None
        end, self._end = self._end, None
        end()
        _log.info("Profiled steps %d to %d: tensorboard --logdir %s", self._begun, step, self._folder)

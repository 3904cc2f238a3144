"""How many steps a loop of the device takes, and what is due between two loops."""

import time

from tpudata.estimator.api.config import TPUConfig

_MAX_LOOP = 2**31 - 1


class LoopSize:
    """How many steps the next loop should take.

    Args:
        config: its `iterations_per_loop` is a number of steps, or a time to which the number is fitted.
    """

    def __init__(self, config: TPUConfig) -> None:
        self._seconds = config.loop_seconds
        self._steps = 1 if self._seconds is not None else int(config.iterations_per_loop)
        self._measured = False

    def next(self, remaining: int | None) -> int:
        """Return min(steps per loop, `remaining`); None: no limit."""
        return min(self._steps, _MAX_LOOP if remaining is None else remaining)

    def measure(self, steps: int, seconds: float) -> None:
        """Fit the size to a loop that took `seconds` for `steps` steps; the first one, which compiles, is left out."""
        if self._seconds is None:
            return
        if self._measured and steps:
            fitted = int(self._seconds * steps / max(seconds, 1e-6))
            # One loop of odd length must not throw the next far off.
            self._steps = max(1, min(fitted, 10 * steps, _MAX_LOOP))
        self._measured = True


class Cadence:
    """Says at a loop's end whether something that happens every so many steps (or seconds) is due."""

    def __init__(self, step: int, steps: int | None = None, seconds: float | None = None) -> None:
        self._steps = steps
        self._seconds = seconds
        self.restart(step)

    def restart(self, step: int) -> None:
        """Count from here."""
        self._step = step
        self._time = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether the interval has passed."""
        if self._steps is not None:
            return step - self._step >= self._steps
        return self._seconds is not None and time.monotonic() - self._time >= self._seconds

    def steps_per_second(self, step: int) -> float:
        """Return the speed since the last restart."""
        return (step - self._step) / max(time.monotonic() - self._time, 1e-9)

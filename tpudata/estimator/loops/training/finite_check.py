"""Check that the loss of a training is a number, and that its variables stay finite.

As in TensorFlow's TPUEstimator, an infinite loss does not end training: dynamic loss scaling may cause infinite losses until the
scale has adapted.
"""

import logging
import math

import numpy as np
import numpy.typing as npt

from tpudata.console.tables import count_text
from tpudata.estimator.api.errors import NonFiniteError
from tpudata.estimator.state import checkpoints
from tpudata.estimator.steps.train_step import LoopResult, TrainStep

_log = logging.getLogger("tpudata")


class FiniteCheck:
    """Check of the loss after each loop or step, and of the variables after each loop or `interval` single steps.

    Args:
        step: the compiled step.
        model_dir: folder of the checkpoints, for the message.
        interval: number of single steps between two checks of the variables.
        is_single_step: whether the host runs single steps, for hooks that run at each step.
    """

    def __init__(self, step: TrainStep, model_dir: str, interval: int, *, is_single_step: bool) -> None:
        self._step = step
        self._model_dir = model_dir
        self._interval = interval
        self._is_single_step = is_single_step
        # Single steps since the last check of the variables.
        self._unchecked_steps = 0
        self._has_warned = False

    def check_loop(self, global_step: int, losses: npt.NDArray[np.float32], result: LoopResult) -> None:
        """Check the results of a loop or a step.

        Args:
            global_step: the step that was reached.
            losses: losses of the steps (NumPy).
            result: results of the loop.

        Raises:
            NonFiniteError: the loss is NaN, or a trainable variable NaN or infinite.
        """
        # A loop ends after a loss of NaN, so the last loss shows it. Without steps, there is no loss to check.
        loss = float(losses[-1]) if len(losses) else 0.0
        if not self._has_warned and np.isinf(losses).any():
            self._has_warned = True
            _log.warning("The loss is infinite at or before step %d; training continues.", global_step)
        if not self._is_single_step:
            self._check(global_step, loss, np.asarray(result.finite))
            return
        self._unchecked_steps += 1
        # A single step does not check the variables on the device.
        if not math.isfinite(loss) or self._unchecked_steps >= self._interval:
            self.check_variables(global_step, loss)

    def check_variables(self, global_step: int, loss: float) -> None:
        """Check the loss and the variables after a single step; do nothing after a loop of several steps.

        A hook may have assigned to the variables since the last check.

        Raises:
            NonFiniteError: the loss is NaN, or a trainable variable NaN or infinite.
        """
        if self._is_single_step:  # Loops of several steps check the variables on the device.
            self._unchecked_steps = 0
            self._check(global_step, loss, self._step.compute_finiteness())

    def _check(self, global_step: int, loss: float, finite: npt.NDArray[np.bool_]) -> None:
        """Raise NonFiniteError if the loss is NaN or a variable is not finite.

        Args:
            global_step: the step that was reached.
            loss: loss of the last step.
            finite: whether all values of each variable of the step's `checked` are finite (bool [checked]).
        """
        if not math.isnan(loss) and finite.all():
            return
        bad_names = [name for name, is_finite in zip(self._step.checked, finite, strict=True) if not is_finite]
        problems = [] if math.isfinite(loss) else [f"the loss is {loss}"]
        if bad_names:
            others = len(bad_names) - 1
            verb = f"and {count_text(others, 'more variable')} contain" if others else "contains"
            problems.append(f"the variable {bad_names[0]!r} {verb} NaN or Inf")
        newest = checkpoints.find_latest(self._model_dir)
        last_good = "" if newest is None else f" The last good checkpoint is {newest.prefix}."
        raise NonFiniteError(
            f"Training stopped at step {global_step}: {', '.join(problems)}. Lower the learning rate, or check the input for "
            f"values that are not finite.{last_good}"
        )

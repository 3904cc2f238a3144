"""Check that the loss and the variables of a training stay finite."""

import math
from typing import Any

import numpy as np

from tpudata.estimator.api.errors import NonFiniteError
from tpudata.estimator.state import checkpoints
from tpudata.estimator.steps.train_loop import LoopResult
from tpudata.estimator.steps.train_step import TrainStep


class FiniteCheck:
    """Check of the loss after each loop or step, and of the variables at the ends of loops or as often as loops would end.

    Args:
        step: the compiled step.
        model_dir: folder of the checkpoints, for the message.
        is_step: whether the host runs single steps, for hooks that see each.
        every: number of single steps between two checks of the variables.
    """

    def __init__(self, step: TrainStep, model_dir: str, every: int, *, is_step: bool) -> None:
        self._step = step
        self._model_dir = model_dir
        self._every = every
        self._is_step = is_step
        self._unchecked = 0

    def after_loop(self, global_step: int, loss: float, results: LoopResult) -> None:
        """Check the results of a loop or a step.

        Args:
            global_step: the step that was reached.
            loss: loss of the last step.
            results: results of the loop.

        Raises:
            NonFiniteError: the loss or a variable is NaN or infinite.
        """
        if not self._is_step:
            self._require(global_step, loss, np.asarray(results.finite))
            return
        self._unchecked += 1
        if not math.isfinite(loss) or self._unchecked >= self._every:
            self.check_variables(global_step, loss)

    def check_variables(self, global_step: int, loss: float) -> None:
        """Check the variables after single steps: a hook may have assigned to them since the last check.

        Raises:
            NonFiniteError: a variable is NaN or infinite.
        """
        if self._is_step:
            self._unchecked = 0
            self._require(global_step, loss, self._step.finite())

    def _require(self, global_step: int, loss: float, finite: Any) -> None:
        loss_is_finite = math.isfinite(loss)
        if loss_is_finite and finite.all():
            return
        bad = [name for name, is_finite in zip(self._step.checked, finite, strict=True) if not is_finite]
        what = [] if loss_is_finite else [f"the loss is {loss}"]
        if bad:
            more = f" and {len(bad) - 1} more variables" if len(bad) > 1 else ""
            what.append(f"the variable {bad[0]!r}{more} contains NaN or Inf")
        saved = checkpoints.latest(self._model_dir)
        kept = "" if saved is None else f" The last good checkpoint is {saved.prefix}."
        raise NonFiniteError(
            f"Training stopped at step {global_step}: {', '.join(what)}. Lower the learning rate, or check the input for values "
            f"that are not finite.{kept}"
        )

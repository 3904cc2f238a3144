"""Loops of training steps on the device, and the values that hooks and summaries fetch from the last step of each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.feeding.iteration import StepIteration
from tpudata.estimator.hooks.model_summaries import ModelSummaries
from tpudata.estimator.hooks.monitor import get_tensor_names
from tpudata.estimator.loops.training.finite_check import FiniteCheck
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.train_step import LoopRequest, TrainStep
from tpudata.tensor_types import Array, GraphElement


class LoopValues(NamedTuple):
    """Values of a loop.

    Attributes:
        global_steps: global step after each step that was done.
        losses: losses of these steps.
        has_data: whether there was data for all requested steps.
        fetched: values (NumPy) fetched from the last step, by name of the tensor; {} if no step was done.
    """

    global_steps: list[int]
    losses: list[float]
    has_data: bool
    fetched: dict[str, Array]


class DeviceLoops:
    """Runner of the loops of one training.

    Attributes:
        global_step: the step that was reached.

    Args:
        step: the compiled step.
        store: store of its variables.
        summaries: v1 summaries of model_fn.
        finite_check: check of the losses and the variables.
        has_hooks: whether any process has hooks.
        is_single_step: whether each loop is a single step, for hooks that run at each step.
    """

    def __init__(
        self,
        step: TrainStep,
        store: VariableStore,
        summaries: ModelSummaries,
        finite_check: FiniteCheck,
        *,
        has_hooks: bool,
        is_single_step: bool,
    ) -> None:
        self.global_step = 0
        self._step = step
        self._store = store
        self._summaries = summaries
        self._finite_check = finite_check
        self._has_hooks = has_hooks
        self._is_single_step = is_single_step

    def run(
        self,
        iteration: StepIteration,
        fetches: Sequence[GraphElement],
        feeds: Mapping[str, Array],
        *,
        max_loop_steps: int,
        fetches_summaries: bool,
    ) -> LoopValues:
        """Run a loop of steps, and return their losses and the values fetched from the last step.

        Args:
            iteration: the data.
            fetches: tensors that the last step returns, and operations that it runs; if the summaries need a separate last step,
                the step before it also runs these operations.
            feeds: NumPy values for model_fn's placeholders with a default, by name.
            max_loop_steps: maximum number of steps.
            fetches_summaries: whether to fetch the summaries of the last step, which may then run separately, as a single step.

        Raises:
            ModelFnValueError: train_op never changes the global step.
            NonFiniteError: the loss is NaN, or a trainable variable NaN or infinite.
        """
        if max_loop_steps == 1 or not fetches_summaries or not self._summaries.needs_single_step:
            return self._run_steps(
                iteration, fetches, feeds, max_loop_steps=max_loop_steps, fetches_summaries=fetches_summaries
            )
        # The summaries use values of variables from before the last step, or have side effects, so the last step runs separately.
        # The first call fetches, too: if the data ends there, its last step is the last one of the loop.
        num_first_steps = max_loop_steps - 1
        first_values = self._run_steps(
            iteration, fetches, feeds, max_loop_steps=num_first_steps, fetches_summaries=False
        )
        if not first_values.has_data or len(first_values.losses) < num_first_steps:
            return first_values
        last_values = self._run_steps(iteration, fetches, feeds, max_loop_steps=1, fetches_summaries=True)
        global_steps = [*first_values.global_steps, *last_values.global_steps]
        losses = [*first_values.losses, *last_values.losses]
        return LoopValues(global_steps, losses, last_values.has_data, first_values.fetched | last_values.fetched)

    def _run_steps(
        self,
        iteration: StepIteration,
        fetches: Sequence[GraphElement],
        feeds: Mapping[str, Array],
        *,
        max_loop_steps: int,
        fetches_summaries: bool,
    ) -> LoopValues:
        """Run the steps of a loop in one call of the compiled step, and check their results.

        Args:
            iteration: the data.
            fetches: tensors that the last step returns, and operations that it runs.
            feeds: NumPy values for model_fn's placeholders with a default, by name.
            max_loop_steps: maximum number of steps.
            fetches_summaries: whether to fetch the summaries of the last step.

        Raises:
            ModelFnValueError: train_op never changes the global step.
            NonFiniteError: the loss is NaN, or a trainable variable NaN or infinite.
        """
        summaries, step = self._summaries, self._step
        fetch_names = get_tensor_names(fetches)
        # Always fetch summaries without side effects, so that the step is built once.
        summary_fetches = [
            fetch for fetch in summaries.step_fetches if fetches_summaries or not step.fetches.has_effect(fetch)
        ]
        step.fetches.request((*fetches, *summary_fetches))
        if fetches_summaries:
            summaries.begin()
            fetch_names |= get_tensor_names(summaries.step_fetches)
        self._store.set_source(list(step.variables), source=None)  # No checkpoint has the values after a step.
        global_step_before = self.global_step
        records_summaries = fetches_summaries and summaries.uses_tf_summary
        loop_result = step.run(iteration, LoopRequest(max_loop_steps, records_summaries, self._is_single_step, feeds))
        self.global_step = int(loop_result.global_step)
        losses = np.asarray(loop_result.losses)
        # A hook may count the steps, and a train_op that can count may skip an update, as loss scaling does.
        if len(losses) and self.global_step == global_step_before and not self._has_hooks and not step.can_count_steps:
            raise ModelFnValueError(
                "model_fn: train_op never changes the global step, so that training would not end. Pass "
                "global_step=tf.compat.v1.train.get_global_step() to the optimizer's minimize or apply_gradients."
            )
        self._finite_check.check_loop(self.global_step, losses, loop_result)
        fetched = {name: np.asarray(loop_result.fetched[name]) for name in fetch_names} if len(losses) else {}
        global_steps = np.asarray(loop_result.global_steps).tolist()
        return LoopValues(global_steps, losses.tolist(), bool(loop_result.has_data), fetched)

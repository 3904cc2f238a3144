"""Progress of a training: loss and speed in the log and in the event file, and the summaries of model_fn."""

import logging
from collections.abc import Mapping, Sequence

from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.feeding.signature import list_leaves
from tpudata.estimator.feeding.sparse_parts import drop_sparse
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.model_summaries import ModelSummaries
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.training.pace import Cadence
from tpudata.tensor_types import Array, Specs

_log = logging.getLogger("tpudata")
# As in TensorFlow's StepCounterHook.
_MAX_STALL_WARNINGS = 5


def count_examples(runtime: Runtime, element_spec: Specs) -> int | None:
    """Return the number of rows in a step of training, of all processes together, or None if it is unknown."""
    batch_size = runtime.user_model.batch_sizes[ModeKeys.TRAIN]
    if batch_size is not None:
        return batch_size
    # An element is (features, labels) or features, whose tensors have the same number of rows.
    row_counts = {spec.shape[0] for _, spec in list_leaves((drop_sparse(element_spec), None)) if spec.shape.rank}
    num_rows = row_counts.pop() if len(row_counts) == 1 else None
    # Without a batch size, each process has one replica.
    return None if num_rows is None else int(num_rows) * runtime.peers.count


class Progress:
    """Progress reports of one training, as TensorFlow's Estimator makes them: with an interval of 100, at steps 1, 101 and so on.

    Args:
        events: event file of model_dir.
        summaries: v1 summaries of model_fn.
        config: RunConfig with the intervals.
        num_examples: number of rows in a step, or None if unknown.
        start_step: step at which training begins.
        reports_every_step: whether to also report steps inside a loop, as without a TPU.
    """

    def __init__(
        self,
        events: EventWriter,
        summaries: ModelSummaries,
        config: RunConfig,
        num_examples: int | None,
        start_step: int,
        *,
        reports_every_step: bool,
    ) -> None:
        self._events = events
        self._summaries = summaries
        self._num_examples = num_examples
        self._reports_every_step = reports_every_step
        self._log_cadence = Cadence(start_step, config.log_step_count_steps, runs_at_first_step=True)
        self._summary_cadence = Cadence(start_step, config.save_summary_steps, runs_at_first_step=True)
        # Global step expected after the next step. Loops end by it. Without a TPU, `report` also decides by it whether to write, as
        # TensorFlow's SummarySaverHook does, which decides before the step runs.
        self._expected_step = start_step + 1
        self._logged_step: int | None = None
        self._num_remaining_warnings = _MAX_STALL_WARNINGS

    def are_summaries_due(self, num_steps: int) -> bool:
        """Return whether summaries are due at the end of a loop of `num_steps` steps."""
        return self._summary_cadence.is_due(self._expected_step + num_steps - 1)

    def list_loop_ends(self, step: int) -> tuple[int | None, int | None]:
        """Return the steps at which a loop from `step` on must end: for the log, and for summaries of the loop's last step.

        A step is None if the log, or the summaries, let the loop end anywhere.
        """
        # Both intervals are in steps, so the time of a step is not needed.
        log_end = self._log_cadence.find_next_step(step, step_seconds=0.0)
        due_step = (
            self._summary_cadence.find_next_step(step, step_seconds=0.0) if self._summaries.has_summaries else None
        )
        if due_step is None:
            return log_end, None
        # Whether summaries are due depends on the expected step, which is ahead of the global step after a step that did not count.
        num_steps_ahead = self._expected_step - 1 - step
        return log_end, due_step - num_steps_ahead

    def report(
        self, step_before: int, global_steps: Sequence[int], losses: Sequence[float], fetched: Mapping[str, Array]
    ) -> None:
        """Write the log line and the summaries that are due, and warn of steps that did not count.

        Args:
            step_before: global step at which the loop began.
            global_steps: global step after each step of the loop.
            losses: losses of these steps.
            fetched: NumPy values fetched from the last step, by name.
        """
        # Global step before each step of the loop.
        steps_before = [step_before, *global_steps[:-1]]
        num_stalls = sum(before == after for before, after in zip(steps_before, global_steps, strict=True))
        self._warn_of_stalls(num_stalls, global_steps)
        last_position = len(global_steps) - 1
        # On a TPU, summaries come at the ends of loops.
        reported_positions = range(len(global_steps)) if self._reports_every_step else (last_position,)
        for position in reported_positions:
            step = global_steps[position]
            is_due = self._summary_cadence.is_due(self._expected_step if self._reports_every_step else step)
            # TensorFlow's hook reads the global step after a step only if it writes summaries; otherwise it adds 1 to the old one.
            self._expected_step = (step if is_due else steps_before[position] + 1) + 1
            if is_due:
                self._events.write_scalars(step, {"loss": losses[position]})
                self._summary_cadence.restart(step)
                if position == last_position:  # Only the last step's values are fetched.
                    self._summaries.write(step, fetched, self._events)
        step = global_steps[-1]
        if self._log_cadence.is_due(step):
            # The first log line has no rates: they would include compilation.
            rates = {} if self._logged_step is None else self._compute_rates(step)
            self._log(step, losses[-1], rates)
            if rates:
                self._events.write_scalars(step, rates)
            self._log_cadence.restart(step)

    def _warn_of_stalls(self, num_stalls: int, global_steps: Sequence[int]) -> None:
        """Warn of steps that did not change the global step, at most five times.

        Args:
            num_stalls: number of these steps in the last loop.
            global_steps: global step after each step of the loop.
        """
        if not num_stalls or not self._num_remaining_warnings:
            return
        self._num_remaining_warnings -= 1
        _log.warning(
            "%d of the last %d steps left the global step as it was (now %d). A loss scale that skips an update and the "
            "accumulation of gradients do so; else pass global_step=tf.compat.v1.train.get_global_step() to the optimizer.%s",
            num_stalls,
            len(global_steps),
            global_steps[-1],
            "" if self._num_remaining_warnings else " Further such steps are not reported.",
        )

    def end(self, step: int, loss: float) -> None:
        """Log the last step unless it has been logged, so that even a short run reports its loss."""
        if self._logged_step != step:
            self._log(step, loss, {})

    def _compute_rates(self, step: int) -> dict[str, float]:
        """Return the speeds since the last log line, by tag; examples per second only if the batch size is known."""
        speed = self._log_cadence.compute_speed(step)
        rates = {"global_step/sec": speed}
        return rates if self._num_examples is None else {**rates, "examples/sec": speed * self._num_examples}

    def _log(self, step: int, loss: float, rates: Mapping[str, float]) -> None:
        """Log the loss and the rates of a step."""
        speeds = "".join(f", {name}: {rate:.4g}" for name, rate in rates.items())
        _log.info("step %d: loss = %.6g%s", step, loss, speeds)
        self._logged_step = step

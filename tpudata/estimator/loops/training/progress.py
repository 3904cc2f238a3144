"""Progress of a training: loss and speed in the log and in the event file, and the summaries of model_fn."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.model_summaries import ModelSummaries
from tpudata.estimator.loops.training.pace import Cadence

_log = logging.getLogger("tpudata")


class Progress:
    """Reports one training, from its first step on, as the original does: with an interval of 100 at steps 1, 101 and so on.

    Args:
        events: of the model_dir.
        summaries: what model_fn summarises.
        config: how often.
        examples: rows of a step, or None if that is not known.
        step: that training begins at.
        every_step: whether what comes between two ends of loops counts, too: without a TPU.
    """

    def __init__(
        self,
        events: EventWriter,
        summaries: ModelSummaries,
        config: RunConfig,
        examples: int | None,
        step: int,
        *,
        every_step: bool,
    ) -> None:
        self._events = events
        self._summaries = summaries
        self._examples = examples
        self._every_step = every_step
        self._logging = Cadence(step, config.log_step_count_steps, at_first=True)
        self._summarising = Cadence(step, config.save_summary_steps, at_first=True)
        self._logged_step: int | None = None

    def summarises(self, step: int) -> bool:
        """Return whether summaries are due at `step`."""
        return self._summarising.due(step)

    def ends(self, step: int) -> tuple[int | None, ...]:
        """Return the steps at which a loop has to end for the log, and for summaries of what only the last step gives."""
        summary = self._summarising.next_step(step, 0.0) if self._summaries.wanted else None
        return self._logging.next_step(step, 0.0), summary

    def report(self, step: int, losses: Sequence[float], fetched: Mapping[str, Any]) -> None:
        """Write the log line and the summaries that are due.

        Args:
            step: that the loop ended at.
            losses: of its steps.
            fetched: what the last step gave, by name.
        """
        begin = step - len(losses)
        for number in range(begin + 1, step + 1) if self._every_step else (step,):
            if self._summarising.due(number):
                self._events.scalars(number, {"loss": losses[number - begin - 1]})
                self._summarising.restart(number)
                if number == step:
                    self._summaries.write(step, fetched, self._events)
        if self._logging.due(step):
            # The first time compiling would count.
            rates = {} if self._logged_step is None else self._rates(step)
            self._log(step, losses[-1], rates)
            if rates:
                self._events.scalars(step, rates)
            self._logging.restart(step)

    def end(self, step: int, loss: float) -> None:
        """Log the last step unless that is done: a short run, too, reports its loss."""
        if self._logged_step != step:
            self._log(step, loss, {})

    def _rates(self, step: int) -> dict[str, float]:
        speed = self._logging.steps_per_second(step)
        rates = {"global_step/sec": speed}
        return rates if self._examples is None else {**rates, "examples/sec": speed * self._examples}

    def _log(self, step: int, loss: float, rates: Mapping[str, float]) -> None:
        speeds = "".join(f", {name}: {value:.4g}" for name, value in rates.items())
        _log.info("step %d: loss = %.6g%s", step, loss, speeds)
        self._logged_step = step

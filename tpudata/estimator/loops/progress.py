"""What is told of a training: the loss and the speeds in the log and in the event file, and what model_fn summarises."""

import logging
from collections.abc import Mapping
from typing import Any

from tpudata.estimator.api.config import RunConfig
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.model_summaries import ModelSummaries
from tpudata.estimator.loops.pace import Cadence

_log = logging.getLogger("tpudata")


class Progress:
    """Tells of one training.

    Args:
        events: of the model_dir.
        summaries: what model_fn summarises.
        config: how often.
        examples: rows of a step, or None where that is not known.
        step: that training begins at.
    """

    def __init__(
        self, events: EventWriter, summaries: ModelSummaries, config: RunConfig, examples: int | None, step: int
    ) -> None:
        self._events = events
        self._summaries = summaries
        self._examples = examples
        self._logging = Cadence(step, config.log_step_count_steps)
        self._summarising = Cadence(step, config.save_summary_steps)
        self._logged_step: int | None = None
        self._first = True

    def summarises(self, step: int) -> bool:
        """Whether summaries are due at `step`."""
        return self._summarising.due(step)

    def report(self, step: int, loss: float, fetched: Mapping[str, Any]) -> None:
        """Log and write summaries where due. The first loop's speed tells of compiling, so it is left out."""
        for cadence, is_log in ((self._logging, True), (self._summarising, False)):
            if cadence.due(step):
                speed = cadence.steps_per_second(step)
                rates = {"global_step/sec": speed}
                if self._examples is not None:
                    rates["examples/sec"] = speed * self._examples
                if is_log:
                    self._log(step, loss, {} if self._first else rates)
                else:
                    self._events.scalars(step, {"loss": loss, **({} if self._first else rates)})
                    self._summaries.write(step, fetched, self._events)
                cadence.restart(step)
            elif self._first:
                cadence.restart(step)
        self._first = False

    def end(self, step: int, loss: float) -> None:
        """Log the last step, where that was not done: a short run, too, tells its loss."""
        if self._logged_step != step:
            self._log(step, loss, {})

    def _log(self, step: int, loss: float, rates: Mapping[str, float]) -> None:
        speeds = "".join(f", {name}: {value:.4g}" for name, value in rates.items())
        _log.info("step %d: loss = %.6g%s", step, loss, speeds)
        self._logged_step = step

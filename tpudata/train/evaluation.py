"""Evaluations of a run: once, continuously at each new checkpoint, or during training for early stopping."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpudata.errors import TpudataError
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.loops.training.termination import handle_sigterm
from tpudata.estimator.new_checkpoints import evaluate_new_checkpoints
from tpudata.tensor_types import Array
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.closing_table import Row, make_closing_row
from tpudata.train.outputs.early_stopping import EarlyStopping
from tpudata.train.outputs.record import write_json

if TYPE_CHECKING:
    from tpudata.estimator import TPUEstimator

EVALUATION_NAME = "evaluation.json"
_TIMEOUT_SECONDS = 3600.0


class Evaluation:
    """Exact evaluation of a split; the last result is in evaluation.json.

    Attributes:
        metrics: metrics of the last evaluation; empty before it.
        rows: rows of the closing table, one for each evaluation.

    Args:
        estimator: estimator of the run.
        options: options of the run.
        input_fn: input_fn of evaluation.
        num_records: number of records in the split.
    """

    def __init__(
        self, estimator: TPUEstimator, options: TrainOptions, input_fn: InputFunction, num_records: int
    ) -> None:
        self._estimator = estimator
        self._options = options
        self._input_fn = input_fn
        self._num_records = num_records
        self.metrics: dict[str, Any] = {}
        self.rows: list[Row] = []

    def run(self, checkpoint: str | None = None) -> None:
        """Evaluate a checkpoint (None: the newest), write evaluation.json, set `metrics`, and add a row.

        In a run that trains, SIGTERM ends the evaluation with the exit code of an ended training.
        """
        start_time = time.monotonic()
        with contextlib.ExitStack() as stack:
            if self._options.trains:
                sigterm = stack.enter_context(handle_sigterm())
                stack.enter_context(sigterm.exit_immediately())
            metrics = self._estimator.evaluate(self._input_fn, checkpoint_path=checkpoint)
        seconds = time.monotonic() - start_time
        self.metrics = {name: _convert_to_python(metric) for name, metric in metrics.items()}
        split = self._options.eval_split
        record = {**self.metrics, "split": split, "records": self._num_records}
        write_json(self._options.model_dir, EVALUATION_NAME, record)
        step, loss, accuracy = self.metrics["global_step"], self.metrics["loss"], self.metrics.get("accuracy")
        row = make_closing_row("evaluate", split, self._num_records, step, seconds, loss=loss, accuracy=accuracy)
        self.rows.append(row)

    def run_continuously(self) -> None:
        """Evaluate each checkpoint as it appears, up to the last step or until no new checkpoint appears within the timeout.

        Raises:
            TpudataError: no checkpoint at all appeared within the timeout.
        """
        options = self._options
        timeout = _TIMEOUT_SECONDS if options.continuous_timeout is None else options.continuous_timeout

        def evaluate(checkpoint: str) -> bool:
            """Evaluate a checkpoint, and return whether it is the last one."""
            self.run(checkpoint)
            return bool(self.metrics["global_step"] >= options.train_steps)

        # True once the last checkpoint is evaluated, False after the timeout.
        if evaluate_new_checkpoints(options.model_dir, evaluate, timeout=timeout):
            return
        within_time = f"within {timeout:g} seconds (--continuous-timeout)"
        if not self.metrics:
            raise TpudataError(
                f"--mode eval --continuous: no checkpoint appeared in {options.model_dir} {within_time}. Start training there."
            )
        print(
            f"\nno checkpoint after step {self.metrics['global_step']} {within_time}; --train-steps is {options.train_steps}"
        )

    def train_with_early_stopping(self, train: Callable[[int], int], step: int) -> None:
        """Train and evaluate in turn, up to the last step or until the metric stops improving.

        Args:
            train: function that trains up to a step and returns the step it reached.
            step: step of the newest checkpoint, 0 without a checkpoint.
        """
        options = self._options
        interval = options.save_checkpoints_steps or options.train_steps
        stopping = EarlyStopping(options, self._num_records, step)
        while True:
            # Only at regular steps: an interrupted run must be evaluated at the same steps as an uninterrupted one.
            is_due = step > 0 and (step % interval == 0 or step >= options.train_steps)
            if is_due and step not in stopping.values:
                self.run()
                assert options.early_stop_metric is not None
                metric = float(self.metrics[options.early_stop_metric])
                # `or` is for type checkers: the evaluation has read a checkpoint.
                stopping.add(step, metric, self._estimator.latest_checkpoint() or "")
            if step >= options.train_steps or stopping.is_over:
                break
            step = train(min(options.train_steps, (step // interval + 1) * interval))
        if not self.metrics:
            self.run()  # Earlier runs have evaluated all steps, but the closing table needs metrics.
        stopping.print_best(step)


def _convert_to_python(metric: Array) -> Any:
    """Return a metric as a Python number or a list of numbers, since JSON has no NumPy values."""
    return metric.tolist() if hasattr(metric, "tolist") else metric

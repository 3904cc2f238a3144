"""Evaluations of a run: once, at each checkpoint as it appears, and while training, to end it early."""

from __future__ import annotations

import difflib
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tpudata.errors import UsageError
from tpudata.storage import storage_for
from tpudata.train_options import TrainOptions
from tpudata.train_record import write_json
from tpudata.train_table import Row, closing_row

if TYPE_CHECKING:
    from tpudata.estimator import TPUEstimator

EVALUATION_NAME = "evaluation.json"
STOPPING_NAME = "early_stopping.json"
_POLL_SECONDS = 1.0
_PATIENCE = 3


class Evaluation:
    """Evaluates a split, exactly; the last result is in evaluation.json.

    Args:
        estimator: the run's.
        options: the run's.
        input_fn: what evaluation is fed with.
        records: of the split.
    """

    def __init__(
        self, estimator: TPUEstimator, options: TrainOptions, input_fn: Callable[..., Any], records: int
    ) -> None:
        self._estimator, self._options, self._input_fn, self._records = estimator, options, input_fn, records
        self.metrics: dict[str, Any] = {}
        self.rows: list[Row] = []

    def run(self, checkpoint: str | None = None) -> None:
        """Evaluates a checkpoint, the newest where it is None; sets `metrics`, and adds a row."""
        started = time.monotonic()
        found = self._estimator.evaluate(self._input_fn, checkpoint_path=checkpoint)
        seconds = time.monotonic() - started
        self.metrics = {name: _number(value) for name, value in found.items()}
        split = self._options.eval_split
        record = {**self.metrics, "split": split, "records": self._records}
        write_json(self._options.model_dir, EVALUATION_NAME, record)
        step, accuracy = self.metrics["global_step"], self.metrics.get("accuracy")
        self.rows.append(closing_row("evaluate", split, self._records, step, seconds, self.metrics["loss"], accuracy))

    def run_continuously(self) -> None:
        """Evaluates each checkpoint as it appears, up to that of the last step or until none came for too long."""
        for checkpoint in _new_checkpoints(self._options):
            self.run(checkpoint)
            if self.metrics["global_step"] >= self._options.train_steps:
                return

    def train_until_no_better(self, train: Callable[[int], int], step: int) -> None:
        """Trains from evaluation to evaluation, until the last step or until the metric got no better for too long.

        What it goes by is kept in early_stopping.json: a run that is called again decides as one that was not interrupted.

        Args:
            train: trains up to a step and returns the step that is reached.
            step: of the newest checkpoint, 0 where there is none.

        Raises:
            UsageError: the evaluation has no such metric.
        """
        options = self._options
        every = options.save_checkpoints_steps or options.train_steps
        values = {at: value for at, value in _kept(options).items() if at <= step}
        while True:
            # A run that was interrupted in between was not evaluated there, and one that goes through is not.
            is_due = step > 0 and (step % every == 0 or step >= options.train_steps)
            if is_due and step not in values:
                self.run()
                values[step] = self._metric()
                history = [{"step": at, "value": value} for at, value in values.items()]
                write_json(
                    options.model_dir, STOPPING_NAME, {"metric": options.early_stop_metric, "evaluations": history}
                )
            if step >= options.train_steps or _is_over(list(values.values()), options):
                break
            step = train(min(options.train_steps, (step // every + 1) * every))
        if not self.metrics:
            self.run()
        if step < options.train_steps:
            best = _best(list(values.values()), _is_max(options))
            print(
                f"\nstopped at step {step}: {options.early_stop_metric} was best at step {[*values][best]}, "
                f"{values[[*values][best]]:.4f}, and no better in {len(values) - 1 - best} evaluations since"
            )

    def _metric(self) -> float:
        name = self._options.early_stop_metric or ""
        known = [key for key, value in self.metrics.items() if key != "global_step" and isinstance(value, int | float)]
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise UsageError(
                f"--early-stop-metric {name!r}: the evaluation has no such metric; did you mean {near}? It has {', '.join(known)}."
            )
        return float(self.metrics[name])


def _new_checkpoints(options: TrainOptions) -> Iterator[str]:
    """Each checkpoint of the folder once, from the oldest; ends where none appeared for `continuous_timeout` seconds."""
    import tensorflow as tf

    seen: set[str] = set()
    waiting_since = time.monotonic()
    while True:
        state = tf.train.get_checkpoint_state(options.model_dir)
        paths = [] if state is None else list(state.all_model_checkpoint_paths)
        # Training may have removed an old one by now.
        new = next((path for path in paths if path not in seen and tf.io.gfile.exists(f"{path}.index")), None)
        if new is not None:
            seen.add(new)
            yield new
            waiting_since = time.monotonic()
        elif time.monotonic() - waiting_since >= options.continuous_timeout:
            return
        else:
            time.sleep(min(_POLL_SECONDS, options.continuous_timeout))


def _kept(options: TrainOptions) -> dict[int, float]:
    """The values of earlier calls in this folder, by step, where they are of the same metric."""
    storage = storage_for(options.model_dir)
    path = storage.join(options.model_dir, STOPPING_NAME)
    if storage.stat(path) is None:
        return {}
    record = json.loads(storage.read(path))
    if record["metric"] != options.early_stop_metric:
        return {}
    return {item["step"]: item["value"] for item in record["evaluations"]}


def _is_max(options: TrainOptions) -> bool:
    return (options.early_stop_goal or ("max" if "accuracy" in (options.early_stop_metric or "") else "min")) == "max"


def _best(values: list[float], is_max: bool) -> int:
    """The place of the first of the best values; what is not a number is the worst."""
    signed = [math.inf if math.isnan(value) else -value if is_max else value for value in values]
    return signed.index(min(signed))


def _is_over(values: list[float], options: TrainOptions) -> bool:
    if not values:
        return False
    return len(values) - 1 - _best(values, _is_max(options)) >= (options.early_stop_patience or _PATIENCE)


def _number(value: Any) -> Any:
    """A metric as Python has it: numpy's scalars are no JSON."""
    return value.item() if hasattr(value, "item") else value

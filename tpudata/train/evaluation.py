"""Evaluations of a run: once, continuously at each new checkpoint, or during training for early stopping."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tpudata.console.flags import sentence
from tpudata.console.nearest import suggestion
from tpudata.console.tables import counted
from tpudata.errors import TpudataError, UsageError
from tpudata.storage import storage_for
from tpudata.train.options.train_options import BEST, TrainOptions
from tpudata.train.outputs.closing_table import Row, closing_row
from tpudata.train.outputs.places import best_folder, keep_best
from tpudata.train.outputs.record import write_json

if TYPE_CHECKING:
    from tpudata.estimator import TPUEstimator

EVALUATION_NAME = "evaluation.json"
STOPPING_NAME = "early_stopping.json"
_POLL_SECONDS = 1.0
_PATIENCE = 3
_TIMEOUT = 3600.0
_log = logging.getLogger("tpudata")


class Evaluation:
    """Exact evaluation of a split; the last result is in evaluation.json.

    Args:
        estimator: estimator of the run.
        options: options of the run.
        input_fn: input_fn of evaluation.
        records: number of records in the split.
    """

    def __init__(
        self, estimator: TPUEstimator, options: TrainOptions, input_fn: Callable[..., Any], records: int
    ) -> None:
        self._estimator, self._options, self._input_fn, self._records = estimator, options, input_fn, records
        self.metrics: dict[str, Any] = {}
        self.rows: list[Row] = []

    def run(self, checkpoint: str | None = None) -> None:
        """Evaluate a checkpoint (None: the newest); set `metrics`, and add a row.

        In a run that trains, SIGTERM ends the evaluation with the exit code of an ended training.
        """
        from tpudata.estimator.loops.training.termination import ended_by_sigterm

        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            if self._options.trains:
                stack.enter_context(stack.enter_context(ended_by_sigterm()).nothing_to_lose())
            found = self._estimator.evaluate(self._input_fn, checkpoint_path=checkpoint)
        seconds = time.monotonic() - started
        self.metrics = {name: _number(value) for name, value in found.items()}
        split = self._options.eval_split
        record = {**self.metrics, "split": split, "records": self._records}
        write_json(self._options.model_dir, EVALUATION_NAME, record)
        step, accuracy = self.metrics["global_step"], self.metrics.get("accuracy")
        self.rows.append(closing_row("evaluate", split, self._records, step, seconds, self.metrics["loss"], accuracy))

    def run_continuously(self) -> None:
        """Evaluate each checkpoint as it appears, up to the last step or until a timeout without a new one.

        Raises:
            TpudataError: no checkpoint appeared.
        """
        options = self._options
        for checkpoint in _new_checkpoints(options):
            if not self._run_if_there(checkpoint):
                continue
            if self.metrics["global_step"] >= options.train_steps:
                return
        waited = f"within {_timeout(options):g} seconds (--continuous-timeout)"
        if not self.metrics:
            raise TpudataError(
                f"--mode eval --continuous: no checkpoint appeared in {options.model_dir} {waited}. Start training there."
            )
        print(
            f"\nno checkpoint after step {self.metrics['global_step']} {waited}; --train-steps is {options.train_steps}"
        )

    def _run_if_there(self, checkpoint: str) -> bool:
        """Evaluate a checkpoint unless training removes it first; return whether it was evaluated."""
        from tpudata.estimator import CheckpointError

        try:
            self.run(checkpoint)
        except CheckpointError:
            if _is_there(checkpoint):
                raise
            _log.info("%s was removed before it could be evaluated.", checkpoint)
            return False
        return True

    def train_until_no_better(self, train: Callable[[int], int], step: int) -> None:
        """Train and evaluate in turn, up to the last step or until the metric stops improving.

        Its state is kept in early_stopping.json, so that a resumed run decides as an uninterrupted one. The best checkpoint is
        kept in best/.

        Args:
            train: function that trains up to a step and returns the step it reached.
            step: step of the newest checkpoint, 0 if there is none.
        """
        options = self._options
        every = options.save_checkpoints_steps or options.train_steps
        values = {at: value for at, value in _kept(options, self._records).items() if at <= step}
        while True:
            # Only at regular steps: an interrupted run must be evaluated at the same steps as an uninterrupted one.
            is_due = step > 0 and (step % every == 0 or step >= options.train_steps)
            if is_due and step not in values:
                self.run()
                values[step] = float(self.metrics[options.early_stop_metric or ""])
                if [*values][_best([*values.values()], _is_max(options))] == step:
                    keep_best(options, self._estimator.latest_checkpoint() or "")
                history = [{"step": at, "value": value} for at, value in values.items()]
                record = {
                    "metric": options.early_stop_metric,
                    "split": options.eval_split,
                    "records": self._records,
                    "evaluations": history,
                }
                write_json(options.model_dir, STOPPING_NAME, record)
            if step >= options.train_steps or _is_over(list(values.values()), options):
                break
            step = train(min(options.train_steps, (step // every + 1) * every))
        if not self.metrics:
            self.run()
        best = _best(list(values.values()), _is_max(options))
        at, since = [*values][best], len(values) - 1 - best
        stopped = f"stopped at step {step}: " if step < options.train_steps else ""
        later = f", without improvement in {since} evaluations since" if since else ""
        print(f"\n{stopped}{options.early_stop_metric} was best at step {at}, {values[at]:.4f}{later}")
        print(f"kept in {best_folder(options)}: --checkpoint {BEST} evaluates it, predicts with it and exports it")


def check_metric(options: TrainOptions, names: Sequence[str]) -> None:
    """Check the metric of early stopping before training.

    Args:
        options: options of the run.
        names: names of the metrics of an evaluation.

    Raises:
        UsageError: the evaluation has no such metric.
    """
    name, known = options.early_stop_metric or "", [known for known in names if known != "global_step"]
    if name not in known:
        unknown = sentence(f"--early-stop-metric {name!r}: the evaluation has no such metric{suggestion(name, known)}")
        raise UsageError(f"{unknown} It has {', '.join(known)}.")


def _new_checkpoints(options: TrainOptions) -> Iterator[str]:
    """Yield each checkpoint of the folder once, oldest first; end after `continuous_timeout` seconds without a new one."""
    import tensorflow as tf

    seen: set[str] = set()
    timeout, is_logged = _timeout(options), False
    waiting_since = time.monotonic()
    while True:
        state = tf.train.get_checkpoint_state(options.model_dir)
        paths = [] if state is None else list(state.all_model_checkpoint_paths)
        # Training may have removed an old checkpoint by now.
        new = next((path for path in paths if path not in seen and _is_there(path)), None)
        if new is not None:
            seen.add(new)
            yield new
            waiting_since, is_logged = time.monotonic(), False
        elif time.monotonic() - waiting_since >= timeout:
            return
        else:
            if not is_logged:
                _log.info("Waiting up to %g seconds for a checkpoint in %s.", timeout, options.model_dir)
            is_logged = True
            time.sleep(min(_POLL_SECONDS, timeout))


def _is_there(checkpoint: str) -> bool:
    import tensorflow as tf

    return bool(tf.io.gfile.exists(f"{checkpoint}.index"))


def _timeout(options: TrainOptions) -> float:
    return _TIMEOUT if options.continuous_timeout is None else options.continuous_timeout


def _kept(options: TrainOptions, records: int) -> dict[int, float]:
    """Return the values of earlier runs in this folder, by step, if they are of the same metric and the same records.

    Args:
        options: options of the run.
        records: number of records in the split.

    Raises:
        TpudataError: the file is damaged.
    """
    storage = storage_for(options.model_dir)
    path = storage.join(options.model_dir, STOPPING_NAME)
    if storage.stat(path) is None:
        return {}
    try:
        record = json.loads(storage.read(path))
        before = (record["metric"], record.get("split", options.eval_split), record.get("records", records))
        if before != (options.early_stop_metric, options.eval_split, records):
            print(
                f"early stopping starts again: its values of before are {before[0]} of {counted(before[2], 'record')} in"
                f" {before[1]}"
            )
            return {}
        return {int(item["step"]): float(item["value"]) for item in record["evaluations"]}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TpudataError(
            f"{path} is damaged. Remove it; early stopping then starts again from the newest checkpoint."
        ) from error


def _is_max(options: TrainOptions) -> bool:
    return (options.early_stop_goal or ("max" if "accuracy" in (options.early_stop_metric or "") else "min")) == "max"


def _best(values: list[float], is_max: bool) -> int:
    """Return the index of the first of the best values; NaN is the worst."""
    signed = [math.inf if math.isnan(value) else -value if is_max else value for value in values]
    return signed.index(min(signed))


def _is_over(values: list[float], options: TrainOptions) -> bool:
    if not values:
        return False
    return len(values) - 1 - _best(values, _is_max(options)) >= (options.early_stop_patience or _PATIENCE)


def _number(value: Any) -> Any:
    """Return a metric as a Python number, or a list of them: JSON has no numpy values."""
    return value.tolist() if hasattr(value, "tolist") else value

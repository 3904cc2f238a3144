"""Early stopping: the values of a metric so far, in early_stopping.json, and the best checkpoint, in best/."""

from __future__ import annotations

import contextlib
import json
import math
import posixpath
from collections.abc import Sequence
from pathlib import Path

from tpudata.console.flags import end_sentence
from tpudata.console.nearest import suggestion
from tpudata.console.tables import count_text
from tpudata.errors import StorageError, TpudataError, UsageError
from tpudata.storage import storage_for
from tpudata.train.options.train_options import BEST, TrainOptions
from tpudata.train.outputs.record import write_json

STOPPING_NAME = "early_stopping.json"
_PATIENCE = 3


class EarlyStopping:
    """Values of the metric by step, and the decisions that follow from them.

    The values are saved in a file, so that a resumed run decides like an uninterrupted one.

    Attributes:
        values: the values by step, in the order of the evaluations.

    Args:
        options: options of the run, with an `early_stop_metric`.
        num_records: number of records in the split that is evaluated.
        step: step of the newest checkpoint; values of later steps, which earlier runs recorded, do not count.

    Raises:
        TpudataError: the file is damaged.
    """

    def __init__(self, options: TrainOptions, num_records: int, step: int) -> None:
        self._options = options
        self._num_records = num_records
        metric = options.early_stop_metric or ""
        # Without a goal, accuracies are better if they are higher, and other metrics, such as losses, if they are lower.
        default_goal = "max" if "accuracy" in metric else "min"
        self._is_higher_better = (options.early_stop_goal or default_goal) == "max"
        # Values of later steps are from earlier runs, whose checkpoints are gone.
        self.values = {
            evaluated_step: value for evaluated_step, value in self._read_values().items() if evaluated_step <= step
        }

    def _read_values(self) -> dict[int, float]:
        """Return the recorded values by step; {} without a file.

        If the file is for a different metric, split or number of records, print that it does not count, and return {}.

        Raises:
            TpudataError: the file is damaged.
        """
        options = self._options
        storage = storage_for(options.model_dir)
        path = storage.join(options.model_dir, STOPPING_NAME)
        if storage.stat(path) is None:
            return {}
        try:
            record = json.loads(storage.read(path))
            metric = record["metric"]
            # Files of earlier versions have neither the split nor the number of its records.
            split, num_records = record.get("split", options.eval_split), record.get("records", self._num_records)
            if (metric, split, num_records) != (options.early_stop_metric, options.eval_split, self._num_records):
                print(
                    f"early stopping starts again: its values of before are {metric} of {count_text(num_records, 'record')}"
                    f" in {split}"
                )
                return {}
            return {int(entry["step"]): float(entry["value"]) for entry in record["evaluations"]}
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise TpudataError(
                f"{path} is damaged. Remove it; early stopping then starts again from the newest checkpoint."
            ) from error

    def add(self, step: int, value: float, checkpoint: str) -> None:
        """Add a value to the file, and keep its checkpoint if the value is the best so far.

        Raises:
            StorageError: a file could not be written.
        """
        options = self._options
        self.values[step] = value
        if self._find_best_step() == step:
            _keep_best(checkpoint, get_best_folder(options.model_dir))
        record = {
            "metric": options.early_stop_metric,
            "split": options.eval_split,
            "records": self._num_records,
            "evaluations": [{"step": past_step, "value": past_value} for past_step, past_value in self.values.items()],
        }
        # The file is written last: a run that is killed before that evaluates the step again, and keeps its checkpoint then.
        write_json(options.model_dir, STOPPING_NAME, record)

    def _find_best_step(self) -> int:
        """Return the first step with the best value; NaN is the worst."""

        def compute_badness(step: int) -> float:
            value = self.values[step]
            if math.isnan(value):
                return math.inf
            return -value if self._is_higher_better else value

        return min(self.values, key=compute_badness)

    def _count_since(self, step: int) -> int:
        """Return the number of evaluations after the evaluation at a step."""
        return len(self.values) - 1 - [*self.values].index(step)

    @property
    def is_over(self) -> bool:
        """Whether the metric has stopped improving."""
        patience = self._options.early_stop_patience or _PATIENCE
        return bool(self.values) and self._count_since(self._find_best_step()) >= patience

    def print_best(self, step: int) -> None:
        """Print the best value and where its checkpoint is, after a training that ended at `step`."""
        options, best_step = self._options, self._find_best_step()
        num_later = self._count_since(best_step)
        stop_text = f"stopped at step {step}: " if step < options.train_steps else ""
        later_text = f", without improvement in {count_text(num_later, 'evaluation')} since" if num_later else ""
        print(
            f"\n{stop_text}{options.early_stop_metric} was best at step {best_step}, {self.values[best_step]:.4f}{later_text}"
        )
        print(
            f"kept in {get_best_folder(options.model_dir)}: --checkpoint {BEST} evaluates it, predicts with it and exports it"
        )


def check_metric(options: TrainOptions, names: Sequence[str]) -> None:
    """Check the metric of early stopping before training.

    Args:
        options: options of the run, with an `early_stop_metric`.
        names: names of the metrics of an evaluation.

    Raises:
        UsageError: the evaluation has no such metric.
    """
    name = options.early_stop_metric or ""
    available = [metric for metric in names if metric != "global_step"]
    if name not in available:
        unknown = end_sentence(
            f"--early-stop-metric {name!r}: the evaluation has no such metric{suggestion(name, available)}"
        )
        raise UsageError(f"{unknown} It has {', '.join(available)}.")


def get_best_folder(model_dir: str) -> str:
    """Return the folder in which early stopping keeps the best checkpoint of a model."""
    return storage_for(model_dir).join(model_dir, BEST)


def _keep_best(checkpoint: str, folder: str) -> None:
    """Copy a checkpoint to a folder, in place of the previous checkpoint there.

    Raises:
        StorageError: the checkpoint could not be written, or the previous one not removed.
    """
    import tensorflow as tf

    from tpudata.error_text.libraries import find_reason

    name = Path(checkpoint).name
    # Read now, before this checkpoint takes the place of the previous one in the state file.
    state = tf.train.get_checkpoint_state(folder)
    try:
        tf.io.gfile.makedirs(folder)
        for path in _list_files(checkpoint):
            tf.io.gfile.copy(path, tf.io.gfile.join(folder, Path(path).name), overwrite=True)
    except tf.errors.OpError as error:
        raise StorageError(
            f"{checkpoint}, the best so far, could not be copied to {folder}: {find_reason(error)}. Provide space and permission, "
            "and run again; training continues."
        ) from error
    # The state file, replaced in one piece, names the best checkpoint: until then the previous checkpoint is valid.
    storage = storage_for(folder)
    with storage.create(storage.join(folder, "checkpoint")) as file:
        file.write(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'.encode())
    previous = "" if state is None else str(state.model_checkpoint_path)
    if not previous or Path(previous).name == name:
        return
    try:
        for path in _list_files(previous):
            # Another process may have removed it.
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(path)
    except tf.errors.OpError as error:
        raise StorageError(
            f"{previous}, no longer the best, could not be removed: {find_reason(error)}. Remove its files, and run again; "
            "training continues."
        ) from error


def _list_files(prefix: str) -> list[str]:
    """Return the files of a checkpoint, given its path without suffix. A glob would take `[` in the path for a pattern."""
    import tensorflow as tf

    folder, name = posixpath.split(prefix)
    names = tf.io.gfile.listdir(folder or ".")
    return [tf.io.gfile.join(folder, file_name) for file_name in names if file_name.startswith(f"{name}.")]

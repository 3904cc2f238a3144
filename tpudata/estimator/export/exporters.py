"""Exporters, which export models after evaluations of train_and_evaluate."""

import abc
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import tensorflow as tf

from tpudata.checks import require
from tpudata.estimator.export.serving_input import ServingInputReceiver
from tpudata.tensor_types import Array

if TYPE_CHECKING:
    from tpudata.estimator.base_estimator import BaseEstimator

_log = logging.getLogger("tpudata")
_COMPARE_FN_ARGUMENTS = {"best_eval_result", "current_eval_result"}
# Exports are named after the seconds since 1970, which have 10 digits; other folders are not exports.
_STAMP_LENGTH = 10

ReceiverFn = Callable[[], ServingInputReceiver]


class Exporter(abc.ABC):
    """Interface of an exporter, which exports a model after its evaluation or decides not to."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the exporter's folder under `model_dir/export`, which must be unique."""

    @abc.abstractmethod
    def export(
        self,
        estimator: "BaseEstimator",
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Array],
        is_the_final_export: bool,
    ) -> bytes | str | None:
        """Export the checkpoint, or decide not to.

        Args:
            estimator: the trained estimator.
            export_path: the exporter's folder.
            checkpoint_path: the evaluated checkpoint.
            eval_result: the result of evaluate: NumPy values by name, with "loss" (float32) and "global_step" (int64).
            is_the_final_export: whether training has reached its max_steps.

        Returns:
            The path of the export, or None if there is none.
        """


class _SavedModelExporter(Exporter):
    """Common base of the three exporters. The arguments are those of LatestExporter."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: ReceiverFn,
        assets_extra: Mapping[str, str] | None,
        as_text: bool,
        exports_to_keep: int | None = None,
    ) -> None:
        is_valid = exports_to_keep is None or exports_to_keep > 0
        owner = type(self).__name__
        require(owner, "exports_to_keep", exports_to_keep, is_valid, "positive or None", ValueError)
        self._name = name
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._exports_to_keep = exports_to_keep

    @property
    def name(self) -> str:
        """Name of the exporter's folder under `model_dir/export`."""
        return self._name

    def _export(self, estimator: "BaseEstimator", export_path: str, checkpoint_path: str) -> bytes:
        """Export the checkpoint, and delete the oldest exports beyond `exports_to_keep`; return the path of the export."""
        export_dir = estimator.export_saved_model(
            export_path, self._serving_input_receiver_fn, self._assets_extra, self._as_text, checkpoint_path
        )
        if self._exports_to_keep is not None:
            for stamp in _list_exports(export_path)[: -self._exports_to_keep]:
                tf.io.gfile.rmtree(tf.io.gfile.join(export_path, stamp))
        return export_dir


def _list_exports(export_path: str) -> list[str]:
    """Return the names of the exports in a folder, the oldest first; empty if there is no such folder."""
    if not tf.io.gfile.isdir(export_path):
        return []
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(export_path))
    return sorted(name for name in names if len(name) == _STAMP_LENGTH and name.isdecimal())


class LatestExporter(_SavedModelExporter):
    """Exporter after every evaluation, which keeps the newest exports.

    Args:
        name: name of the exporter, and of its folder under `model_dir/export`.
        serving_input_receiver_fn: as in `BaseEstimator.export_saved_model`.
        assets_extra: as in `BaseEstimator.export_saved_model`.
        as_text: as in `BaseEstimator.export_saved_model`.
        exports_to_keep: number of exports to keep; None for all.

    Raises:
        ValueError: exports_to_keep is not positive.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: ReceiverFn,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)

    def export(
        self,
        estimator: "BaseEstimator",
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Array],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Export the checkpoint, and delete the oldest exports beyond `exports_to_keep`; return the path of the new export."""
        del eval_result, is_the_final_export
        return self._export(estimator, export_path, checkpoint_path)


class FinalExporter(_SavedModelExporter):
    """Exporter that runs once, when training has reached its max_steps.

    Args:
        name: name of the exporter, and of its folder under `model_dir/export`.
        serving_input_receiver_fn: as in `BaseEstimator.export_saved_model`.
        assets_extra: as in `BaseEstimator.export_saved_model`.
        as_text: as in `BaseEstimator.export_saved_model`.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: ReceiverFn,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)

    def export(
        self,
        estimator: "BaseEstimator",
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Array],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Export the checkpoint if it is the last one, and return the path of the export; otherwise return None."""
        del eval_result
        return self._export(estimator, export_path, checkpoint_path) if is_the_final_export else None


def _has_lower_loss(best_eval_result: Mapping[str, Array], current_eval_result: Mapping[str, Array]) -> bool:
    return bool(current_eval_result["loss"] < best_eval_result["loss"])


class BestExporter(_SavedModelExporter):
    """Exporter of each model that is better than all exported before, including earlier runs of the program.

    Args:
        name: name of the exporter, and of its folder under `model_dir/export`.
        serving_input_receiver_fn: as in `BaseEstimator.export_saved_model`.
        assets_extra: as in `BaseEstimator.export_saved_model`.
        as_text: as in `BaseEstimator.export_saved_model`.
        event_file_pattern: pattern in model_dir of the event files of earlier evaluations, in which a new run finds the best result
            so far, if it was exported. For an evaluation with a name, "eval_NAME/*.tfevents.*". None for a new run without a best
            result.
        compare_fn: function of `best_eval_result` and `current_eval_result`, results of evaluate (from event files, only their
            scalars), that returns whether the current one is better; by default, the one with the lower loss.
        exports_to_keep: number of exports to keep; None for all.

    Raises:
        ValueError: exports_to_keep is not positive, or compare_fn has other arguments.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: ReceiverFn | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _has_lower_loss,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        if serving_input_receiver_fn is None:  # It has a default only to keep TensorFlow's order of arguments.
            raise ValueError("BestExporter needs a serving_input_receiver_fn (got None). Pass one.")
        is_valid = callable(compare_fn) and {*inspect.signature(compare_fn).parameters} == _COMPARE_FN_ARGUMENTS
        allowed = "a function of best_eval_result and current_eval_result"
        require("BestExporter", "compare_fn", compare_fn, is_valid, allowed, ValueError)
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._event_file_pattern = event_file_pattern
        self._compare_fn = compare_fn
        # The best result so far, of the estimator with this model_dir.
        self._model_dir: str | None = None
        self._best: Mapping[str, Array] | None = None

    def export(
        self,
        estimator: "BaseEstimator",
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Array],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Export the checkpoint if it is the best so far, and return the path of the export; otherwise return None."""
        del is_the_final_export
        if self._model_dir != estimator.model_dir:
            self._model_dir = estimator.model_dir
            # Without an export, a recorded result is of a model that was not exported.
            self._best = self._find_recorded_best(eval_result["global_step"]) if _list_exports(export_path) else None
        if self._best is not None and not self._is_better(self._best, eval_result):
            return None
        self._best = eval_result
        return self._export(estimator, export_path, checkpoint_path)

    def _is_better(self, best: Mapping[str, Array], current: Mapping[str, Array]) -> bool:
        return self._compare_fn(best_eval_result=best, current_eval_result=current)

    def _find_recorded_best(self, step: int) -> Mapping[str, Array] | None:
        """Return the best result in the event files, without events of `step`, the current evaluation; None without a result."""
        if self._event_file_pattern is None:
            return None
        best: Mapping[str, Array] | None = None
        for path in tf.io.gfile.glob(tf.io.gfile.join(self._model_dir, self._event_file_pattern)):
            for record in tf.data.TFRecordDataset(path):
                event = tf.compat.v1.Event.FromString(record.numpy())
                metrics = {
                    value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")
                }
                # Skip events without numbers (the file's version, a checkpoint's path), and the current evaluation.
                if not metrics or event.step == step:
                    continue
                metrics["global_step"] = event.step
                if best is None or self._is_better(best, metrics):
                    best = metrics
        if best is not None:
            _log.info("The best result so far: %s.", best)
        return best

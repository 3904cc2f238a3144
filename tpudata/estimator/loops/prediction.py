"""Predictions: one for each row of the data."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.console.tables import count_text
from tpudata.devices.errors import ModelFnValueError
from tpudata.errors import UsageError
from tpudata.estimator.api.hook_lists import SessionRunHook, check_hooks
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.feeding.signature import list_leaves
from tpudata.estimator.hooks.monitor import Monitor, get_tensor_names
from tpudata.estimator.hooks.scaffold import ScaffoldLoader, has_scaffold, make_scaffold
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.state.checkpoints import find_requested_or_latest
from tpudata.estimator.steps.predict_step import PredictStep
from tpudata.tensor_types import Arrays, Tensors

_log = logging.getLogger("tpudata")
# predict_keys, hooks, checkpoint_path and yield_single_examples, as `predict` takes them.
PredictOptions: TypeAlias = tuple[Sequence[str] | str | None, Sequence[SessionRunHook] | None, str | None, bool]


def predict(
    runtime: Runtime,
    input_fn: InputFunction,
    predict_keys: Sequence[str] | str | None,
    hooks: Sequence[SessionRunHook] | None,
    checkpoint_path: str | None,
    yield_single_examples: bool,
) -> Iterator[Arrays]:
    """Yield predictions; see `TPUEstimator.predict`."""
    hooks = check_hooks(hooks, "predict(hooks=...)")
    checkpoint = find_requested_or_latest(runtime.model_dir, checkpoint_path)
    feed = runtime.make_feed(input_fn, ModeKeys.PREDICT)
    features_spec, _ = feed.element_spec
    step = runtime.get_step(ModeKeys.PREDICT, (features_spec, None))
    assert isinstance(step, PredictStep)  # The class for this mode.
    keys = _select_keys(step.spec.predictions, predict_keys)
    session = step.make_session(has_additions=bool(hooks or step.spec.prediction_hooks) or has_scaffold(step.spec))
    loader = ScaffoldLoader(step, runtime.store, session, make_scaffold(step.spec, session))
    monitor = Monitor(session, (*hooks, *(step.spec.prediction_hooks or ())), step.spec.predictions)
    monitor.begin()
    with runtime.lock:
        loader.load(checkpoint)
    monitor.after_create_session()
    num_batches = 0
    with contextlib.closing(feed.iterate(None)) as iteration:
        while not monitor.should_stop:
            fetches = monitor.before_run()
            element = None if monitor.should_stop else iteration.next()
            if element is None:
                break
            features, mask = element
            num_batches += 1
            with runtime.lock:
                if runtime.is_training:
                    raise UsageError(
                        "predict: the estimator is training, and these predictions began before that. Consume them before "
                        "train(), or use another estimator."
                    )
                # All predictions come from one checkpoint, even if the caller has trained between two batches.
                loader.reload(checkpoint)
                step.fetches.request(fetches)
                predictions, fetched = step.run(features)
                loader.note_writes()
            monitor.after_run({name: np.asarray(fetched[name]) for name in get_tensor_names(fetches)})
            batch = {key: predictions[key] for key in keys} if keys is not None else predictions
            is_real = step.read_rows(mask)  # False for rows of padding.
            _check_num_rows(batch, len(is_real))
            batch = tf.nest.map_structure(lambda array, is_real=is_real: array[is_real], batch)
            if not yield_single_examples:
                yield batch
                continue
            for row_index in range(int(is_real.sum())):
                yield tf.nest.map_structure(lambda array, row_index=row_index: array[row_index], batch)
    if not num_batches and not monitor.should_stop:
        _log.warning("predict: the input has no batch: there are no predictions. Check input_fn.")
    monitor.end()
    loader.note_writes()


def _check_num_rows(predictions: Arrays, num_rows: int) -> None:
    """Raise ModelFnValueError if a prediction does not have `num_rows` rows."""
    for path, array in list_leaves((predictions, None)):  # The function takes (features, labels).
        if np.ndim(array) == 0 or len(array) != num_rows:
            name = path.replace("features", "predictions", 1)  # Paths of `list_leaves` begin with "features".
            raise ModelFnValueError(
                f"{name} has shape {np.shape(array)} (expected {count_text(num_rows, 'row')}, as in the batch). Predict one for "
                "each row."
            )


def _select_keys(predictions: Tensors, predict_keys: Sequence[str] | str | None) -> list[str] | None:
    """Return the keys of the predictions to yield, in the order of `predictions`; None for all.

    Raises:
        ValueError: the predictions are not a dict, or have none of the keys.
    """
    if predict_keys is None:
        return None
    if not isinstance(predictions, Mapping):
        raise ValueError("predict(predict_keys=...) needs a model_fn whose predictions are a dict. Omit it.")
    requested_keys = [predict_keys] if isinstance(predict_keys, str) else list(predict_keys)
    selected_keys = [key for key in predictions if key in requested_keys]
    if not selected_keys:
        raise ValueError(
            f"predict(predict_keys={requested_keys}) selects nothing (expected some of {sorted(predictions)}). Fix them."
        )
    return selected_keys

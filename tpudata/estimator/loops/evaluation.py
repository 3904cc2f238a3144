"""One evaluation: a pass over the data, its metrics, and their summaries."""

import contextlib
import logging
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tpudata.checks import require_positive_int
from tpudata.estimator.api.hook_lists import SessionRunHook, check_hooks
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.feeding.signature import split_element
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.monitor import Monitor, get_tensor_names
from tpudata.estimator.hooks.scaffold import ScaffoldLoader, has_scaffold, make_scaffold
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.checkpoints import find_requested_or_latest
from tpudata.estimator.steps.eval_step import EvalStep
from tpudata.tensor_types import Array

_log = logging.getLogger("tpudata")


def evaluate(
    runtime: Runtime,
    input_fn: InputFunction,
    steps: int | None,
    hooks: Sequence[SessionRunHook] | None,
    checkpoint_path: str | None,
    events_dir: str | None,
) -> dict[str, Array]:
    """Evaluate a checkpoint; see `TPUEstimator.evaluate`.

    Args:
        runtime: the model on its devices.
        input_fn: function that returns the data.
        steps: maximum number of batches; None for all.
        hooks: hooks of this evaluation, in addition to the spec's evaluation_hooks; or None.
        checkpoint_path: checkpoint to evaluate; None for the newest of model_dir, or the initial values if there is none.
        events_dir: folder of the summaries; None writes none.
    """
    steps = require_positive_int("evaluate", "steps", steps, or_none=True)
    hooks = check_hooks(hooks, "evaluate(hooks=...)")
    checkpoint = find_requested_or_latest(runtime.model_dir, checkpoint_path)
    feed = runtime.make_feed(input_fn, ModeKeys.EVAL)
    if steps is None and feed.is_endless:
        raise ValueError(
            "evaluate(steps=None) needs a dataset that ends (got an endless one). Pass steps, or omit repeat()."
        )
    step = runtime.get_step(ModeKeys.EVAL, feed.element_spec)
    assert isinstance(step, EvalStep)  # The class for this mode.
    session = step.make_session(has_additions=bool(hooks or step.spec.evaluation_hooks) or has_scaffold(step.spec))
    scaffold = make_scaffold(step.spec, session)
    monitor = Monitor(session, (*hooks, *(step.spec.evaluation_hooks or ())), step.spec.loss)
    monitor.begin()
    loader = ScaffoldLoader(step, runtime.store, session, scaffold)
    with runtime.lock:
        loader.load(checkpoint)
    step.reset()
    monitor.after_create_session()
    loss_sum, weight_sum, num_batches = 0.0, 0.0, 0
    with contextlib.closing(feed.iterate(steps)) as iteration:
        while not monitor.should_stop and (steps is None or num_batches < steps):
            fetches = monitor.before_run()
            element = None if monitor.should_stop else iteration.next()
            if element is None:
                break
            step.fetches.request(fetches)
            features, labels = split_element(element)
            with runtime.lock:
                # A prediction with another checkpoint may be running.
                loader.reload(checkpoint)
                batch_loss, batch_weight, fetched = step.run(features, labels)
                loader.note_writes()
            loss_sum += float(batch_loss)
            weight_sum += float(batch_weight)
            num_batches += 1
            monitor.after_run({name: np.asarray(fetched[name]) for name in get_tensor_names(fetches)})
            if step.warns_of_padding:
                _warn_of_padding(step, step.read_rows(features["weights"]))
    if not weight_sum and not monitor.should_stop:
        problem = "has only rows of weight 0" if num_batches else "has no batch"
        _log.warning("evaluate: the input %s, so the loss is 0 and the metrics count no rows. Check input_fn.", problem)
    monitor.end()
    loader.note_writes()
    step.flush()
    with runtime.lock:
        loader.reload(checkpoint)
        loss = np.float32(loss_sum / weight_sum if weight_sum else 0.0)
        metrics: dict[str, Array] = {**step.read_metrics(), "loss": loss, "global_step": np.int64(step.global_step)}
    metrics_text = ", ".join(f"{name} = {metrics[name]}" for name in sorted(metrics))
    _log.info("Evaluated %d %s: %s", num_batches, "batch" if num_batches == 1 else "batches", metrics_text)
    if events_dir is not None:
        _write_summaries(events_dir, metrics, checkpoint)
    return metrics


def _warn_of_padding(step: EvalStep, weights: Array) -> None:
    """Warn, once for `step`, if a batch has rows of weight 0, which the model counts like real ones."""
    num_padding_rows = int(np.sum(weights == 0))
    if not num_padding_rows:
        return
    _log.warning(
        "model_fn does not use features['weights'] in evaluation, and %d of the %d rows of a batch are padding (weight 0): they "
        "count in its loss and metrics like real ones. Weight both, as in tf.compat.v1.losses and tf.compat.v1.metrics with "
        "weights=features['weights'], or choose an eval_batch_size that divides the number of records.",
        num_padding_rows,
        np.size(weights),
    )
    step.warns_of_padding = False


def _write_summaries(folder: str, metrics: dict[str, Array], checkpoint: Checkpoint | None) -> None:
    """Write the metrics as summaries, each type in the form that TensorFlow's Estimator writes."""
    summary = tf.compat.v1.Summary()
    for name, metric in metrics.items():
        if name == "global_step":
            continue
        if isinstance(metric, bytes):
            _add_serialized_summary(summary, name, metric)
        elif np.issubdtype(np.asarray(metric).dtype, np.number) or np.asarray(metric).dtype == bool:
            _add_numbers(summary, name, metric)
        else:
            _log.warning("The metric %r is not a number: it gets no summary.", name)
    step = int(metrics["global_step"])
    events = EventWriter(folder)
    if summary.value:
        events.write_summary(step, summary.SerializeToString())
    if checkpoint is not None:
        events.write_text(step, "checkpoint_path", checkpoint.prefix)
    events.close()


def _add_numbers(summary: tf.compat.v1.Summary, name: str, metric: Array) -> None:
    """Add a metric that is a number or an array of numbers."""
    if np.ndim(metric) == 0:
        summary.value.add(tag=name, simple_value=float(metric))
    else:  # Such as precision_at_thresholds.
        summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(metric))


def _add_serialized_summary(summary: tf.compat.v1.Summary, name: str, serialized: bytes) -> None:
    """Add the summaries of a metric that is itself a serialized Summary, such as one of images."""
    try:
        values = tf.compat.v1.Summary.FromString(serialized).value
    except DecodeError:
        _log.warning("The metric %r is not a number, nor a serialized Summary: it gets no summary.", name)
        return
    for index, value in enumerate(values):
        value.tag = f"{name}/{index}"
    summary.value.extend(values)

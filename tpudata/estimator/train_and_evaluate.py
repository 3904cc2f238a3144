"""train_and_evaluate: training with evaluations in between."""

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.checks import require_positive_int, require_seconds, require_type
from tpudata.estimator.api.hook_lists import CheckpointSaverListener, SessionRunHook, check_hooks, check_listeners
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.named_tuple import NamedTupleMethods
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.base_estimator import BaseEstimator, get_engine
from tpudata.estimator.export.exporters import Exporter
from tpudata.estimator.new_checkpoints import evaluate_new_checkpoints
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.checkpoints import find_latest
from tpudata.tensor_types import Array

_log = logging.getLogger("tpudata")


@dataclasses.dataclass(frozen=True)
class TrainSpec(NamedTupleMethods):
    """Training part of a train_and_evaluate.

    Attributes:
        input_fn: as in `TPUEstimator.train`.
        max_steps: global step to stop at; None for the end of the data.
        hooks, saving_listeners: as in `TPUEstimator.train`; stored as tuples.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: max_steps is not positive.
    """

    input_fn: InputFunction
    max_steps: int | None = None
    hooks: Sequence[SessionRunHook] | None = None
    saving_listeners: Sequence[CheckpointSaverListener] | None = None

    def __post_init__(self) -> None:
        _require_callable("TrainSpec", self.input_fn)
        max_steps = require_positive_int("TrainSpec", "max_steps", self.max_steps, or_none=True)
        object.__setattr__(self, "max_steps", max_steps)
        object.__setattr__(self, "hooks", check_hooks(self.hooks, "TrainSpec(hooks=...)"))
        listeners = check_listeners(self.saving_listeners, "TrainSpec(saving_listeners=...)")
        object.__setattr__(self, "saving_listeners", listeners)


@dataclasses.dataclass(frozen=True)
class EvalSpec(NamedTupleMethods):
    """Evaluation part of a train_and_evaluate.

    Attributes:
        input_fn: as in `TPUEstimator.evaluate`.
        steps: maximum number of batches in an evaluation; None for all.
        name: as in `TPUEstimator.evaluate`.
        hooks: as in `TPUEstimator.evaluate`; stored as a tuple.
        exporters: one Exporter or several, called after each evaluation; stored as a tuple.
        start_delay_secs: seconds that the evaluator of a TF_CONFIG cluster waits before its first evaluation. If one process trains
            and evaluates, the first evaluation follows the first checkpoint, as in TensorFlow.
        throttle_secs: minimum number of seconds between the starts of two evaluations; checkpoints in between are not evaluated,
            except the last one.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: steps is not positive, a time is negative, or exporters have no name or the same name.
    """

    input_fn: InputFunction
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[SessionRunHook] | None = None
    exporters: Exporter | Sequence[Exporter] | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        _require_callable("EvalSpec", self.input_fn)
        object.__setattr__(self, "steps", require_positive_int("EvalSpec", "steps", self.steps, or_none=True))
        require_type("EvalSpec(name=...)", self.name, isinstance(self.name, str | None), "a string or None")
        for field in ("start_delay_secs", "throttle_secs"):
            require_seconds("EvalSpec", field, getattr(self, field))
        object.__setattr__(self, "hooks", check_hooks(self.hooks, "EvalSpec(hooks=...)"))
        object.__setattr__(self, "exporters", _check_exporters(self.exporters))


def _require_callable(owner: str, input_fn: object) -> None:
    require_type(f"{owner}(input_fn=...)", input_fn, callable(input_fn), "callable")


def _check_exporters(exporter_or_list: Any) -> tuple[Exporter, ...]:
    """Check the exporters of an EvalSpec, and return them as a tuple; () for None.

    Raises:
        TypeError: one of them is not an Exporter.
        ValueError: an exporter has no name, or two have the same name.
    """
    if exporter_or_list is None:
        return ()
    exporters = (
        tuple(exporter_or_list) if isinstance(exporter_or_list, list | tuple | set | frozenset) else (exporter_or_list,)
    )
    for exporter in exporters:
        if not isinstance(exporter, Exporter):
            raise TypeError(
                f"EvalSpec(exporters=...): wrong type (got {type(exporter).__name__}, expected an Exporter, a list of them or"
                " None)."
            )
        if not isinstance(exporter.name, str) or not exporter.name:
            raise ValueError(
                f"EvalSpec(exporters=...): invalid name of an exporter (got {exporter.name!r}, expected a"
                " non-empty string)."
            )
    names = [exporter.name for exporter in exporters]
    if len(set(names)) < len(names):
        raise ValueError(f"EvalSpec(exporters=...): names must differ (got {names}). Rename one.")
    return exporters


def train_and_evaluate(
    estimator: BaseEstimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Array] | None, list[bytes | str | None] | None]:
    """Train, and evaluate and export checkpoints during training.

    All checkpoints are evaluated except the one that training starts from and the ones too soon after an evaluation
    (`throttle_secs`); the last one is always evaluated. The RunConfig sets the interval of checkpoints.

    In a TF_CONFIG cluster, the chief and the workers train, and the evaluator evaluates the newest checkpoint whenever it finds a
    new one, until one has reached max_steps. A cluster without an evaluator does not evaluate, as in TensorFlow's TPUEstimator. The
    hosts of a TPU all run the same evaluation, each on its own chips, and the first host writes summaries and exports.

    Args:
        estimator: the estimator to train.
        train_spec: the training data, and the step to stop at.
        eval_spec: the evaluation data, and the exporters.

    Returns:
        The result of the last evaluation and the results of its exporters, in order. (None, None) if max_steps had already been
        reached, and in the chief and the workers of a cluster.

    Raises:
        TypeError: an argument has the wrong type; also an error of train, evaluate or export_saved_model.
        ValueError: an error of train, evaluate or export_saved_model.
    """
    for name, argument, expected_type, allowed in (
        ("estimator", estimator, BaseEstimator, "a TPUEstimator or an Estimator"),
        ("train_spec", train_spec, TrainSpec, "a TrainSpec"),
        ("eval_spec", eval_spec, EvalSpec, "an EvalSpec"),
    ):
        require_type(f"train_and_evaluate({name}=...)", argument, isinstance(argument, expected_type), allowed)
    engine = get_engine(estimator)
    config = estimator.config
    max_steps = train_spec.max_steps
    if engine.rehearses:
        input_fns = {ModeKeys.TRAIN: train_spec.input_fn, ModeKeys.EVAL: eval_spec.input_fn}
        return engine.rehearse_call(input_fns, has_limit=max_steps is not None), []
    topology = engine.training_runtime.topology
    has_other_evaluator = "evaluator" in config.cluster_spec.jobs and config.task_type != "evaluator"
    # The chief and the workers of a cluster only train; the hosts of a TPU also evaluate.
    if not topology.is_tpu and (topology.peers.count > 1 or has_other_evaluator):
        estimator.train(
            train_spec.input_fn,
            train_spec.hooks,
            max_steps=max_steps,
            saving_listeners=train_spec.saving_listeners,
        )
        return None, None
    evaluator = _Evaluator(estimator, eval_spec, max_steps)
    if config.task_type == "evaluator":
        evaluator.run()
        return evaluator.metrics, evaluator.exports
    start_checkpoint = find_latest(estimator.model_dir)
    if max_steps is not None and start_checkpoint is not None and start_checkpoint.read_step() >= max_steps:
        _log.info("Nothing to train or to evaluate: %s has reached max_steps=%d.", start_checkpoint.prefix, max_steps)
        return None, None
    engine.train(
        train_spec.input_fn,
        steps=None,
        max_steps=max_steps,
        hooks=train_spec.hooks,
        saving_listeners=train_spec.saving_listeners,
        follower=evaluator,
    )
    # This evaluates nothing if training has already called it, unless a hook's `end` has written another checkpoint since.
    evaluator.finish()
    return evaluator.metrics, evaluator.exports


class _Evaluator:
    """Evaluations and exports of checkpoints; the CheckpointFollower of the training in this process.

    Attributes:
        metrics: result of the last evaluation; None before the first.
        exports: results of its exporters, in order; None before the first.

    Args:
        estimator: the estimator whose checkpoints are evaluated.
        spec: the evaluation data, its limits and its exporters.
        max_steps: global step of the last checkpoint; None if training has no limit.
    """

    def __init__(self, estimator: BaseEstimator, spec: EvalSpec, max_steps: int | None) -> None:
        self.metrics: dict[str, Array] | None = None
        self.exports: list[bytes | str | None] | None = None
        self._estimator = estimator
        self._engine = get_engine(estimator)
        self._spec = spec
        self._max_steps = max_steps
        # Start (time.monotonic) and path of the last evaluation.
        self._last_start_time: float | None = None
        self._evaluated_path: str | None = None

    def after_save(self, checkpoint: Checkpoint) -> None:
        """Evaluate a checkpoint, unless the last evaluation began less than throttle_secs ago."""
        if self._last_start_time is not None and time.monotonic() - self._last_start_time < self._spec.throttle_secs:
            _log.info("%s is not evaluated: throttle_secs=%g.", checkpoint.prefix, self._spec.throttle_secs)
            return
        self._evaluate(checkpoint.prefix)

    def run(self) -> None:
        """Evaluate the newest checkpoint of other processes whenever there is a new one, until one has reached the last step."""
        spec = self._spec
        if spec.start_delay_secs:
            _log.info("Waiting %g s before the first evaluation.", spec.start_delay_secs)
            time.sleep(spec.start_delay_secs)
        evaluate_new_checkpoints(
            self._estimator.model_dir, self._evaluate, newest_only=True, throttle_secs=spec.throttle_secs
        )

    def finish(self) -> None:
        """Evaluate the last checkpoint, unless it has been evaluated."""
        path = self._estimator.latest_checkpoint()
        if path is not None and path != self._evaluated_path:
            self._evaluate(path)

    def _evaluate(self, path: str) -> bool:
        """Evaluate and export a checkpoint; return whether it has reached the last step."""
        self._last_start_time = time.monotonic()
        spec = self._spec
        events_dir = self._estimator.eval_dir(spec.name)
        metrics = self._engine.evaluate(spec.input_fn, spec.steps, spec.hooks, path, events_dir, shares_variables=True)
        self._evaluated_path = path
        self.metrics = metrics
        is_final = self._max_steps is not None and bool(metrics["global_step"] >= self._max_steps)
        if not self._engine.training_runtime.peers.is_chief:
            self.exports = []
            return is_final
        exports_dir = tf.io.gfile.join(self._estimator.model_dir, "export")
        self.exports = [
            exporter.export(
                estimator=self._estimator,
                export_path=tf.io.gfile.join(exports_dir, exporter.name),
                checkpoint_path=path,
                eval_result=metrics,
                is_the_final_export=is_final,
            )
            for exporter in _check_exporters(spec.exporters)  # Checked already; this gives the type checker a tuple.
        ]
        return is_final

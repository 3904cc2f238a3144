"""The engine of an estimator: its runtimes, and the calls on them."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from tpudata.checks import require_one_of
from tpudata.devices.tpu_compiler.topologies import TPUSlice
from tpudata.errors import UsageError
from tpudata.estimator.api.hook_lists import CheckpointSaverListener, SessionRunHook
from tpudata.estimator.api.mode_keys import MODES, ModeKeys
from tpudata.estimator.api.step_limits import check_steps
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.loops.evaluation import evaluate
from tpudata.estimator.loops.prediction import PredictOptions, predict
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.training.checkpointing import CheckpointFollower
from tpudata.estimator.loops.training.loop import train
from tpudata.estimator.state.checkpoints import find_chiefs_latest
from tpudata.estimator.state.claim import claim_model_dir
from tpudata.estimator.steps.eval_step import EvalStep
from tpudata.estimator.tpu_check.rehearsal import rehearse
from tpudata.estimator.tpu_check.result import Rehearsal, make_placeholder_metrics
from tpudata.tensor_types import Array, Arrays
from tpudata.tensorflow_internals import eager_mode


class Engine:
    """The calls of one estimator, and the runtimes on which they run.

    The estimator's methods use it. So do train_and_evaluate and check_tpu_compatibility, which need more than the methods offer.

    Attributes:
        training_runtime: runtime that trains.
        rehearses: whether calls only look for what a TPU would reject.
        last_loss: loss of the last step that was trained; None if there was none.

    Args:
        training_runtime: runtime that trains.
        evaluating_runtime: runtime that evaluates; None for the one that predicts.
        rehearses: whether calls only look for what a TPU would reject.
    """

    def __init__(
        self, training_runtime: Runtime, evaluating_runtime: Runtime | None = None, *, rehearses: bool = False
    ) -> None:
        self.training_runtime = training_runtime
        self.rehearses = rehearses
        self.last_loss: float | None = None
        self._evaluating_runtime = evaluating_runtime  # None to evaluate on the runtime that predicts.
        # Clones that evaluate and predict while a runtime is in use, by the id of that runtime.
        self._clones: dict[int, list[Runtime]] = {}

    @property
    def config(self) -> RunConfig:
        """The RunConfig."""
        return self.training_runtime.config

    @functools.cached_property
    def predicting_runtime(self) -> Runtime:
        """The runtime that predicts and exports: the one that trains, or if that spans processes, a clone on this process."""
        runtime = self.training_runtime
        if runtime.peers.count == 1:
            return runtime
        return runtime.clone_on(lambda: runtime.topology.select_this_process())

    def train(
        self,
        input_fn: InputFunction,
        steps: int | None,
        max_steps: int | None,
        hooks: Sequence[SessionRunHook] | None = None,
        saving_listeners: Sequence[CheckpointSaverListener] | None = None,
        follower: CheckpointFollower | None = None,
    ) -> None:
        """Train as described in `TPUEstimator.train`; `follower` is called for each checkpoint except the one at the start."""
        if self.rehearses:
            check_steps(steps, max_steps)  # Otherwise the training loop checks them.
            self.rehearse_call({ModeKeys.TRAIN: input_fn}, has_limit=steps is not None or max_steps is not None)
            return
        config = self.config
        if config.task_type == "evaluator" and not self.training_runtime.topology.is_tpu:
            raise UsageError(
                f"TF_CONFIG: this process is evaluator {config.task_id}, and an evaluator does not train (got train, expected "
                "train_and_evaluate or evaluate). Call train in the chief and the workers."
            )
        with self._hold_training_runtime() as runtime:
            # Only the chief writes to model_dir.
            claim = claim_model_dir(runtime.model_dir) if runtime.peers.is_chief else contextlib.nullcontext()
            # Programs may call this inside a graph.
            with claim, eager_mode():
                loss = train(runtime, input_fn, steps, max_steps, hooks, saving_listeners, follower)
        if loss is not None:
            self.last_loss = loss

    def evaluate(
        self,
        input_fn: InputFunction,
        steps: int | None,
        hooks: Sequence[SessionRunHook] | None,
        checkpoint_path: str | None,
        events_dir: str,
        *,
        shares_variables: bool = False,
    ) -> dict[str, Array]:
        """Evaluate as described in `TPUEstimator.evaluate`, with summaries in `events_dir`.

        With `shares_variables`, a training that waits for the evaluation lends its variables, and loads them again afterwards.
        """
        if self.rehearses:
            return self.rehearse_call({ModeKeys.EVAL: input_fn})
        topology = self.training_runtime.topology
        # All hosts of a TPU compute the same results, which one of them writes. Without a TPU, each process writes its own.
        writes_summaries = topology.peers.is_chief or not topology.is_tpu
        runtime = self._evaluating_runtime or self.predicting_runtime
        is_lent = shares_variables and runtime.is_training
        context = contextlib.nullcontext(runtime) if is_lent else self._hold_idle_runtime(runtime)
        summaries_dir = events_dir if writes_summaries else None
        # Hooks may call this inside a graph.
        with eager_mode(), context as held_runtime:
            return evaluate(held_runtime, input_fn, steps, hooks, checkpoint_path, summaries_dir)

    def predict(self, input_fn: InputFunction, *options: *PredictOptions) -> Iterator[Arrays]:
        """Return an iterator of predictions, as described in `TPUEstimator.predict`; `options` are its other arguments."""
        if self.rehearses:
            self.rehearse_call({ModeKeys.PREDICT: input_fn})
            return iter(())
        rows = self._predict(input_fn, *options)
        if tf.executing_eagerly():
            return rows
        with eager_mode():  # A hook calls this inside a graph, in which a generator would run.
            return iter(list(rows))

    def _predict(self, input_fn: InputFunction, *options: *PredictOptions) -> Iterator[Arrays]:
        """Yield predictions, from an idle clone if the runtime is training."""
        runtime = self.predicting_runtime
        if runtime.is_training:
            # The clone is released immediately: evaluations between two predictions may also use it, since each batch reloads its
            # variables.
            with self._hold_idle_runtime(runtime) as idle_runtime:
                runtime = idle_runtime
        yield from predict(runtime, input_fn, *options)

    def check_model(self, input_fn: InputFunction, mode: str) -> tuple[str, ...]:
        """Build the model and load the newest checkpoint; see `TPUEstimator.check_model`."""
        require_one_of("check_model(mode=...)", mode, MODES)
        mode_runtime = self.training_runtime if mode == ModeKeys.TRAIN else self.predicting_runtime
        with self._hold_idle_runtime(mode_runtime) as runtime:
            # Check the batch sizes of all modes, so that no evaluation fails after a long training.
            for other_mode, batch_size in runtime.user_model.batch_sizes.items():
                if batch_size is not None:
                    runtime.make_deployment(other_mode)  # Raises an error for a batch size that cannot be split.
            with runtime.peers.translate_errors():
                checkpoint = find_chiefs_latest(runtime.model_dir, runtime.peers)
                # The start_step that training will pass, for callers that keep the dataset.
                start_step = checkpoint.read_step() if checkpoint is not None and mode == ModeKeys.TRAIN else 0
                spec = runtime.make_feed(input_fn, mode, start_step).element_spec
                if mode == ModeKeys.PREDICT:
                    # Drop the mask of real rows, which model_fn does not get.
                    features_spec, _ = spec
                    spec = (features_spec, None)
                step = runtime.get_step(mode, spec)
                runtime.store.load(step.blueprint, step.saved, checkpoint)
        return (*step.metric_names, "loss", "global_step") if isinstance(step, EvalStep) else ()

    def rehearse(
        self, input_fns: Mapping[str, InputFunction], tpu: TPUSlice | None = None, effort: str = "quick"
    ) -> Rehearsal:
        """Rehearse the modes of `input_fns` that run on the TPU; see `check_tpu_compatibility`."""
        # A separate runtime that evaluates is not on the TPU.
        tpu_input_fns = {
            mode: input_fn
            for mode, input_fn in input_fns.items()
            if mode != ModeKeys.EVAL or not self._evaluating_runtime
        }
        with eager_mode():
            return rehearse(self.training_runtime, tpu_input_fns, tpu, effort)

    def rehearse_call(self, input_fns: Mapping[str, InputFunction], *, has_limit: bool = True) -> dict[str, Array]:
        """Rehearse a call instead of running it; return placeholders for the metrics.

        Args:
            input_fns: input_fn of each mode that the call would run.
            has_limit: whether the call limits the number of training steps; True for a call that does not train.

        Raises:
            RehearsalError: a TPU would reject something, or the call does not limit training.
        """
        return make_placeholder_metrics(self.rehearse(input_fns), list(input_fns), has_limit=has_limit)

    @contextlib.contextmanager
    def _hold_training_runtime(self) -> Iterator[Runtime]:
        """Yield the runtime that trains, for exclusive use.

        Raises:
            UsageError: the runtime is in use.
        """
        runtime = self.training_runtime
        if not runtime.usage_lock.acquire(blocking=False):
            raise UsageError(
                "train: the same estimator is already training or evaluating (got a call from a hook, an input_fn or another "
                "thread, expected none in the meantime). Let it end first, or use another estimator."
            )
        try:
            # Taking the lock waits for the current batch of a running prediction; its next batch then raises an error.
            with runtime.lock:
                runtime.is_training = True
            yield runtime
        finally:
            runtime.is_training = False
            self._clones.clear()  # Their variables take memory, and this runtime is idle again.
            runtime.usage_lock.release()

    @contextlib.contextmanager
    def _hold_idle_runtime(self, runtime: Runtime) -> Iterator[Runtime]:
        """Yield an idle runtime for exclusive use: `runtime`, or a clone of it with separate variables if `runtime` is busy."""
        clones = self._clones.setdefault(id(runtime), [])
        for idle_runtime in (runtime, *clones):
            if idle_runtime.usage_lock.acquire(blocking=False):
                break
        else:  # All are busy.
            idle_runtime = runtime.clone()
            idle_runtime.usage_lock.acquire()
            clones.append(idle_runtime)
        try:
            yield idle_runtime
        finally:
            idle_runtime.usage_lock.release()

"""TPUEstimator: the object that users hold."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator.api.arguments import checked_batch_axis, checked_batch_size, checked_params, found_model_dir
from tpudata.estimator.api.config import RunConfig, TPUConfig
from tpudata.estimator.api.findings import Finding
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.session_config import apply_session_config
from tpudata.estimator.api.steps import check_steps
from tpudata.estimator.devices.topology import local_topology
from tpudata.estimator.devices.tpu_system import tpu_topology
from tpudata.estimator.export.saved_model import export_saved_model
from tpudata.estimator.export.serving_input import ServingInputReceiver
from tpudata.estimator.feeding.signature import check_model_fn
from tpudata.estimator.hooks.saving import AfterSave
from tpudata.estimator.loops.evaluation import evaluate
from tpudata.estimator.loops.model_check import check_model
from tpudata.estimator.loops.prediction import predict
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.training import train
from tpudata.estimator.state.model_dir import ModelDir
from tpudata.estimator.state.warm_start import WarmStartSettings, warm_start_settings
from tpudata.estimator.tpu_check.rehearsal import rehearse
from tpudata.estimator.tpu_check.result import Rehearsal, stand_in


class TPUEstimator(ModelDir):
    """Trains, evaluates and applies a model that a model_fn describes, on a CPU, on GPUs or on a TPU.

    model_fn takes `features` and any of `labels`, `mode`, `params`, `config` and returns a TPUEstimatorSpec (or an
    EstimatorSpec). It may use `tf.compat.v1` (get_variable, optimizers, metrics) and Keras layers made inside it. It is
    traced, not called at every step, and must make the same variables at every trace. In training, every op of it that
    changes state runs at each step, whether or not train_op depends on it; in the other modes only what the loss, the
    metrics and the predictions need.

    input_fn takes `params` and any of `config`, `mode`, `input_context`, `start_step`, and returns a `tf.data.Dataset` of
    features or of (features, labels), batched, or their tensors, as v1 programs do. `params["batch_size"]` is the size given
    here for the mode, and absent where that is None; model_fn sees it too, and `params["use_tpu"]`.

    On several replicas (a TPU, or TPUConfig's num_replicas) batches are split among them: input_fn is called as the TPUConfig's
    input mode says, with that mode's part of the batch size in `params["batch_size"]`; model_fn is called with one replica's
    rows, and their number there. Both get a `params["context"]` with `num_replicas` and `num_hosts`, and for input_fn
    `current_host` and `current_input_fn_deployment()`. Shapes must be static. With the optimizer in a CrossShardOptimizer, and a
    loss that is a mean over rows, N replicas train as one does. What model_fn assigns to a variable becomes, where the variable
    does not say otherwise, the mean of what the replicas assign (of integers, the first's). Batch normalization sees its own
    replica's rows alone; of its moving averages, each replica keeps its own, and their mean is stored.

    Args:
        model_fn: as above.
        model_dir: folder of checkpoints and event files, local or gs://; by default the RunConfig's, else a new
            temporary one.
        config: a RunConfig.
        params: a dict for model_fn and input_fn, who each get a copy.
        use_tpu: whether to run on a TPU, which is connected to at the first call that needs it.
        train_batch_size, eval_batch_size, predict_batch_size: rows per step, of all replicas together.
        batch_axis: of each tensor of (features, labels), in the order of `tf.nest.flatten`, the axis along which its rows lie,
            where that is not 0, as for images of shape [height, width, channels, rows]. For PER_HOST_V1 and SLICED.
        eval_on_tpu: False evaluates on one device of this machine, as without a TPU.
        warm_start_from: where the first values of variables come from while model_dir holds no checkpoint: WarmStartSettings, or
            a path for all trainable variables.
        rehearse: True looks for what a TPU would refuse, in place of using one: `train`, `evaluate` and `predict` (and
            train_and_evaluate) call `rehearse` and run nothing. Where it finds nothing, they return as on empty data, with metrics
            of NaN; model_dir is not written to.

    Raises:
        TypeError: a value of another type.
        ValueError: a config of another type, a reserved key in params, a batch size that is not positive, no train_batch_size
            with use_tpu, a model_fn without `features` or with unknown arguments, model_dir unlike the RunConfig's.
        UsageError: TensorFlow 2 behaviour is switched off, or its devices have started with too few for num_replicas.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Sequence[int] | None = None,
        eval_on_tpu: bool = True,
        *,
        warm_start_from: str | WarmStartSettings | None = None,
        rehearse: bool = False,
    ) -> None:
        check_model_fn(model_fn)
        config = RunConfig() if config is None else config
        if not isinstance(config, RunConfig) or not isinstance(config.tpu_config, TPUConfig):
            raise ValueError(f"TPUEstimator(config=...) must be a tpudata RunConfig, got {type(config).__name__}.")
        sizes = {
            ModeKeys.TRAIN: checked_batch_size("train_batch_size", train_batch_size),
            ModeKeys.EVAL: checked_batch_size("eval_batch_size", eval_batch_size),
            ModeKeys.PREDICT: checked_batch_size("predict_batch_size", predict_batch_size),
        }
        if use_tpu and train_batch_size is None:
            raise ValueError("TPUEstimator(use_tpu=True) needs a train_batch_size.")
        if not use_tpu and config.master not in (None, "", "local"):
            raise ValueError(
                f"RunConfig(master={config.master!r}) names a TPU, and TPUEstimator(use_tpu=False) runs on this machine: leave one "
                "out."
            )
        if use_tpu and config.tpu_config.num_replicas is not None:
            raise ValueError(
                f"TPUConfig(num_replicas={config.tpu_config.num_replicas}) is for use_tpu=False: a TPU's replicas are its cores. "
                "Omit it, or pass num_shards."
            )
        if not tf.executing_eagerly():
            raise UsageError(
                "TPUEstimator needs TensorFlow 2 behaviour: remove tf.compat.v1.disable_v2_behavior() and "
                "disable_eager_execution(), and make the estimator outside of a tf.Graph. The tf.compat.v1 calls in "
                "model_fn work without them."
            )
        warm_start = warm_start_settings(warm_start_from)
        self._params = checked_params(params)
        folder = found_model_dir(model_dir, config)
        super().__init__(folder)
        apply_session_config(config.session_config)
        self._config = config.replace(model_dir=folder)
        self._last_loss: float | None = None
        # What evaluates and predicts while the runtimes are in use, by their ids; with variables of their own.
        self._spares: dict[int, list[Runtime]] = {}
        # Logical devices can be made now, but not after TensorFlow has started; a TPU is connected to when it is needed.
        self._rehearses = rehearse
        local = None if use_tpu else local_topology(None if rehearse else config.tpu_config.num_replicas)
        self._runtime = Runtime(
            model_fn,
            folder,
            self._config,
            self._params,
            sizes,
            find_topology=lambda: local or tpu_topology(config),
            warm_start=warm_start,
            batch_axis=checked_batch_axis(batch_axis, config.tpu_config),
        )
        self._evaluation_runtime = (
            self._runtime
            if eval_on_tpu
            else dataclasses.replace(self._runtime, find_topology=functools.partial(local_topology, None))
        )

    @property
    def config(self) -> RunConfig:
        """The configuration, with the model_dir that is used."""
        return self._config

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the params."""
        return copy.deepcopy(self._params)

    @property
    def last_loss(self) -> float | None:
        """Loss of the last step that this estimator trained; None where it trained none."""
        return self._last_loss

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> "TPUEstimator":
        """Train from the newest checkpoint of model_dir, or from the start.

        Steps run on the device in loops of the TPUConfig's `iterations_per_loop`. On a TPU, checkpoints, summaries and hooks come
        at the ends of loops. With `use_tpu=False` they come at the very steps that were asked for: a loop ends there, and with
        hooks after each step. Unless the RunConfig has no interval for them, checkpoints are written at the start (if there is
        none) and at the end, too.

        Args:
            input_fn: gives the training data. Where it ends early, training stops there and saves. One that takes `start_step`, as
                those of `make_input_fn` do, gets the number of steps done, and training goes on with the very next batch.
            hooks: `tf.compat.v1.train.SessionRunHook`s, called at the ends of loops. What they fetch of a step is of the loop's
                last one, what they fetch of variables is from before the loop. Of several replicas, rows are joined, other floats
                averaged; of what is neither, the first one's counts. A CheckpointSaverHook among them takes the place of the
                RunConfig's checkpoints.
            steps: how many steps to add.
            max_steps: the global step to stop at; nothing is done where it has been reached. With neither, training
                goes on until the data ends.
            saving_listeners: `tf.compat.v1.train.CheckpointSaverListener`s, told of each checkpoint; one whose after_save returns
                True stops training.

        Returns:
            This estimator.

        Raises:
            NonFiniteError: the loss or a trainable variable became NaN or infinite.
            SystemExit: with the code 75, after SIGTERM, where the program has set no handler for it: training is saved.
            TypeError: an argument, or what input_fn or model_fn returned, is of another type.
            ValueError: both `steps` and `max_steps`, one that is not positive, a hook that has no counterpart here, a checkpoint
                that does not fit model_fn (a CheckpointError), or an input_fn or model_fn (a ModelFnError) that does not fit.
        """
        if self._rehearses:
            check_steps(steps, max_steps)
            self._rehearse_call({ModeKeys.TRAIN: input_fn}, has_limit=steps is not None or max_steps is not None)
        else:
            self._train(input_fn, steps, max_steps, hooks, saving_listeners)
        return self

    def _train(
        self,
        input_fn: Any,
        steps: int | None,
        max_steps: int | None,
        hooks: Any = None,
        saving_listeners: Any = None,
        after_save: AfterSave | None = None,
    ) -> None:
        runtime = self._runtime
        if not runtime.in_use.acquire(blocking=False):
            raise UsageError(
                "train was called while the same estimator trains or evaluates, by a hook, an input_fn or another thread: let that "
                "end first, or use another estimator."
            )
        try:
            with runtime.lock:
                runtime.trains = True
            with tf.__internal__.eager_context.eager_mode():  # Programs call within a graph of their own.
                loss = train(runtime, input_fn, steps, max_steps, hooks, saving_listeners, after_save)
        finally:
            runtime.trains = False
            self._spares.clear()
            runtime.in_use.release()
        self._last_loss = self._last_loss if loss is None else loss

    @contextlib.contextmanager
    def _unused(self, runtime: Runtime) -> Iterator[Runtime]:
        """Yield an idle runtime: this one, or a clone with separate variables if it is busy."""
        spares = self._spares.setdefault(id(runtime), [])
        free = (item for item in (runtime, *spares) if item.in_use.acquire(blocking=False))
        found = next(free, None)
        if found is None:
            found = runtime.clone()
            found.in_use.acquire()
            spares.append(found)
        try:
            yield found
        finally:
            found.in_use.release()

    def check_model(self, input_fn: Callable[..., Any], mode: str) -> tuple[str, ...]:
        """Build the model for the data and load the newest checkpoint, if there is one, but run no step.

        It finds early what train, evaluate or predict would stop at; what it builds, they use.

        Args:
            input_fn: as for the mode.
            mode: a value of ModeKeys.

        Returns:
            In EVAL the names that the result of evaluate has; else none.

        Raises:
            CheckpointError: the checkpoint does not fit the model, or is damaged.
            ModelFnError: model_fn does not fit.
            TypeError, ValueError: an unknown mode, an input_fn that does not fit, or a batch size, of this mode or another, that
                the replicas cannot split.
        """
        with self._unused(self._runtime) as runtime:
            return check_model(runtime, input_fn, mode)

    def rehearse(self, input_fns: Mapping[str, Callable[..., Any]]) -> tuple[Finding, ...]:
        """List all that a TPU would refuse, and what it would be slow at, without one.

        For each mode the step of one of TPUConfig's num_shards cores (8, where it is None) is traced as it is on a TPU, every
        operation looked at, and the step compiled by XLA on this machine. No step is run, no data read and nothing written; a
        dataset is made, but not iterated.

        Args:
            input_fns: from a value of ModeKeys to what its call is given as input_fn.

        Returns:
            What was found, each with its place, its reason and its mend; empty where a TPU would take it all. With
            eval_on_tpu=False nothing is said of evaluation.

        Raises:
            ValueError: an unknown mode.
        """
        return self._rehearsal(input_fns).findings

    def _rehearsal(self, input_fns: Mapping[str, Any]) -> Rehearsal:
        on_tpu = {
            mode: input_fn
            for mode, input_fn in input_fns.items()
            if mode != ModeKeys.EVAL or self._evaluation_runtime is self._runtime
        }
        with tf.__internal__.eager_context.eager_mode():
            return rehearse(self._runtime, on_tpu)

    def _rehearse_call(self, input_fns: Mapping[str, Any], *, has_limit: bool = True) -> dict[str, Any]:
        """Rehearse in the place of a call; returns what stands for the metrics.

        Raises:
            RehearsalError: a TPU would refuse something.
        """
        return stand_in(self._rehearsal(input_fns), list(input_fns), has_limit=has_limit)

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint and write the results as summaries under `eval_dir(name)`.

        Args:
            input_fn: gives the data. Where its features hold "weights" (0 for padding), it is for model_fn to use them in
                its loss and its metrics; a warning tells where it does not and rows are padding.
            steps: how many batches at most; None: all.
            hooks: `tf.compat.v1.train.SessionRunHook`s, called at every batch, as in `train`.
            checkpoint_path: by default the newest of model_dir; where there is none, the initial values.
            name: of this evaluation, where there are several.

        Returns:
            The metrics by name, `loss` and `global_step`. `loss` is the mean of the losses of the batches (0 without
            batches). Where features hold "weights" (floats [batch]), each batch counts with the sum of its weights: a
            model_fn whose loss is the weighted mean over the rows of a batch then gets the exact mean over all rows,
            however they were padded.

        Raises:
            TypeError: an argument, or what input_fn or model_fn returned, is of another type.
            ValueError: steps is not positive or missing for endless data, no checkpoint at checkpoint_path or one that
                does not fit model_fn (a CheckpointError), or an input_fn or model_fn (a ModelFnError) that does not fit.
        """
        if self._rehearses:
            return self._rehearse_call({ModeKeys.EVAL: input_fn})
        eager = tf.__internal__.eager_context.eager_mode()  # Hooks call from within a graph.
        with eager, self._unused(self._evaluation_runtime) as runtime:
            return evaluate(runtime, input_fn, steps, hooks, checkpoint_path, self.eval_dir(name))

    def _evaluate_saved(
        self, input_fn: Any, steps: int | None, hooks: Any, path: str, name: str | None
    ) -> dict[str, Any]:
        """Evaluate the checkpoint that was just saved, in the variables that hold it; who trains loads it again."""
        runtime = self._evaluation_runtime
        with contextlib.nullcontext(runtime) if runtime.trains else self._unused(runtime) as taken:
            return evaluate(taken, input_fn, steps, hooks, path, self.eval_dir(name))

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yield the predictions for the rows that input_fn gives, one for each, in their order.

        A batch shorter than predict_batch_size is padded for the model, and cut again; rows whose features["weights"]
        are 0 are dropped.

        Args:
            input_fn: gives the data; labels are dropped.
            predict_keys: the predictions wanted; None: all.
            hooks: `tf.compat.v1.train.SessionRunHook`s, called at every batch, as in `train`.
            checkpoint_path: by default the newest of model_dir; where there is none, the initial values.
            yield_single_examples: False yields whole batches, cut to their real rows.

        Yields:
            A dict from name to NumPy array (or scalar), without the batch dimension where examples are single.

        Raises:
            TypeError: what input_fn or model_fn returned is of another type.
            ValueError: predict_keys selects nothing, predictions without a row for each of the batch, no checkpoint at
                checkpoint_path or one that does not fit model_fn (a CheckpointError), or an input_fn or model_fn (a
                ModelFnError) that does not fit.
        """
        if self._rehearses:
            self._rehearse_call({ModeKeys.PREDICT: input_fn})
            return iter(())
        rows = self._predict(input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples)
        if tf.executing_eagerly():
            return rows
        with tf.__internal__.eager_context.eager_mode():  # Hooks call from within a graph.
            return iter(list(rows))

    def _predict(self, *arguments: Any) -> Iterator[Any]:
        runtime = self._runtime
        if runtime.trains:
            with self._unused(runtime) as runtime:
                pass  # Evaluations and predictions may share one.
        yield from predict(runtime, *arguments)

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Write the predicting model, with a checkpoint's values, as a SavedModel.

        model_fn is called in PREDICT mode on the receiver's features, without a batch_size in its params; its export_outputs
        become the signatures. The files appear whole, in a new folder whose name is the time in seconds.

        Args:
            export_dir_base: folder of the exports, local or gs://.
            serving_input_receiver_fn: returns a ServingInputReceiver or TensorServingInputReceiver; it is called in a graph of
                its own, where placeholders can be made.
            assets_extra: files to put into the folder's `assets.extra`: from name there to path.
            as_text: write `saved_model.pbtxt` instead of `saved_model.pb`.
            checkpoint_path: by default the newest of model_dir.

        Returns:
            The path of the new folder, as bytes.

        Raises:
            TypeError: what serving_input_receiver_fn or model_fn returned is of another type.
            ValueError: no serving_input_receiver_fn, no checkpoint or one that does not fit model_fn (a CheckpointError), or
                no output that can be computed from the receiver's inputs (a ModelFnError).
            StorageError: the files could not be written, or one of assets_extra not be read.
        """
        return export_saved_model(
            self._runtime, export_dir_base, serving_input_receiver_fn, assets_extra, as_text, checkpoint_path
        )

    # The name of tf.contrib's time.
    export_savedmodel = export_saved_model

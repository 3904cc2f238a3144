"""Common base of the estimators: train, evaluate, predict and export."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tpudata.estimator.api.hook_lists import CheckpointSaverListener, SessionRunHook
from tpudata.estimator.api.spec import ModelSpec
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.engine import Engine
from tpudata.estimator.export.saved_model import export_saved_model
from tpudata.estimator.export.serving_input import ServingInputReceiver
from tpudata.estimator.state.model_dir import ModelDir
from tpudata.tensor_types import Array, Arrays, Tensors

_E = TypeVar("_E", bound="BaseEstimator")


class BaseEstimator(ModelDir):
    """Base of estimators.

    Args:
        engine: engine that runs the calls on its runtimes.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.training_runtime.model_dir)
        self._engine = engine

    @property
    def config(self) -> RunConfig:
        """The configuration, with the model_dir that is used."""
        return self._engine.config

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the params."""
        return copy.deepcopy(dict(self._engine.training_runtime.user_model.params))

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model_fn, as a function of (features, labels, mode, config), with the params filled in."""

        def model_fn(features: Tensors, labels: Tensors, mode: str, config: object) -> ModelSpec:
            del config  # The estimator's config applies, as in TensorFlow's Estimator.
            runtime = self._engine.training_runtime
            return runtime.user_model.call_model(features, labels, runtime.make_deployment(mode))

        return model_fn

    @property
    def last_loss(self) -> float | None:
        """Loss of the last step that this estimator trained; None if it trained none."""
        return self._engine.last_loss

    def train(
        self: _E,
        input_fn: InputFunction,
        hooks: Sequence[SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[CheckpointSaverListener] | None = None,
    ) -> _E:
        """Train from the newest checkpoint of model_dir, or from the start.

        Steps run on the device in loops of the TPUConfig's `iterations_per_loop`. On a TPU, checkpoints, summaries and hooks come
        at the ends of loops. With `use_tpu=False` they come exactly at the requested steps: a loop ends there, and after each
        step if there are hooks. Unless the RunConfig has no interval for them, checkpoints are written at the start (if there is
        none) and at the end.

        Args:
            input_fn: function that returns the training data. If the data ends early, training stops there and saves. If it takes
                `start_step`, as the input_fns of `make_input_fn` do, it gets the number of steps done, and training continues with
                the next batch.
            hooks: `tf.compat.v1.train.SessionRunHook`s, called at the ends of loops. Values fetched from a step are from the
                loop's last step; values of variables are from before the loop. With several replicas, rows are concatenated, other
                floats averaged, and other values taken from the first replica. A CheckpointSaverHook among them replaces the
                RunConfig's checkpoints. A hook that raises StopIteration or tf.errors.OutOfRangeError ends training, which saves.
            steps: number of steps to add.
            max_steps: global step to stop at; nothing is done if it has been reached. Without `steps` and `max_steps`, training
                continues until the data ends.
            saving_listeners: `tf.compat.v1.train.CheckpointSaverListener`s, called for each checkpoint; a listener whose after_save
                returns True stops training.

        Returns:
            This estimator.

        Raises:
            UsageError: this estimator is already training or evaluating, or this process is the evaluator of a TF_CONFIG cluster.
            OutputError: another training is running in model_dir.
            ClusterError: another process of a TF_CONFIG cluster ended, or cannot be reached.
            NonFiniteError: the loss became NaN, or a trainable variable NaN or infinite.
            SystemExit: SIGTERM came, and the program has no handler for it: training is saved, and the exit code is 75.
            TypeError: an argument, or a result of input_fn or model_fn, has the wrong type.
            ValueError: there are both `steps` and `max_steps`, one is not positive, or both are missing on a TPU; a hook requests
                something that is not supported; there are saving_listeners, but nothing saves checkpoints; a checkpoint does not
                fit model_fn (a CheckpointError); or what input_fn or model_fn (a ModelFnError) returns cannot be used.
        """
        self._engine.train(input_fn, steps, max_steps, hooks, saving_listeners)
        return self

    def check_model(self, input_fn: InputFunction, mode: str) -> tuple[str, ...]:
        """Build the model for the data and load the newest checkpoint, if there is one, but run no step.

        It finds errors of train, evaluate or predict early; these calls reuse what it builds.

        Args:
            input_fn: function that returns the data of the mode.
            mode: a value of ModeKeys.

        Returns:
            In EVAL the names in the result of evaluate; otherwise ().

        Raises:
            CheckpointError: the checkpoint does not fit the model, or is damaged.
            ModelFnError: what model_fn returns cannot be used.
            TypeError, ValueError: the mode is unknown, what input_fn returns cannot be used, or the replicas cannot split the batch
                size of this or another mode.
        """
        return self._engine.check_model(input_fn, mode)

    def evaluate(
        self,
        input_fn: InputFunction,
        steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Array]:
        """Evaluate a checkpoint and write the results as summaries under `eval_dir(name)`.

        Args:
            input_fn: function that returns the data. If its features contain "weights" (0 for padding), model_fn should use them in
                its loss and metrics; a warning is logged if it does not and there are rows of padding.
            steps: maximum number of batches; None for all.
            hooks: `tf.compat.v1.train.SessionRunHook`s, called at every batch, as in `train`.
            checkpoint_path: checkpoint to evaluate; None for the newest of model_dir, or the initial values if there is none.
            name: name of this evaluation, to tell several apart.

        Returns:
            The metrics by name, and with them `loss` and `global_step`. `loss` is the mean of the losses of the batches (0 without
            batches). If features contain "weights" (floats [batch]), each batch counts with the sum of its weights: for a
            model_fn whose loss is the weighted mean over the rows of a batch, this is the exact mean over all rows.

        Raises:
            TypeError: an argument, or a result of input_fn or model_fn, has the wrong type.
            ValueError: steps is not positive, or missing for endless data; the checkpoint is missing or does not fit model_fn (a
                CheckpointError); or what input_fn or model_fn (a ModelFnError) returns cannot be used.
        """
        return self._engine.evaluate(input_fn, steps, hooks, checkpoint_path, self.eval_dir(name))

    def predict(
        self,
        input_fn: InputFunction,
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Arrays]:
        """Yield a prediction for each row of the data, in order.

        A batch shorter than predict_batch_size is padded for the model, and the padding is dropped from the predictions, as are
        rows whose features["weights"] are not above 0.

        Args:
            input_fn: function that returns the data; labels are dropped.
            predict_keys: names of the predictions to yield; None for all.
            hooks: `tf.compat.v1.train.SessionRunHook`s, called at every batch, as in `train`.
            checkpoint_path: checkpoint to use; None for the newest of model_dir, or the initial values if there is none.
            yield_single_examples: whether to yield single rows; False yields batches, without padding.

        Yields:
            The predictions of a row or batch in model_fn's structure, usually a dict from name to NumPy array (or scalar); the
            predictions of a row have no batch dimension.

        Raises:
            UsageError: this estimator is training, and these predictions began before that.
            TypeError: a result of input_fn or model_fn has the wrong type.
            ValueError: predict_keys selects nothing; a prediction does not have one row for each row of the batch; the checkpoint
                is missing or does not fit model_fn (a CheckpointError); or what input_fn or model_fn (a ModelFnError) returns
                cannot be used.
        """
        return self._engine.predict(input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples)

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Write the model for prediction, with the values of a checkpoint, as a SavedModel.

        model_fn is called in PREDICT mode on the receiver's features, without a batch_size in its params; its export_outputs become
        the signatures. The new folder is named after the time in seconds since 1970. On a local disk all its files appear
        together; on gs:// they appear one after the other.

        Args:
            export_dir_base: folder of the exports, local or gs://.
            serving_input_receiver_fn: function that returns a ServingInputReceiver or TensorServingInputReceiver; it is called in a
                separate graph, in which placeholders can be made.
            assets_extra: paths of files to copy into the folder's `assets.extra`, by their name there.
            as_text: whether to write `saved_model.pbtxt` instead of `saved_model.pb`.
            checkpoint_path: checkpoint to export; None for the newest of model_dir.

        Returns:
            The path of the new folder, as bytes.

        Raises:
            TypeError: a result of serving_input_receiver_fn or model_fn has the wrong type.
            ValueError: serving_input_receiver_fn is missing; there is no checkpoint, or it does not fit model_fn (a
                CheckpointError); or no output can be computed from the receiver's inputs (a ModelFnError).
            StorageError: the files could not be written, or a file of assets_extra could not be read.
        """
        return export_saved_model(
            self._engine.predicting_runtime,
            export_dir_base,
            serving_input_receiver_fn,
            assets_extra,
            as_text,
            checkpoint_path,
        )

    # The name in tf.contrib.
    export_savedmodel = export_saved_model


def get_engine(estimator: BaseEstimator) -> Engine:
    """Return the engine of an estimator, which is private to users, but not to this package."""
    return estimator._engine  # noqa: SLF001

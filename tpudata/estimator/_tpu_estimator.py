"""TPUEstimator: the object that users hold."""

import copy
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import _checkpoint
from tpudata.estimator._check import check_model
from tpudata.estimator._config import RunConfig, TPUConfig
from tpudata.estimator._errors import CheckpointError
from tpudata.estimator._evaluation import evaluate
from tpudata.estimator._mode_keys import ModeKeys
from tpudata.estimator._prediction import predict
from tpudata.estimator._runtime import Runtime
from tpudata.estimator._session_config import apply_session_config
from tpudata.estimator._signature import check_model_fn
from tpudata.estimator._training import train

_log = logging.getLogger("tpudata")
_RESERVED_PARAMS = ("batch_size", "context")


class TPUEstimator:
    """Trains, evaluates and applies a model that a model_fn describes, on this machine's CPU or GPU.

    model_fn takes `features` and any of `labels`, `mode`, `params`, `config` and returns a TPUEstimatorSpec (or an
    EstimatorSpec). It may use `tf.compat.v1` (get_variable, optimizers, metrics) and Keras layers made inside it. It is
    traced, not called at every step, and must make the same variables at every trace. In training, every op of it that
    changes state runs at each step, whether or not train_op depends on it; in the other modes only what the loss, the
    metrics and the predictions need.

    input_fn takes `params` and any of `config`, `mode`, `input_context`, and returns a `tf.data.Dataset` of features or
    of (features, labels), batched. `params["batch_size"]` is the size given here for the mode, and absent where that is
    None; model_fn sees it too, and `params["use_tpu"]`.

    Args:
        model_fn: as above.
        model_dir: folder of checkpoints and event files, local or gs://; by default the RunConfig's, else a new
            temporary one.
        config: a RunConfig.
        params: a dict for model_fn and input_fn, who each get a copy.
        use_tpu: must be False in this release.
        train_batch_size, eval_batch_size, predict_batch_size: rows per step.

    Raises:
        TypeError: a value of another type.
        ValueError: a reserved key in params, a batch size that is not positive, no train_batch_size with use_tpu,
            a model_fn without `features` or with unknown arguments, model_dir unlike the RunConfig's.
        UsageError: use_tpu=True, or TensorFlow 2 behaviour is switched off.
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
    ) -> None:
        check_model_fn(model_fn)
        config = RunConfig() if config is None else config
        if not isinstance(config, RunConfig) or not isinstance(config.tpu_config, TPUConfig):
            raise TypeError(f"TPUEstimator(config=...) must be a tpudata RunConfig, got {type(config).__name__}.")
        sizes = {
            ModeKeys.TRAIN: _batch_size("train_batch_size", train_batch_size),
            ModeKeys.EVAL: _batch_size("eval_batch_size", eval_batch_size),
            ModeKeys.PREDICT: _batch_size("predict_batch_size", predict_batch_size),
        }
        if use_tpu:
            if train_batch_size is None:
                raise ValueError("TPUEstimator(use_tpu=True) needs a train_batch_size.")
            raise UsageError("TPUEstimator(use_tpu=True): this release trains on CPU and GPU. Pass use_tpu=False.")
        if not tf.executing_eagerly():
            raise UsageError(
                "TPUEstimator needs TensorFlow 2 behaviour: remove tf.compat.v1.disable_v2_behavior() and "
                "disable_eager_execution(), and make the estimator outside of a tf.Graph. The tf.compat.v1 calls in "
                "model_fn work without them."
            )
        self._params = _checked_params(params)
        folder = _model_dir(model_dir, config)
        apply_session_config(config.session_config)
        self._config = config.replace(model_dir=folder)
        self._last_loss: float | None = None
        self._runtime = Runtime(model_fn, folder, self._config, self._params, sizes, tf.distribute.get_strategy())

    @property
    def model_dir(self) -> str:
        """Folder of checkpoints and event files."""
        return self._runtime.model_dir

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

    # What stands behind `*` stood further back in the original, behind arguments that are not here yet: by position it would
    # one day mean something else.
    def train(
        self, input_fn: Callable[..., Any], *, steps: int | None = None, max_steps: int | None = None
    ) -> "TPUEstimator":
        """Train from the newest checkpoint of model_dir, or from the start.

        Steps run in loops of the TPUConfig's `iterations_per_loop`. Checkpoints are written at the start (where there
        is none), at the ends of loops when one is due, and at the end.

        Args:
            input_fn: gives the training data. Where it ends early, training stops there and saves.
            steps: how many steps to add.
            max_steps: the global step to stop at; nothing is done where it has been reached. With neither, training
                goes on until the data ends.

        Returns:
            This estimator.

        Raises:
            NonFiniteError: the loss or a trainable variable became NaN or infinite.
            TypeError: an argument, or what input_fn or model_fn returned, is of another type.
            ValueError: both `steps` and `max_steps`, one that is not positive, a checkpoint that does not fit model_fn (a
                CheckpointError), or an input_fn or model_fn (a ModelFnError) that does not fit.
        """
        loss = train(self._runtime, input_fn, steps, max_steps)
        self._last_loss = self._last_loss if loss is None else loss
        return self

    def check_model(self, input_fn: Callable[..., Any], mode: str) -> None:
        """Build the model for the data and load the newest checkpoint, if there is one, but run no step.

        It finds early what train, evaluate or predict would stop at; what it builds, they use.

        Args:
            input_fn: as for the mode.
            mode: a value of ModeKeys.

        Raises:
            CheckpointError: the checkpoint does not fit the model, or is damaged.
            ModelFnError: model_fn does not fit.
            TypeError, ValueError: an unknown mode, or an input_fn that does not fit.
        """
        check_model(self._runtime, input_fn, mode)

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        *,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint and write the results as summaries under `eval_dir(name)`.

        Args:
            input_fn: gives the data. Where its features hold "weights" (0 for padding), it is for model_fn to use them in
                its loss and its metrics; a warning tells where it does not and rows are padding.
            steps: how many batches at most; None: all.
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
        return evaluate(self._runtime, input_fn, steps, checkpoint_path, self.eval_dir(name))

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        *,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yield the predictions for the rows that input_fn gives, one for each, in their order.

        A batch shorter than predict_batch_size is padded for the model, and cut again; rows whose features["weights"]
        are 0 are dropped.

        Args:
            input_fn: gives the data; labels are dropped.
            predict_keys: the predictions wanted; None: all.
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
        return predict(self._runtime, input_fn, predict_keys, checkpoint_path, yield_single_examples)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the folder of the summaries of the evaluation `name`."""
        return str(tf.io.gfile.join(self.model_dir, f"eval_{name}" if name else "eval"))

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint, or None."""
        newest = _checkpoint.latest(self.model_dir)
        return None if newest is None else newest.prefix

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the newest checkpoint, sorted.

        Raises:
            CheckpointError: there is no checkpoint.
        """
        return sorted(self._reader().get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> Any:
        """Return the value (NumPy) of a variable in the newest checkpoint.

        Raises:
            CheckpointError: there is no checkpoint, or it has no such variable.
        """
        reader = self._reader()
        if not reader.has_tensor(name):
            raise CheckpointError(f"{self.latest_checkpoint()} has no variable {name!r}: see get_variable_names().")
        return reader.get_tensor(name)

    def _reader(self) -> Any:
        newest = _checkpoint.latest(self.model_dir)
        if newest is None:
            raise CheckpointError(f"There is no checkpoint in {self.model_dir} yet: train first.")
        return newest.reader()


def _batch_size(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"TPUEstimator({name}=...) must be an int or None, got {value!r} ({type(value).__name__}).")
    if value < 1:
        raise ValueError(f"TPUEstimator({name}=...) must be positive, got {value}.")
    return value


def _checked_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise TypeError(f"TPUEstimator(params=...) must be a dict or None, got {type(params).__name__}.")
    for key in _RESERVED_PARAMS:
        if key in params:
            raise ValueError(
                f"TPUEstimator(params=...) holds {key!r}, which the estimator fills itself: rename it, or give "
                "train_batch_size, eval_batch_size and predict_batch_size."
            )
    return copy.deepcopy(dict(params))


def _model_dir(model_dir: str | None, config: RunConfig) -> str:
    given = None if model_dir is None else str(model_dir)
    if given is not None and config.model_dir is not None and given != config.model_dir:
        raise ValueError(
            f"TPUEstimator(model_dir={given!r}) differs from RunConfig(model_dir={config.model_dir!r}): give one."
        )
    folder = given or config.model_dir
    if folder is None:
        folder = tempfile.mkdtemp(prefix="tpudata-")
        _log.warning("No model_dir was given: using the temporary folder %s.", folder)
    return folder

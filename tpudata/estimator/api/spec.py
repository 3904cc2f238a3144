"""Specs: the results of a model_fn."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import tensorflow as tf

from tpudata.checks import require_one_of, require_type
from tpudata.console.tables import count_text
from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.api.errors import HostFunctionError, ModelFnTypeError
from tpudata.estimator.api.export_outputs import ExportOutput, check_export_outputs
from tpudata.estimator.api.hook_lists import SessionRunHook, check_hooks
from tpudata.estimator.api.metrics import Metric, check_metrics
from tpudata.estimator.api.mode_keys import MODES, ModeKeys
from tpudata.estimator.api.named_tuple import NamedTupleMethods
from tpudata.tensor_types import Tensors

# Tensors whose values metric_fn and host_fn get, by position or by keyword.
HostTensors: TypeAlias = Sequence[tf.Tensor] | Mapping[str, tf.Tensor]
_T = TypeVar("_T")
_REQUIRED_FIELDS = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


def _check_common(spec: "TPUEstimatorSpec | EstimatorSpec") -> None:
    """Check the fields that both kinds of spec have (ModelFnError for a wrong one), and replace the lists of hooks by tuples."""
    owner = type(spec).__name__
    require_one_of(f"{owner}(mode=...)", spec.mode, MODES, ModelFnValueError)
    for field in _REQUIRED_FIELDS[spec.mode]:
        if getattr(spec, field) is None:
            raise ModelFnValueError(f"{owner} has no {field}, which mode {spec.mode!r} requires. Pass {field}.")
    if spec.mode != ModeKeys.PREDICT:
        _check_loss(spec.loss, owner)
    if spec.mode == ModeKeys.TRAIN:
        for fetch in tf.nest.flatten(spec.train_op, expand_composites=True):
            if not hasattr(fetch, "device"):  # tf.group makes the same test.
                raise ModelFnTypeError(f"{owner}(train_op=...) must be an operation or a tensor, got {fetch!r}.")
    if spec.mode == ModeKeys.PREDICT:
        _require_dense(spec.predictions, f"{owner}(predictions=...)")
        check_export_outputs(spec.export_outputs, owner)
    for field in ("training_hooks", "evaluation_hooks", "prediction_hooks"):
        object.__setattr__(spec, field, check_hooks(getattr(spec, field), f"{owner}({field}=...)"))


def _check_loss(loss: tf.Tensor | None, owner: str) -> None:
    """Raise a ModelFnError if a spec's loss is not floating, or if its rank is known and its shape is neither [] nor [1].

    Args:
        loss: the loss.
        owner: name of the spec's class, for messages.
    """
    tensor = tf.convert_to_tensor(loss)
    # TensorFlow's TPUEstimator accepts a loss of shape [1] without a TPU.
    if tensor.shape.rank is not None and tensor.shape.rank > 0 and tensor.shape != [1]:
        raise ModelFnValueError(
            f"{owner}(loss=...) must be a scalar, got shape {tensor.shape}. Reduce it, for example by tf.reduce_mean."
        )
    if not tensor.dtype.is_floating:
        raise ModelFnTypeError(f"{owner}(loss=...) must be of a floating dtype, got {tensor.dtype.name}.")


@dataclasses.dataclass(frozen=True)
class TPUEstimatorSpec(NamedTupleMethods):
    """Result of a model_fn, for every device.

    Attributes:
        mode: a value of ModeKeys.
        predictions: dict from name to tensor [batch, ...], or a single tensor; required in PREDICT.
        loss: floating scalar; required in TRAIN and EVAL.
        train_op: the operation (or a tensor or variable) that does one step and adds 1 to the global step; required in TRAIN.
        eval_metrics: (metric_fn, tensors) with a list or tuple of tensors, given to metric_fn by position, or a dict,
            given by keyword. metric_fn returns a dict from name to a (value, update_op) pair of v1 metrics or to a
            Keras metric whose update_state was called.
        export_outputs: dict from name to an output of `tpudata.estimator.export`, each of which becomes a signature of
            export_saved_model. One of several must be named "serving_default". None for one signature with the predictions.
        scaffold_fn: function that returns a `tf.compat.v1.train.Scaffold` with the initial values of variables and the selection of
            the variables that checkpoints keep, or None. It is called once in each train, evaluate and predict.
        host_call: (host_fn, tensors) as in eval_metrics, for train and evaluate. host_fn runs on the host at each step, usually to
            write summaries; all its operations with an effect run, whether it returns them or not.
        training_hooks, evaluation_hooks, prediction_hooks: `tf.compat.v1.train.SessionRunHook`s of a mode, which follow the
            hooks of the call.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a required value is missing, or eval_metrics, host_call or export_outputs has the wrong form.
    """

    mode: str
    predictions: Tensors = None
    loss: tf.Tensor | None = None
    train_op: tf.Operation | tf.Tensor | tf.Variable | None = None
    eval_metrics: tuple[Callable[..., Mapping[str, Metric]], HostTensors] | None = None
    export_outputs: Mapping[str, ExportOutput] | None = None
    scaffold_fn: Callable[[], tf.compat.v1.train.Scaffold | None] | None = None
    host_call: tuple[Callable[..., object], HostTensors] | None = None
    training_hooks: Sequence[SessionRunHook] | None = None
    evaluation_hooks: Sequence[SessionRunHook] | None = None
    prediction_hooks: Sequence[SessionRunHook] | None = None

    def __post_init__(self) -> None:
        _check_common(self)
        is_valid = self.scaffold_fn is None or callable(self.scaffold_fn)
        require_type("TPUEstimatorSpec(scaffold_fn=...)", self.scaffold_fn, is_valid, "callable", ModelFnTypeError)
        if self.eval_metrics is not None:
            _check_host_function("eval_metrics", "metric_fn", self.eval_metrics, is_used=self.mode == ModeKeys.EVAL)
        if self.host_call is not None:
            _check_host_function("host_call", "host_fn", self.host_call, is_used=self.mode != ModeKeys.PREDICT)

    def as_estimator_spec(self) -> "EstimatorSpec":
        """Return the EstimatorSpec of the same model, for a model_fn of a plain Estimator.

        It calls metric_fn, host_fn and scaffold_fn; with each step of training and evaluation, a hook runs what host_fn returned.

        Raises:
            TypeError: metric_fn did not return a dict of metrics.
            ValueError: a metric has a name that evaluate reserves.
        """
        metrics = None if self.eval_metrics is None else call_with_tensors(*self.eval_metrics)
        host_call_hooks: tuple[SessionRunHook, ...] = ()
        if self.host_call is not None:
            host_call_hooks = (FetchHook(call_with_tensors(*self.host_call)),)
        return EstimatorSpec(
            mode=self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=metrics,
            export_outputs=self.export_outputs,
            training_hooks=(*(self.training_hooks or ()), *host_call_hooks),
            scaffold=None if self.scaffold_fn is None else self.scaffold_fn(),
            evaluation_hooks=(*(self.evaluation_hooks or ()), *host_call_hooks),
            prediction_hooks=tuple(self.prediction_hooks or ()),
        )


@dataclasses.dataclass(frozen=True)
class EstimatorSpec(NamedTupleMethods):
    """Result of a model_fn for the plain Estimator; a TPUEstimator also accepts it.

    Attributes:
        mode: a value of ModeKeys.
        predictions: a tensor [batch, ...], or a dict from name to tensors [batch, ...]; required in PREDICT.
        loss: floating scalar; required in TRAIN and EVAL.
        train_op: as in TPUEstimatorSpec.
        eval_metric_ops: dict from name to a (value, update_op) pair or an updated Keras metric, made in model_fn.
        export_outputs: as in TPUEstimatorSpec.
        training_chief_hooks: hooks for training in the chief, which precede the hooks of the call.
        training_hooks: as in TPUEstimatorSpec.
        scaffold: a `tf.compat.v1.train.Scaffold`, as scaffold_fn returns it in TPUEstimatorSpec.
        evaluation_hooks, prediction_hooks: as in TPUEstimatorSpec.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a required value is missing.
    """

    mode: str
    predictions: Tensors = None
    loss: tf.Tensor | None = None
    train_op: tf.Operation | tf.Tensor | tf.Variable | None = None
    eval_metric_ops: Mapping[str, Metric] | None = None
    export_outputs: Mapping[str, ExportOutput] | None = None
    training_chief_hooks: Sequence[SessionRunHook] | None = None
    training_hooks: Sequence[SessionRunHook] | None = None
    scaffold: tf.compat.v1.train.Scaffold | None = None
    evaluation_hooks: Sequence[SessionRunHook] | None = None
    prediction_hooks: Sequence[SessionRunHook] | None = None

    def __post_init__(self) -> None:
        _check_common(self)
        object.__setattr__(
            self,
            "training_chief_hooks",
            check_hooks(self.training_chief_hooks, "EstimatorSpec(training_chief_hooks=...)"),
        )
        if self.eval_metric_ops is not None:
            check_metrics(self.eval_metric_ops, "EstimatorSpec(eval_metric_ops=...)")


def _require_dense(tensors: Tensors, label: str) -> None:
    """Raise ModelFnTypeError if a tensor of a structure is sparse, ragged or None.

    Args:
        tensors: the structure; messages name an entry by its key or its index.
        label: name of the argument, for messages.
    """
    if isinstance(tensors, Mapping):
        entries = dict(tensors)
    else:
        entries = dict(enumerate(tensors if isinstance(tensors, list | tuple) else [tensors]))
    for key, structure in entries.items():
        for tensor in tf.nest.flatten(structure):
            is_dense = not isinstance(tensor, tf.SparseTensor | tf.RaggedTensor | None)
            require_type(f"{label}: {key!r}", tensor, is_dense, "a dense tensor", ModelFnTypeError)


def _check_host_function(field: str, function_name: str, pair: object, *, is_used: bool) -> None:
    """Check a (function, tensors) field, and that the function accepts these tensors by position or by keyword.

    Args:
        field: name of the field of TPUEstimatorSpec.
        function_name: "metric_fn" or "host_fn", for messages.
        pair: the field's value.
        is_used: whether the spec's mode uses the field; if not, its tensors need not be dense.

    Raises:
        ModelFnError: the field has the wrong form, or the function does not accept the tensors.
    """
    label = f"TPUEstimatorSpec({field}=...)"
    allowed = f"({function_name}, tensors) with a callable and a list, tuple or dict of tensors"
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ModelFnValueError(f"{label} must be {allowed}, got {pair!r}.")
    function, tensors = pair
    if not callable(function):
        raise ModelFnTypeError(f"{label} must be {allowed}: {function!r} is not callable.")
    if not isinstance(tensors, list | tuple | Mapping):
        raise ModelFnTypeError(f"{label} must be {allowed}: the second part is a {type(tensors).__name__}.")
    if is_used:
        _require_dense(tensors, label)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some builtins have no signature.
        return
    try:
        if isinstance(tensors, Mapping):
            signature.bind(**tensors)
        else:
            signature.bind(*tensors)
    except TypeError as error:
        passed = sorted(tensors) if isinstance(tensors, Mapping) else count_text(len(tensors), "tensor")
        raise HostFunctionError(f"{label}: {function_name}{signature} does not take {passed}: {error}.") from None


def call_with_tensors(function: Callable[..., _T], tensors: HostTensors) -> _T:
    """Call a metric_fn or a host_fn with its tensors, by keyword if they are a dict."""
    return function(**tensors) if isinstance(tensors, Mapping) else function(*tensors)


class FetchHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow is untyped
    """Hook that runs operations with each step.

    Args:
        fetches: a nested structure of operations and tensors, or None.
    """

    def __init__(self, fetches: Tensors) -> None:
        self._fetches = [fetch for fetch in tf.nest.flatten(fetches) if fetch is not None]

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> tf.compat.v1.train.SessionRunArgs:
        """Request the operations and tensors."""
        del run_context
        return tf.compat.v1.train.SessionRunArgs(self._fetches)


ModelSpec: TypeAlias = TPUEstimatorSpec | EstimatorSpec


def get_host_call(spec: ModelSpec) -> tuple[Callable[..., object], HostTensors] | None:
    """Return the host_call of a spec; None for an EstimatorSpec, which has none."""
    return spec.host_call if isinstance(spec, TPUEstimatorSpec) else None


def get_eval_metrics(spec: ModelSpec) -> tuple[Callable[..., Mapping[str, Metric]], HostTensors] | None:
    """Return the eval_metrics of a spec; None for an EstimatorSpec, which has eval_metric_ops instead."""
    return spec.eval_metrics if isinstance(spec, TPUEstimatorSpec) else None


def get_metric_ops(spec: ModelSpec) -> Mapping[str, Metric]:
    """Return the eval_metric_ops of a spec; {} for a TPUEstimatorSpec, which has eval_metrics instead."""
    return (spec.eval_metric_ops or {}) if isinstance(spec, EstimatorSpec) else {}


def check_spec(spec: object) -> None:
    """Raise ModelFnTypeError if the result of model_fn is not a spec."""
    if not isinstance(spec, TPUEstimatorSpec | EstimatorSpec):
        raise ModelFnTypeError(
            f"model_fn must return a TPUEstimatorSpec or an EstimatorSpec, got {type(spec).__name__}."
        )

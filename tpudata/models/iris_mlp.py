"""A small multi-layer perceptron for a few numbers a row, such as the four of Fisher's irises."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.layers.dropout import dropout as drop
from tpudata.models.layers.dropout import make_step_seed
from tpudata.models.layers.linear import dense
from tpudata.models.tasks.classification import make_classification_spec
from tpudata.models.training.train_op import TrainingParams
from tpudata.tensor_types import Tensors

_ACTIVATIONS = {"sigmoid": tf.sigmoid, "relu": tf.nn.relu, "tanh": tf.tanh}
# Float features that are weights of rows and tokens, not inputs.
_WEIGHTS = ("weights", "token_weights")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IrisMlpParams(TrainingParams):
    """Params of the model, in addition to those of TrainingParams.

    Attributes:
        num_classes: number of classes; labels are label_offset to label_offset + num_classes - 1.
        label_offset: label of the first class.
        feature_names: names of the input features, in order; empty for all floats but "weights" and "token_weights", sorted
            by name.
        hidden_units: units of each hidden layer.
        activation: activation of the hidden layers: "sigmoid", "relu" or "tanh".
        dropout: share of the hidden units that a training step drops.
        initial_stddev: standard deviation of the kernels' initial values, which are normal.

    Raises:
        UsageError: a value is not allowed.
    """

    model: ClassVar[str] = "iris_mlp"
    learning_rate: float = 0.01
    num_classes: int = 3
    label_offset: int = 0
    feature_names: tuple[str, ...] = ()
    hidden_units: tuple[int, ...] = (256,)
    activation: str = "sigmoid"
    dropout: float = 0.0
    initial_stddev: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("num_classes", self.num_classes >= 2, "2 or more")
        self.require("label_offset", self.label_offset >= 0, "0 or more")
        # Without hidden layers, the model is a linear one.
        self.require("hidden_units", min(self.hidden_units, default=1) > 0, "1 or more in each layer")
        self.require_one_of("activation", tuple(_ACTIVATIONS))
        self.require("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        self.require("initial_stddev", self.initial_stddev > 0, "positive")


def iris_mlp(
    inputs: tf.Tensor,
    params: IrisMlpParams,
    training: bool,
    dropout_seed: tf.Tensor | tuple[int, int] = (0, 0),
) -> tf.Tensor:
    """Build the network; its variables are made by `tf.compat.v1.get_variable`.

    Args:
        inputs: float32 [batch, numbers].
        params: params of the model.
        training: whether to drop units.
        dropout_seed: int32 [2]; the same seed drops the same units.

    Returns:
        float32 logits [batch, num_classes].
    """
    initializer = tf.compat.v1.random_normal_initializer(stddev=params.initial_stddev)
    net = inputs
    for layer, num_units in enumerate(params.hidden_units):
        net = _ACTIVATIONS[params.activation](dense(net, num_units, f"hidden_{layer}", initializer))
        if training:
            net = drop(net, params.dropout, dropout_seed, index=layer)
    return dense(net, params.num_classes, "logits", initializer)


def model_fn(features: Tensors, labels: Tensors, mode: str, params: Mapping[str, object]) -> TPUEstimatorSpec:
    """Build the graph of one mode for an estimator: training, evaluation or prediction.

    Args:
        features: floats [batch, numbers]; or a dict with floats [batch] or [batch, numbers], which are concatenated, and
            optionally "weights" (float32 [batch], 0 for rows that do not count).
        labels: int [batch], in training also float [batch, label_offset + num_classes]; None in PREDICT.
        mode: a value of ModeKeys.
        params: see IrisMlpParams.

    Returns:
        The spec, with the metrics "accuracy" and "cross_entropy", exact over all rows that count, and the predictions
        "classes" (int32 [batch], counted as labels are) and "probabilities" (float32 [batch, num_classes]).

    Raises:
        UsageError: a parameter is unknown or not allowed, features are missing or have the wrong shape, or labels have the
            wrong shape or dtype.
    """
    settings = IrisMlpParams.from_params(params)
    inputs = _join_inputs(features, settings)
    seed = make_step_seed(settings.seed)
    logits = iris_mlp(inputs, settings, training=mode == ModeKeys.TRAIN, dropout_seed=seed)
    return make_classification_spec(features, labels, mode, logits, settings, label_offset=settings.label_offset)


def _join_inputs(features: Tensors, params: IrisMlpParams) -> tf.Tensor:
    """Return the input features side by side, float32 [batch, numbers].

    Raises:
        UsageError: features are missing, or have a shape other than [batch] or [batch, numbers].
    """
    feature_dict = features if isinstance(features, dict) else {"features": features}
    names = params.feature_names
    if not names:
        floats = {name for name, tensor in feature_dict.items() if tensor.dtype.is_floating}
        names = tuple(sorted(floats.difference(_WEIGHTS)))
    missing = [name for name in names if name not in feature_dict]
    if missing or not names:
        needed = f"contain {', '.join(missing)}" if missing else "contain floats"
        raise UsageError(
            f"iris_mlp: features must {needed}, got {', '.join(sorted(feature_dict)) or 'none'}. Use a dataset of numbers, or"
            " another model."
        )
    columns = []
    for name in names:
        column = tf.cast(feature_dict[name], tf.float32)
        column = column[:, None] if column.shape.rank == 1 else column
        if column.shape.rank != 2 or column.shape[1] is None:
            raise UsageError(f"iris_mlp: {name} must be [batch] or [batch, numbers], got {feature_dict[name].shape}.")
        columns.append(column)
    return tf.concat(columns, axis=1)

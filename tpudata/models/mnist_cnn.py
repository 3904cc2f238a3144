"""The small convolutional network of the MNIST tutorials: two convolutions, two pools, two dense layers."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import CrossShardOptimizer, ModeKeys, TPUEstimatorSpec

_v1 = tf.compat.v1
_OPTIMIZERS = ("adam", "momentum", "sgd")
# What the estimator adds to params, besides this model's own.
_ESTIMATOR_PARAMS = ("batch_size", "use_tpu", "context")


@dataclasses.dataclass(frozen=True)
class MnistCnnParams:
    """What the model can be told in `params`.

    Attributes:
        num_classes: number of classes; labels are 0 to num_classes - 1.
        image_shape: (height, width, channels) of images that come flat, or None where they come with their shape.
        optimizer: "adam", "momentum" or "sgd".
        learning_rate: of the optimizer.
        momentum: of the optimizer "momentum".
        dropout: share of the dense layer's units that a training step drops.
        seed: of the dropout.

    Raises:
        UsageError: a value outside the allowed ones.
    """

    num_classes: int = 10
    image_shape: tuple[int, int, int] | None = None
    optimizer: str = "adam"
    learning_rate: float = 2e-3
    momentum: float = 0.9
    dropout: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise UsageError(f"mnist_cnn: num_classes must be 2 or more, got {self.num_classes}.")
        if self.optimizer not in _OPTIMIZERS:
            raise UsageError(f"mnist_cnn: optimizer must be one of {', '.join(_OPTIMIZERS)}, got {self.optimizer!r}.")
        if not self.learning_rate > 0:
            raise UsageError(f"mnist_cnn: learning_rate must be positive, got {self.learning_rate}.")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"mnist_cnn: dropout must be in [0, 1), got {self.dropout}.")
        if self.image_shape is not None and len(self.image_shape) != 3:
            raise UsageError(f"mnist_cnn: image_shape must be (height, width, channels), got {self.image_shape}.")

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "MnistCnnParams":
        """Read `params`, which may hold the estimator's own keys, too.

        Raises:
            UsageError: a key that the model does not know, or a bad value.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        given = {key: value for key, value in params.items() if key not in _ESTIMATOR_PARAMS}
        for key in given:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0]
                raise UsageError(
                    f"mnist_cnn has no parameter {key!r}. Did you mean {near!r}? It has {', '.join(names)}."
                )
        return cls(**given)


def mnist_cnn(
    images: tf.Tensor,
    num_classes: int,
    training: bool,
    dropout: float = 0.4,
    dropout_seed: tf.Tensor | tuple[int, int] = (0, 0),
) -> tf.Tensor:
    """Build the network: two 5x5 convolutions (32 and 64 filters), each with a 2x2 max pool, then 128 dense units.

    Its variables are made by `tf.compat.v1.get_variable`.

    Args:
        images: float [batch, height, width, channels], height and width 4 or more; about -0.5 to 0.5.
        num_classes: number of classes.
        training: whether to drop units.
        dropout: share of the dense units to drop.
        dropout_seed: int32 [2]; the same seed drops the same units.

    Returns:
        float32 logits [batch, num_classes].

    Raises:
        UsageError: images of another rank, of unknown size or too small.
    """
    shape = images.shape
    if shape.rank != 4 or None in shape[1:] or min(shape[1:3]) < 4:
        raise UsageError(
            f"mnist_cnn: images must be [batch, height, width, channels] of known size, at least 4x4, got {shape}. "
            'Flat images need params["image_shape"].'
        )
    net = images
    for name, filters in (("conv2d", 32), ("conv2d_1", 64)):
        net = tf.nn.max_pool2d(tf.nn.relu(_conv(net, filters, name)), ksize=2, strides=2, padding="VALID")
    net = tf.reshape(net, [-1, net.shape[1] * net.shape[2] * net.shape[3]])
    net = tf.nn.relu(_dense(net, 128, "dense"))
    if training and dropout > 0:
        # The seed, not a hidden state, decides: a step that is run again drops the same units.
        net = tf.nn.experimental.stateless_dropout(net, rate=dropout, seed=dropout_seed)
    return tf.cast(_dense(net, num_classes, "dense_1"), tf.float32)


def _conv(inputs: tf.Tensor, filters: int, name: str) -> tf.Tensor:
    with _v1.variable_scope(name):
        shape = [5, 5, inputs.shape[3], filters]
        kernel = _v1.get_variable("kernel", shape, initializer=_v1.glorot_uniform_initializer())
        bias = _v1.get_variable("bias", [filters], initializer=_v1.zeros_initializer())
        return tf.nn.conv2d(inputs, kernel, strides=1, padding="SAME") + bias


def _dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    with _v1.variable_scope(name):
        shape = [inputs.shape[1], units]
        kernel = _v1.get_variable("kernel", shape, initializer=_v1.glorot_uniform_initializer())
        bias = _v1.get_variable("bias", [units], initializer=_v1.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias


def model_fn(features: Any, labels: Any, mode: str, params: Mapping[str, Any]) -> TPUEstimatorSpec:
    """Describe training, evaluation and prediction to an estimator.

    Args:
        features: images, or a dict with them as "image" and optionally "weights" (float32 [batch], 0 for rows that do
            not count). Images are uint8 or float, [batch, height, width, channels] or flat [batch, height * width *
            channels]; uint8 is brought to -0.5..0.5, float is taken as it is.
        labels: int [batch]; None in PREDICT.
        mode: a value of ModeKeys.
        params: see MnistCnnParams.

    Returns:
        The spec, with the metrics "accuracy" and "cross_entropy", exact over all rows that count, and the predictions
        "classes" (int32 [batch]) and "probabilities" (float32 [batch, num_classes]).

    Raises:
        UsageError: an unknown parameter, a bad value, or images of another shape.
    """
    settings = MnistCnnParams.from_params(params)
    step = _v1.train.get_or_create_global_step()
    context = tf.distribute.get_replica_context()
    replica = 0 if context is None else context.replica_id_in_sync_group
    # A fold of the replica into the seed: replicas must not drop the same units.
    dropout_seed = tf.stack([tf.cast(step, tf.int32), settings.seed + 7919 * tf.cast(replica, tf.int32)])
    images = _images(features, settings)
    training = mode == ModeKeys.TRAIN
    logits = mnist_cnn(images, settings.num_classes, training, settings.dropout, dropout_seed)
    classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        return TPUEstimatorSpec(mode, predictions={"classes": classes, "probabilities": tf.nn.softmax(logits)})

    labels = tf.cast(labels, tf.int32)
    weights = features.get("weights") if isinstance(features, Mapping) else None
    weights = tf.ones_like(labels, tf.float32) if weights is None else weights
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    # A batch may be all padding.
    loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))
    if training:
        return TPUEstimatorSpec(mode, loss=loss, train_op=_optimizer(settings).minimize(loss, global_step=step))
    return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(_metrics, [labels, classes, losses, weights]))


def _images(features: Any, settings: MnistCnnParams) -> tf.Tensor:
    if isinstance(features, Mapping):
        if "image" not in features:
            raise UsageError(f'mnist_cnn: features must hold "image", got {sorted(features)}.')
        images = features["image"]
    else:
        images = features
    if images.dtype == tf.uint8:
        images = tf.cast(images, tf.float32) / 255.0 - 0.5
    if settings.image_shape is not None:
        images = tf.reshape(images, [-1, *settings.image_shape])
    return images


def _metrics(labels: tf.Tensor, classes: tf.Tensor, losses: tf.Tensor, weights: tf.Tensor) -> dict[str, Any]:
    return {
        "accuracy": _v1.metrics.accuracy(labels, classes, weights=weights),
        "cross_entropy": _v1.metrics.mean(losses, weights=weights),
    }


def _optimizer(settings: MnistCnnParams) -> CrossShardOptimizer:
    if settings.optimizer == "adam":
        optimizer = _v1.train.AdamOptimizer(settings.learning_rate)
    elif settings.optimizer == "momentum":
        optimizer = _v1.train.MomentumOptimizer(settings.learning_rate, settings.momentum)
    else:
        optimizer = _v1.train.GradientDescentOptimizer(settings.learning_rate)
    return CrossShardOptimizer(optimizer)

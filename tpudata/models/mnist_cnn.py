"""The small convolutional network of the MNIST tutorials: two convolutions, two pools, two dense layers."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.layers.dropout import dropout as drop
from tpudata.models.layers.dropout import make_step_seed
from tpudata.models.layers.linear import conv, dense
from tpudata.models.tasks.classification import make_classification_spec
from tpudata.models.tasks.images import pick_images
from tpudata.models.training.train_op import TrainingParams
from tpudata.tensor_types import Tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class MnistCnnParams(TrainingParams):
    """Params of the model, in addition to those of TrainingParams.

    Attributes:
        num_classes: number of classes; labels are label_offset to label_offset + num_classes - 1.
        label_offset: label of the first class.
        image_shape: (height, width, channels) of flat images, or None if images are not flat.
        dropout: share of the dense layer's units that a training step drops.

    Raises:
        UsageError: a value is not allowed.
    """

    model: ClassVar[str] = "mnist_cnn"
    learning_rate: float = 2e-3
    num_classes: int = 10
    label_offset: int = 0
    image_shape: tuple[int, int, int] | None = None
    dropout: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("num_classes", self.num_classes >= 2, "2 or more")
        self.require("label_offset", self.label_offset >= 0, "0 or more")
        self.require("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        if self.image_shape:
            self.require("image_shape", min(self.image_shape) > 0, "(height, width, channels)")


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
        images: float [batch, height, width, channels], height and width 4 or more, with values of about -0.5 to 0.5.
        num_classes: number of classes.
        training: whether to drop units.
        dropout: share of the dense units to drop.
        dropout_seed: int32 [2]; the same seed drops the same units.

    Returns:
        float32 logits [batch, num_classes].

    Raises:
        UsageError: images have the wrong rank or an unknown size, or are too small.
    """
    shape = images.shape
    if shape.rank != 4 or None in shape[1:] or min(shape[1:3]) < 4:
        raise UsageError(
            f"mnist_cnn: images must be [batch, height, width, channels] of known size, at least 4x4, got {shape}. "
            'Set params["image_shape"] for flat images.'
        )
    net = images
    for name, filters in (("conv2d", 32), ("conv2d_1", 64)):
        net = tf.nn.relu(conv(net, filters, kernel_size=5, name=name))
        net = tf.nn.max_pool2d(net, ksize=2, strides=2, padding="VALID")
    net = tf.reshape(net, [-1, net.shape[1] * net.shape[2] * net.shape[3]])
    net = tf.nn.relu(dense(net, 128, "dense"))
    if training:
        net = drop(net, dropout, dropout_seed)
    return tf.cast(dense(net, num_classes, "dense_1"), tf.float32)


def model_fn(features: Tensors, labels: Tensors, mode: str, params: Mapping[str, object]) -> TPUEstimatorSpec:
    """Build the graph of one mode for an estimator: training, evaluation or prediction.

    Args:
        features: images, or a dict with them as "image" and optionally "weights" (float32 [batch], 0 for rows that do
            not count). Images are uint8 or float, [batch, height, width, channels] or, with image_shape, flat [batch, height *
            width * channels]; uint8 is scaled to -0.5..0.5, float is used as given.
        labels: int [batch], in training also float [batch, label_offset + num_classes]; None in PREDICT.
        mode: a value of ModeKeys.
        params: see MnistCnnParams.

    Returns:
        The spec, with the metrics "accuracy" and "cross_entropy", exact over all rows that count, and the predictions
        "classes" (int32 [batch], counted as labels are) and "probabilities" (float32 [batch, num_classes]).

    Raises:
        UsageError: a parameter is unknown or not allowed, images have the wrong shape, or labels have the wrong shape or dtype.
    """
    settings = MnistCnnParams.from_params(params)
    images = pick_images(features, settings.model, mean=0.5, deviation=1.0, shape=settings.image_shape)
    logits = mnist_cnn(
        images,
        settings.num_classes,
        training=mode == ModeKeys.TRAIN,
        dropout=settings.dropout,
        dropout_seed=make_step_seed(settings.seed),
    )
    return make_classification_spec(features, labels, mode, logits, settings, label_offset=settings.label_offset)

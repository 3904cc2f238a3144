"""A small U-Net: the class of each pixel of an image."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.layers.dropout import dropout as drop
from tpudata.models.layers.dropout import make_step_seed
from tpudata.models.layers.linear import conv, dense
from tpudata.models.tasks.images import pick_images
from tpudata.models.tasks.segmentation import make_segmentation_spec
from tpudata.models.training.train_op import TrainingParams
from tpudata.tensor_types import Tensors

_v1 = tf.compat.v1
_PRECISIONS = {"float32": tf.float32, "bfloat16": tf.bfloat16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnetParams(TrainingParams):
    """Params of the model, in addition to those of TrainingParams.

    Attributes:
        num_classes: number of classes: label maps have values from 0 to num_classes - 1, and ignored_label; required.
        ignored_label: value of the pixels of label maps that do not count.
        depth: number of times that height and width are halved, and doubled again.
        filters: channels before the first halving; each halving doubles them.
        dropout: share of the values at the lowest resolution that a training step drops.
        precision: "float32", or "bfloat16" for all layers but the last; variables are float32.

    Raises:
        UsageError: a value is not allowed.
    """

    model: ClassVar[str] = "unet"
    labels_are_maps: ClassVar[bool] = True
    num_classes: int
    ignored_label: int = 255
    depth: int = 3
    filters: int = 32
    dropout: float = 0.0
    precision: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("num_classes", self.num_classes >= 2, "2 or more")
        is_outside = self.ignored_label >= self.num_classes
        self.require("ignored_label", is_outside, f"num_classes ({self.num_classes}) or more")
        for name in ("depth", "filters"):
            self.require(name, getattr(self, name) >= 1, "1 or more")
        self.require("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        self.require_one_of("precision", tuple(_PRECISIONS))


def unet(
    images: tf.Tensor, params: UnetParams, training: bool, dropout_seed: tf.Tensor | tuple[int, int] = (0, 0)
) -> tf.Tensor:
    """Build the network: pairs of 3x3 convolutions, pools between them down to the lowest resolution, and the way back up.

    Like the U-Net of Ronneberger et al. (2015), it normalizes nothing, so rows and replicas do not depend on each other. Its
    variables are made by `tf.compat.v1.get_variable`.

    Args:
        images: floats [batch, height, width, channels], height and width multiples of 2**depth.
        params: params of the model.
        training: whether to apply dropout.
        dropout_seed: int32 [2]; the same seed drops the same values.

    Returns:
        float32 logits [batch, height, width, num_classes].

    Raises:
        UsageError: images have the wrong rank or an unknown size, or a height or width that is not a multiple of 2**depth.
    """
    shape, factor = images.shape, 2**params.depth
    if shape.rank != 4 or None in shape[1:] or shape[1] % factor or shape[2] % factor:
        raise UsageError(
            f"unet: images must be [batch, height, width, channels] with height and width multiples of {factor}, got {shape}. "
            "Resize or crop them with images=tpudata.Images(...) of make_input_fn, or with --image-size or --crop, or set depth."
        )
    net = tf.cast(images, _PRECISIONS[params.precision])
    skipped = []  # Outputs of each level on the way down, which the way up concatenates with its own.
    for level in range(params.depth):
        net = _convolve_twice(net, params.filters * 2**level, f"down_{level}")
        skipped.append(net)
        net = tf.nn.max_pool2d(net, ksize=2, strides=2, padding="VALID")
    net = _convolve_twice(net, params.filters * 2**params.depth, "lowest")
    if training:
        net = drop(net, params.dropout, dropout_seed)
    for level in reversed(range(params.depth)):
        filters = params.filters * 2**level
        net = tf.concat([skipped[level], dense(_upsample(net), filters, f"up_{level}/reduce")], axis=-1)
        net = _convolve_twice(net, filters, f"up_{level}")
    return dense(tf.cast(net, tf.float32), params.num_classes, "logits")


def model_fn(features: Tensors, labels: Tensors, mode: str, params: Mapping[str, object]) -> TPUEstimatorSpec:
    """Build the graph of one mode for an estimator: training, evaluation or prediction.

    Args:
        features: images, or a dict with them as "image" and optionally "weights" (float32 [batch], 0 for rows that do not
            count). Images are uint8 or float [batch, height, width, channels]; uint8 is scaled to -1..1, float is used as given.
        labels: label maps, int [batch, height, width] or [batch, height, width, 1]; None in PREDICT.
        mode: a value of ModeKeys.
        params: see UnetParams.

    Returns:
        The spec, with the metrics "mean_iou" (over the classes that labels or predictions have), "accuracy" and "cross_entropy" of
        pixels, exact over all pixels that count, and the prediction "classes" (int32 [batch, height, width]).

    Raises:
        UsageError: a parameter is unknown or not allowed, or images or labels have the wrong shape or dtype.
    """
    settings = UnetParams.from_params(params)
    images = pick_images(features, settings.model, mean=0.5, deviation=0.5)
    seed = make_step_seed(settings.seed)
    logits = unet(images, settings, training=mode == ModeKeys.TRAIN, dropout_seed=seed)
    return make_segmentation_spec(features, labels, mode, logits, settings, ignored_label=settings.ignored_label)


def _convolve_twice(net: tf.Tensor, filters: int, name: str) -> tf.Tensor:
    """Apply two 3x3 convolutions, each with a relu."""
    initializer = _v1.variance_scaling_initializer(2.0, "fan_in", "untruncated_normal")
    for index in range(2):
        net = conv(net, filters, kernel_size=3, name=f"{name}/{index}", kernel_initializer=initializer)
        net = tf.nn.relu(net)
    return net


def _upsample(net: tf.Tensor) -> tf.Tensor:
    """Return images of twice the height and width: each pixel four times."""
    return tf.repeat(tf.repeat(net, 2, axis=1), 2, axis=2)

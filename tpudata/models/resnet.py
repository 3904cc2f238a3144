"""ResNet-18, 34 and 50, version 1.5: in a bottleneck, the 3x3 convolution has the stride."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.layers.linear import conv, dense
from tpudata.models.layers.normalization import batch_norm
from tpudata.models.tasks.classification import make_classification_spec
from tpudata.models.tasks.images import pick_images
from tpudata.models.training.train_op import TrainingParams
from tpudata.tensor_types import Tensors

_v1 = tf.compat.v1
# By depth: the number of blocks in each of the four groups, and whether the blocks are bottlenecks.
_DEPTHS = {18: ((2, 2, 2, 2), False), 34: ((3, 4, 6, 3), False), 50: ((3, 4, 6, 3), True)}
_STEMS = ("auto", "large", "small")
_PRECISIONS = {"float32": tf.float32, "bfloat16": tf.bfloat16}
# Images below this height or width get the small stem: with the large stem, the last group would have at most 2x2 pixels if they
# are square.
_SMALL_BELOW = 64
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetParams(TrainingParams):
    """Params of the model, in addition to those of TrainingParams.

    Attributes:
        depth: 18, 34 or 50; the blocks of 50 are bottlenecks.
        blocks: number of blocks in each group; None for the usual numbers of the depth.
        num_classes: number of classes; labels are label_offset to label_offset + num_classes - 1.
        label_offset: label of the first class.
        label_smoothing: share of each label that is spread over all classes in training.
        stem: "large" (a 7x7 convolution and a pool, both of stride 2), "small" (one 3x3 convolution) or "auto": small for
            images with a height or width below 64.
        precision: "float32", or "bfloat16" for all layers but the last; variables are float32.
        zero_gamma: whether each block's last normalization has an initial scale of 0, so that the block begins as its shortcut.
        batch_norm_momentum: decay of the moving averages of batch normalization.
        transpose_input: whether images are [height, width, channels, batch].

    Raises:
        UsageError: a value is not allowed.
    """

    model: ClassVar[str] = "resnet"
    optimizer: str = "momentum"
    learning_rate: float = 0.1
    weight_decay: float = 1e-4
    depth: int = 50
    blocks: tuple[int, ...] | None = None
    num_classes: int = 1000
    label_offset: int = 0
    label_smoothing: float = 0.0
    stem: str = "auto"
    precision: str = "float32"
    zero_gamma: bool = True
    batch_norm_momentum: float = 0.9
    transpose_input: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_one_of("depth", tuple(_DEPTHS))
        self.require("blocks", self.blocks is None or min(self.blocks, default=0) > 0, "numbers of 1 or more, or None")
        self.require_one_of("stem", _STEMS)
        self.require_one_of("precision", tuple(_PRECISIONS))
        self.require("num_classes", self.num_classes >= 2, "2 or more")
        self.require("label_offset", self.label_offset >= 0, "0 or more")
        self.require("label_smoothing", 0 <= self.label_smoothing < 1, "in [0, 1)")
        self.require("batch_norm_momentum", 0 <= self.batch_norm_momentum < 1, "in [0, 1)")


def resnet(images: tf.Tensor, params: ResNetParams, training: bool) -> tf.Tensor:
    """Build the network; its variables are made by `tf.compat.v1.get_variable`.

    Batch normalization uses the statistics of this replica's rows only; the updates of its moving averages are in the
    collection UPDATE_OPS.

    Args:
        images: floats [batch, height, width, channels], height and width 32 or more, with mean 0 and standard deviation 1.
        params: params of the model.
        training: whether batch normalization uses the statistics of the batch.

    Returns:
        float32 logits [batch, num_classes].

    Raises:
        UsageError: images have the wrong rank or an unknown size, or are too small.
    """
    shape = images.shape
    if shape.rank != 4 or None in shape[1:] or min(shape[1:3]) < 32:
        raise UsageError(
            f"resnet: images must be [batch, height, width, channels] of known size, at least 32x32, got {shape}. "
            "Resize or crop them with images=tpudata.Images(...) of make_input_fn, or with --image-size or --crop."
        )
    depth_blocks, is_bottleneck = _DEPTHS[params.depth]
    network = _Network(params, training)
    net = tf.cast(images, _PRECISIONS[params.precision])
    with _v1.variable_scope("stem"):
        net = network.build_stem(net)
    for group, num_blocks in enumerate(params.blocks or depth_blocks):
        for block in range(num_blocks):
            stride = 2 if group > 0 and block == 0 else 1
            with _v1.variable_scope(f"group_{group}/block_{block}"):
                build_block = network.build_bottleneck if is_bottleneck else network.build_basic_block
                net = build_block(net, 64 * 2**group, stride)
    net = tf.reduce_mean(tf.cast(net, tf.float32), axis=[1, 2])
    return dense(net, params.num_classes, "logits", _v1.random_normal_initializer(stddev=0.01))


@dataclasses.dataclass(frozen=True)
class _Network:
    """Parts of the network: the stem, and the two kinds of residual blocks."""

    params: ResNetParams
    training: bool

    def build_stem(self, net: tf.Tensor) -> tf.Tensor:
        """Return 64 channels: the small stem is a 3x3 convolution, the large one a 7x7 convolution and a pool, both of stride 2."""
        is_small = self.params.stem == "small" or (
            self.params.stem == "auto" and min(net.shape[1], net.shape[2]) < _SMALL_BELOW
        )
        if is_small:
            return tf.nn.relu(self._convolve_and_normalize(net, 64, kernel_size=3, name="conv"))
        net = tf.nn.relu(self._convolve_and_normalize(net, 64, kernel_size=7, name="conv", stride=2))
        # After a relu, zeros have the same effect as the padding of max pooling.
        return tf.nn.max_pool2d(tf.pad(net, [[0, 0], [1, 1], [1, 1], [0, 0]]), ksize=3, strides=2, padding="VALID")

    def build_basic_block(self, inputs: tf.Tensor, filters: int, stride: int) -> tf.Tensor:
        """Add two 3x3 convolutions, the first with the stride, to the shortcut; return `filters` channels."""
        net = tf.nn.relu(self._convolve_and_normalize(inputs, filters, kernel_size=3, name="conv_0", stride=stride))
        net = self._convolve_and_normalize(
            net, filters, kernel_size=3, name="conv_1", zero_gamma=self.params.zero_gamma
        )
        return tf.nn.relu(net + self._build_shortcut(inputs, filters, stride))

    def build_bottleneck(self, inputs: tf.Tensor, filters: int, stride: int) -> tf.Tensor:
        """Add 1x1, 3x3 (with the stride) and 1x1 convolutions to the shortcut; return 4 * filters channels."""
        net = tf.nn.relu(self._convolve_and_normalize(inputs, filters, kernel_size=1, name="conv_0"))
        net = tf.nn.relu(self._convolve_and_normalize(net, filters, kernel_size=3, name="conv_1", stride=stride))
        net = self._convolve_and_normalize(
            net, 4 * filters, kernel_size=1, name="conv_2", zero_gamma=self.params.zero_gamma
        )
        return tf.nn.relu(net + self._build_shortcut(inputs, 4 * filters, stride))

    def _build_shortcut(self, inputs: tf.Tensor, filters: int, stride: int) -> tf.Tensor:
        """Return a block's inputs in the shape of its outputs, with a projection if the shapes differ."""
        if stride == 1 and inputs.shape[3] == filters:
            return inputs
        return self._convolve_and_normalize(inputs, filters, kernel_size=1, name="shortcut", stride=stride)

    def _convolve_and_normalize(
        self, net: tf.Tensor, filters: int, kernel_size: int, name: str, stride: int = 1, zero_gamma: bool = False
    ) -> tf.Tensor:
        """Convolve without a bias, which batch normalization would remove, and normalize.

        Args:
            net: floats [batch, height, width, channels].
            filters: number of output channels.
            kernel_size: height and width of the kernel.
            name: name of the variable scope of the convolution; the normalization has `name`_norm.
            stride: stride along height and width.
            zero_gamma: whether the scale of the normalization is initially 0 instead of 1.
        """
        initializer = _v1.variance_scaling_initializer(2.0, mode="fan_out", distribution="truncated_normal")
        net = conv(net, filters, kernel_size, name, stride=stride, kernel_initializer=initializer, use_bias=False)
        momentum = self.params.batch_norm_momentum
        return batch_norm(net, self.training, f"{name}_norm", momentum=momentum, zero_gamma=zero_gamma)


def model_fn(features: Tensors, labels: Tensors, mode: str, params: Mapping[str, object]) -> TPUEstimatorSpec:
    """Build the graph of one mode for an estimator: training, evaluation or prediction.

    Args:
        features: images, or a dict with them as "image" and optionally "weights" (float32 [batch], 0 for rows that do
            not count). Images are uint8 [batch, height, width, 3], which are normalized with ImageNet's means and deviations, or
            floats, which are used as given; with transpose_input [height, width, channels, batch].
        labels: int [batch], in training also float [batch, label_offset + num_classes]; None in PREDICT.
        mode: a value of ModeKeys.
        params: see ResNetParams.

    Returns:
        The spec, with the metrics "accuracy", "top_5_accuracy" and "cross_entropy" (without label smoothing), exact over
        all rows that count, and the predictions "classes" (int32 [batch], counted as labels are) and "probabilities" (float32
        [batch, num_classes]).

    Raises:
        UsageError: a parameter is unknown or not allowed, images have the wrong shape, or labels have the wrong shape or dtype.
    """
    settings = ResNetParams.from_params(params)
    images = pick_images(
        features, settings.model, mean=_MEAN, deviation=_DEVIATION, batch_is_last=settings.transpose_input
    )
    logits = resnet(images, settings, training=mode == ModeKeys.TRAIN)
    return make_classification_spec(
        features,
        labels,
        mode,
        logits,
        settings,
        label_offset=settings.label_offset,
        label_smoothing=settings.label_smoothing,
        has_top_5=True,
    )

"""A convolutional network that classifies texts by the runs of tokens in them, with any tokenizer."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.layers.dropout import dropout as drop
from tpudata.models.layers.dropout import make_step_seed
from tpudata.models.layers.linear import dense, variable
from tpudata.models.tasks.classification import make_classification_spec
from tpudata.models.tasks.language import pick_input_ids
from tpudata.models.training.train_op import TrainingParams
from tpudata.tensor_types import Tensors

_v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextClassifierParams(TrainingParams):
    """Params of the model, in addition to those of TrainingParams.

    Attributes:
        vocab_size: number of token ids, from the dataset's manifest; required.
        num_classes: number of classes; labels are label_offset to label_offset + num_classes - 1.
        label_offset: label of the first class.
        embedding_size: size of a token's embedding.
        kernel_sizes: number of tokens in a run, for each convolution.
        filters: outputs of each convolution.
        dropout: share of the pooled outputs that a training step drops.

    Raises:
        UsageError: a value is not allowed.
    """

    model: ClassVar[str] = "text_classifier"
    vocab_size: int
    num_classes: int = 2
    label_offset: int = 0
    embedding_size: int = 64
    kernel_sizes: tuple[int, ...] = (1, 3, 5)
    filters: int = 64
    dropout: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("vocab_size", self.vocab_size >= 2, "2 or more")
        self.require("num_classes", self.num_classes >= 2, "2 or more")
        self.require("label_offset", self.label_offset >= 0, "0 or more")
        for name in ("embedding_size", "filters"):
            self.require(name, getattr(self, name) >= 1, "1 or more")
        self.require("kernel_sizes", min(self.kernel_sizes, default=0) >= 1, "a list of numbers of 1 or more")
        self.require("dropout", 0 <= self.dropout < 1, "in [0, 1)")


def text_classifier(
    input_ids: tf.Tensor,
    mask: tf.Tensor,
    params: TextClassifierParams,
    training: bool,
    dropout_seed: tf.Tensor | tuple[int, int] = (0, 0),
) -> tf.Tensor:
    """Build the network: embeddings, convolutions over runs of tokens, and max and mean pooling over the text.

    The logits of a text do not depend on its padding. The variables are made by `tf.compat.v1.get_variable`.

    Args:
        input_ids: int32 [batch, length], 0 to vocab_size - 1.
        mask: float32 [batch, length], 1 for tokens and 0 for padding.
        params: params of the model.
        training: whether to apply dropout.
        dropout_seed: int32 [2]; the same seed drops the same values.

    Returns:
        float32 logits [batch, num_classes].
    """
    table = variable("embedding", [params.vocab_size, params.embedding_size], _v1.random_normal_initializer(stddev=0.1))
    # Padding tokens are 0, here and after each convolution, like the zeros with which a convolution extends a row.
    tokens = tf.gather(table, input_ids) * mask[:, :, None]
    num_tokens = tf.reduce_sum(mask, axis=1, keepdims=True)
    pooled = []
    for kernel_size in params.kernel_sizes:
        with _v1.variable_scope(f"conv_{kernel_size}"):
            shape = [kernel_size, params.embedding_size, params.filters]
            kernel = variable("kernel", shape, _v1.glorot_uniform_initializer())
            bias = variable("bias", [params.filters], _v1.zeros_initializer())
        outputs = tf.nn.relu(tf.nn.conv1d(tokens, kernel, stride=1, padding="SAME") + bias) * mask[:, :, None]
        pooled += [tf.reduce_max(outputs, axis=1), tf.math.divide_no_nan(tf.reduce_sum(outputs, axis=1), num_tokens)]
    net = tf.concat(pooled, axis=1)
    if training:
        net = drop(net, params.dropout, dropout_seed)
    return dense(net, params.num_classes, "logits")


def model_fn(features: Tensors, labels: Tensors, mode: str, params: Mapping[str, object]) -> TPUEstimatorSpec:
    """Build the graph of one mode for an estimator: training, evaluation or prediction.

    Args:
        features: int32 [batch, length], or a dict with them as "input_ids" and optionally "attention_mask" (int [batch, length], 0
            for padding; by default all tokens count) and "weights" (float32 [batch], 0 for rows that do not count).
        labels: int [batch], in training also float [batch, label_offset + num_classes]; None in PREDICT.
        mode: a value of ModeKeys.
        params: see TextClassifierParams.

    Returns:
        The spec, with the metrics "accuracy" and "cross_entropy", exact over all rows that count, and the predictions
        "classes" (int32 [batch], counted as labels are) and "probabilities" (float32 [batch, num_classes]).

    Raises:
        UsageError: a parameter is unknown or not allowed, or features or labels have the wrong shape or dtype.
    """
    settings = TextClassifierParams.from_params(params)
    input_ids = pick_input_ids(features, settings.model)
    feature_dict = features if isinstance(features, dict) else {}
    mask = tf.cast(feature_dict.get("attention_mask", tf.ones_like(input_ids)), tf.float32)
    seed = make_step_seed(settings.seed)
    logits = text_classifier(input_ids, mask, settings, training=mode == ModeKeys.TRAIN, dropout_seed=seed)
    return make_classification_spec(features, labels, mode, logits, settings, label_offset=settings.label_offset)

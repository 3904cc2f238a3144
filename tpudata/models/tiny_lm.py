"""A small decoder-only transformer for packed tokens: a token sees the tokens before it in its document."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import tensorflow as tf

from tpudata.console.tables import count_text
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.layers.attention import attention, make_causal_mask, rotate
from tpudata.models.layers.dropout import dropout as drop
from tpudata.models.layers.dropout import make_step_seed
from tpudata.models.layers.linear import dense, variable
from tpudata.models.layers.normalization import layer_norm
from tpudata.models.tasks.language import make_language_spec, pick_input_ids
from tpudata.models.training.train_op import TrainingParams
from tpudata.tensor_types import Tensors

_v1 = tf.compat.v1
_POSITIONS = ("rotary", "learned")
_PRECISIONS = {"float32": tf.float32, "bfloat16": tf.bfloat16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyLmParams(TrainingParams):
    """Params of the model, in addition to those of TrainingParams.

    Attributes:
        vocab_size: number of token ids, from the dataset's manifest; required.
        hidden_size: size of a token's embedding and of the residual stream.
        num_layers: number of blocks.
        num_heads: attention heads of each block, a divisor of hidden_size.
        mlp_size: units of the first of the two dense layers in each block; None for four times hidden_size.
        position_embedding: "rotary", or "learned" for a vector that is added for each position.
        max_positions: number of learned positions.
        tie_embeddings: whether the logits are products with the embedding of the tokens.
        dropout: share of the embeddings and of each block's outputs that a training step drops.
        precision: "float32", or "bfloat16" between the embedding and the logits; variables are float32.

    Raises:
        UsageError: a value is not allowed.
    """

    model: ClassVar[str] = "tiny_lm"
    learning_rate: float = 1e-3
    beta2: float = 0.99
    weight_decay: float = 0.1
    gradient_clip: float | None = 1.0
    vocab_size: int
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    mlp_size: int | None = None
    position_embedding: str = "rotary"
    max_positions: int = 2048
    tie_embeddings: bool = True
    dropout: float = 0.0
    precision: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("vocab_size", self.vocab_size >= 2, "2 or more")
        for name in ("hidden_size", "num_layers", "num_heads", "max_positions"):
            self.require(name, getattr(self, name) >= 1, "1 or more")
        self.require("mlp_size", self.mlp_size is None or self.mlp_size >= 1, "None, or 1 or more")
        self.require_one_of("position_embedding", _POSITIONS)
        self.require_one_of("precision", tuple(_PRECISIONS))
        is_divisor = self.hidden_size % self.num_heads == 0
        self.require("num_heads", is_divisor, f"a divisor of hidden_size {self.hidden_size}")
        is_even = self.hidden_size // self.num_heads % 2 == 0
        self.require(
            "num_heads",
            self.position_embedding != "rotary" or is_even,
            f"such that hidden_size {self.hidden_size} / num_heads is even for rotary positions",
        )
        self.require("dropout", 0 <= self.dropout < 1, "in [0, 1)")


def tiny_lm(
    input_ids: tf.Tensor,
    segment_ids: tf.Tensor,
    positions: tf.Tensor,
    params: TinyLmParams,
    training: bool,
    dropout_seed: tf.Tensor | tuple[int, int] = (0, 0),
) -> tf.Tensor:
    """Build the network: blocks of attention and of two dense layers, each after a normalization.

    Its variables are made by `tf.compat.v1.get_variable`.

    Args:
        input_ids: int32 [batch, length], 0 to vocab_size - 1.
        segment_ids: int32 [batch, length]; tokens only see tokens of the same segment.
        positions: int32 [batch, length], the position of each token in its segment.
        params: params of the model.
        training: whether to apply dropout.
        dropout_seed: int32 [2]; the same seed drops the same values.

    Returns:
        float32 logits of the next tokens, [batch, length, vocab_size].

    Raises:
        UsageError: positions are learned, and rows are longer than max_positions.
    """
    length = input_ids.shape[1]
    rate = params.dropout if training else 0.0
    table = variable("embedding", [params.vocab_size, params.hidden_size], _v1.random_normal_initializer(stddev=0.02))
    net = tf.gather(table, input_ids)
    if params.position_embedding == "learned":
        if length > params.max_positions:
            raise UsageError(
                f"tiny_lm: rows are too long (got {count_text(length, 'token')}, expected at most max_positions="
                f"{params.max_positions}). Raise max_positions, or set position_embedding=rotary."
            )
        shape = [params.max_positions, params.hidden_size]
        net += tf.gather(variable("positions", shape, _v1.random_normal_initializer(stddev=0.02)), positions)
    # This dropout has the index 0; the two dropouts of block k have 2 k + 1 and 2 k + 2.
    net = drop(tf.cast(net, _PRECISIONS[params.precision]), rate, dropout_seed)
    mask = make_causal_mask(segment_ids)
    for block in range(params.num_layers):
        with _v1.variable_scope(f"block_{block}"):
            attended = _attend(layer_norm(net, "attention_norm"), mask, positions, params)
            net += drop(attended, rate, dropout_seed, index=2 * block + 1)
            net += drop(_apply_mlp(layer_norm(net, "mlp_norm"), params), rate, dropout_seed, index=2 * block + 2)
    net = layer_norm(net, "norm")
    if params.tie_embeddings:
        rows = tf.reshape(net, [-1, params.hidden_size])
        logits = tf.matmul(rows, tf.cast(table, net.dtype), transpose_b=True)
        logits = tf.reshape(logits, [-1, length, params.vocab_size])
    else:
        logits = dense(net, params.vocab_size, "logits", _make_initializer(num_summed=1), use_bias=False)
    return tf.cast(logits, tf.float32)


def _make_initializer(num_summed: int) -> Callable[..., tf.Tensor]:
    """Return an initializer of normal values, smaller for layers whose outputs are added up (Radford et al., 2019).

    Args:
        num_summed: number of layers whose outputs are added up: 1, or 2 * num_layers for the two layers of each block that add to
            the residual stream.
    """
    initializer: Callable[..., tf.Tensor] = _v1.random_normal_initializer(stddev=0.02 * num_summed**-0.5)
    return initializer


def _attend(net: tf.Tensor, mask: tf.Tensor, positions: tf.Tensor, params: TinyLmParams) -> tf.Tensor:
    """Return the outputs of a block's attention, [batch, length, hidden_size].

    Args:
        net: floats [batch, length, hidden_size], the normalized inputs of the block.
        mask: bool [batch, 1, length, length], from `make_causal_mask`.
        positions: int32 [batch, length], the position of each token in its segment.
        params: params of the model.
    """
    length, size = net.shape[1], params.hidden_size // params.num_heads
    projections = dense(net, 3 * params.hidden_size, "qkv", _make_initializer(num_summed=1))
    # From [batch, length, 3, heads, size] to 3 times [batch, heads, length, size].
    projections = tf.transpose(tf.reshape(projections, [-1, length, 3, params.num_heads, size]), [2, 0, 3, 1, 4])
    queries, keys, values = tf.unstack(projections)
    if params.position_embedding == "rotary":
        queries, keys = rotate(queries, positions), rotate(keys, positions)
    heads = tf.transpose(attention(queries, keys, values, mask), [0, 2, 1, 3])
    heads = tf.reshape(heads, [-1, length, params.hidden_size])
    return dense(heads, params.hidden_size, "attended", _make_initializer(num_summed=2 * params.num_layers))


def _apply_mlp(net: tf.Tensor, params: TinyLmParams) -> tf.Tensor:
    """Return the outputs of a block's two dense layers, [batch, length, hidden_size]; the residual stream adds them."""
    num_units = params.mlp_size or 4 * params.hidden_size
    net = tf.nn.gelu(dense(net, num_units, "mlp_in", _make_initializer(num_summed=1)))
    return dense(net, params.hidden_size, "mlp_out", _make_initializer(num_summed=2 * params.num_layers))


def model_fn(features: Tensors, labels: Tensors, mode: str, params: Mapping[str, object]) -> TPUEstimatorSpec:
    """Build the graph of one mode for an estimator: training, evaluation or prediction.

    Args:
        features: int32 [batch, length], or a dict with them as "input_ids" and optionally, each [batch, length],
            "segment_ids" (int, from 1, 0 for padding; by default "attention_mask" or, without it, one segment for the row),
            "positions" (int, counted in each segment; by default counted in the row) and "token_weights" (float32, 0 for tokens
            whose label does not count), and "weights" (float32 [batch], 0 for rows that do not count).
        labels: int [batch, length], the token that follows each input id; None in PREDICT.
        mode: a value of ModeKeys.
        params: see TinyLmParams.

    Returns:
        The spec, with the metrics "cross_entropy" (in nats), "bits_per_token", "perplexity" and "accuracy", exact over all
        tokens that count. Predictions: "log_probabilities" (float32 [batch, length - 1], of each token from the second on, given
        the tokens before it; 0 at the beginning of a segment and in padding), "next_ids" (int32 [batch, length], the most probable
        next tokens) and "next_log_probabilities" (float32 [batch, vocab_size], of the token that follows the row's last token that
        is not padding).

    Raises:
        UsageError: a parameter is unknown or not allowed, or features or labels have the wrong shape or dtype.
    """
    settings = TinyLmParams.from_params(params)
    input_ids = pick_input_ids(features, settings.model)
    feature_dict = features if isinstance(features, dict) else {}
    # Padding at the end of a row, which a mask marks, is a separate segment.
    segments = feature_dict.get("segment_ids", feature_dict.get("attention_mask"))
    segments = tf.ones_like(input_ids) if segments is None else tf.cast(segments, tf.int32)
    positions = feature_dict.get("positions")
    if positions is None:
        positions = tf.zeros_like(input_ids) + tf.range(input_ids.shape[1])
    positions = tf.cast(positions, tf.int32)
    seed = make_step_seed(settings.seed)
    training = mode == ModeKeys.TRAIN
    logits = tiny_lm(input_ids, segments, positions, settings, training=training, dropout_seed=seed)
    if mode != ModeKeys.PREDICT:
        return make_language_spec(features, labels, mode, logits, settings, bits_name="bits_per_token")
    return TPUEstimatorSpec(mode, predictions=_make_predictions(input_ids, segments, logits))


def _make_predictions(input_ids: tf.Tensor, segments: tf.Tensor, logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the predictions that `model_fn` describes.

    Args:
        input_ids: int32 [batch, length].
        segments: int32 [batch, length], 0 for padding.
        logits: float32 [batch, length, vocab_size], of the token that follows each input id.
    """
    scores = tf.nn.log_softmax(logits)
    token_scores = tf.gather(scores[:, :-1], input_ids[:, 1:], axis=2, batch_dims=2)
    continues_segment = tf.equal(segments[:, 1:], segments[:, :-1]) & (segments[:, 1:] > 0)
    # The index of each row's last token that is not padding.
    indices = tf.range(input_ids.shape[1])
    last_indices = tf.reduce_max(tf.where(segments > 0, indices, 0), axis=1)
    return {
        "log_probabilities": tf.where(continues_segment, token_scores, 0.0),
        "next_ids": tf.argmax(logits, axis=-1, output_type=tf.int32),
        "next_log_probabilities": tf.gather(scores, last_indices, axis=1, batch_dims=1),
    }

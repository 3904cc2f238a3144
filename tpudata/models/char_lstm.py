"""A text generator: an LSTM that is trained to predict the next character, and then draws characters one by one."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.layers.dropout import dropout as drop
from tpudata.models.layers.dropout import make_step_seed
from tpudata.models.layers.linear import variable
from tpudata.models.layers.recurrence import lstm_cell, lstm_recurrence
from tpudata.models.tasks.language import make_language_spec, pick_input_ids
from tpudata.models.tasks.sampling import draw, draw_uniform, make_row_seeds
from tpudata.models.training.train_op import TrainingParams
from tpudata.tensor_types import Tensors

_v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CharLstmParams(TrainingParams):
    """Params of the model, in addition to those of TrainingParams.

    Attributes:
        vocab_size: number of token ids, from the dataset's manifest; required.
        embedding_size: size of a token's embedding.
        hidden_units: units of each LSTM layer.
        num_layers: number of LSTM layers.
        dropout: share of each layer's outputs that a training step drops.
        max_new_tokens: tokens that PREDICT adds to each prompt.
        temperature: number that divides the logits: above 1 draws more evenly, below 1 less; 0 takes the most probable token.

    Raises:
        UsageError: a value is not allowed.
    """

    model: ClassVar[str] = "char_lstm"
    learning_rate: float = 4e-3
    gradient_clip: float | None = 1.0
    vocab_size: int
    embedding_size: int = 64
    hidden_units: int = 512
    num_layers: int = 1
    dropout: float = 0.0
    max_new_tokens: int = 200
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("vocab_size", self.vocab_size >= 2, "2 or more")
        for name in ("embedding_size", "hidden_units", "num_layers", "max_new_tokens"):
            self.require(name, getattr(self, name) >= 1, "1 or more")
        self.require("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        self.require("temperature", self.temperature >= 0, "0 or more")


@dataclasses.dataclass(frozen=True)
class _Layer:
    """Weights of one LSTM layer."""

    kernel: tf.Tensor
    recurrent_kernel: tf.Tensor
    bias: tf.Tensor

    def project(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the inputs' part of the gates, [rows, 4 * units]; the previous output's part is added in each step."""
        return tf.matmul(inputs, self.kernel) + self.bias


@dataclasses.dataclass(frozen=True)
class _Weights:
    """Weights of the network; `kernel` and `bias` belong to the logits."""

    embedding: tf.Tensor
    layers: tuple[_Layer, ...]
    kernel: tf.Tensor
    bias: tf.Tensor

    @classmethod
    def make(cls, params: CharLstmParams) -> "_Weights":
        """Return the weights, from variables of the current variable scope, which the first call makes."""
        embedding = variable(
            "embedding", [params.vocab_size, params.embedding_size], _v1.random_uniform_initializer(-0.05, 0.05)
        )
        input_sizes = [params.embedding_size] + [params.hidden_units] * (params.num_layers - 1)
        layers = tuple(_make_layer(index, size, params.hidden_units) for index, size in enumerate(input_sizes))
        with _v1.variable_scope("logits"):
            shape = [params.hidden_units, params.vocab_size]
            kernel = variable("kernel", shape, _v1.glorot_uniform_initializer())
            bias = variable("bias", shape[1:], _v1.zeros_initializer())
        # Read once instead of in each step of a loop.
        return cls(tf.convert_to_tensor(embedding), layers, tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias))

    def compute_logits(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.matmul(outputs, self.kernel) + self.bias


def _make_layer(index: int, input_size: int, num_units: int) -> _Layer:
    """Return the weights of LSTM layer `index`, from variables of the current variable scope."""

    # `get_variable` passes the shape and the dtype, which are known here.
    def make_bias(_: object, **__: object) -> tf.Tensor:
        # The gates are input, forget, candidate and output; the forget gate begins open.
        return tf.concat([tf.zeros([num_units]), tf.ones([num_units]), tf.zeros([2 * num_units])], axis=0)

    with _v1.variable_scope(f"lstm_{index}"):
        return _Layer(
            tf.convert_to_tensor(variable("kernel", [input_size, 4 * num_units], _v1.glorot_uniform_initializer())),
            tf.convert_to_tensor(
                variable("recurrent_kernel", [num_units, 4 * num_units], _v1.orthogonal_initializer())
            ),
            tf.convert_to_tensor(variable("bias", [4 * num_units], make_bias)),
        )


def char_lstm(
    input_ids: tf.Tensor,
    params: CharLstmParams,
    training: bool,
    dropout_seed: tf.Tensor | tuple[int, int] = (0, 0),
) -> tf.Tensor:
    """Build the network: an embedding, LSTM layers from a state of zeros, and logits.

    Its variables are made by `tf.compat.v1.get_variable`.

    Args:
        input_ids: int32 [batch, length], 0 to vocab_size - 1.
        params: params of the model.
        training: whether to drop outputs.
        dropout_seed: int32 [2]; the same seed drops the same outputs.

    Returns:
        float32 logits of the next tokens, [batch, length, vocab_size].
    """
    weights = _Weights.make(params)
    outputs, _ = _run_layers(weights, input_ids, params.dropout if training else 0.0, dropout_seed)
    rows = tf.reshape(tf.transpose(outputs[-1], [1, 0, 2]), [-1, params.hidden_units])
    return tf.reshape(weights.compute_logits(rows), [-1, input_ids.shape[1], params.vocab_size])


def generate(
    prompts: tf.Tensor, lengths: tf.Tensor, seeds: tf.Tensor, params: CharLstmParams
) -> tuple[tf.Tensor, tf.Tensor]:
    """Continue prompts by max_new_tokens tokens each, with the variables of `char_lstm`.

    Args:
        prompts: int32 [batch, length].
        lengths: int32 [batch], 1 to length: number of ids of each prompt.
        seeds: int32 [batch], the seed of each row's draws.
        params: params of the model.

    Returns:
        The tokens, int32 [batch, max_new_tokens], and their log-probabilities at temperature 1, float32 of the same shape.
    """
    weights = _Weights.make(params)
    uniform = draw_uniform(params.seed, seeds, params.max_new_tokens)
    prompt_outputs, prompt_cells = _run_layers(weights, prompts, dropout_rate=0.0, dropout_seed=(0, 0))
    outputs = tuple(_gather_step(layer_outputs, lengths - 1) for layer_outputs in prompt_outputs)
    cells = tuple(_gather_step(layer_cells, lengths - 1) for layer_cells in prompt_cells)
    tokens = tf.TensorArray(tf.int32, params.max_new_tokens, element_shape=prompts.shape[:1])
    scores = tf.TensorArray(tf.float32, params.max_new_tokens, element_shape=prompts.shape[:1])

    def step(
        t: tf.Tensor,
        outputs: tuple[tf.Tensor, ...],
        cells: tuple[tf.Tensor, ...],
        tokens: tf.TensorArray,
        scores: tf.TensorArray,
    ) -> tuple[Tensors, ...]:
        """Draw token `t` of each row, run the network on it, and return the loop's variables for the next step."""
        logits = weights.compute_logits(outputs[-1])
        token = draw(logits, tf.gather(uniform, t, axis=1), params.temperature)
        score = tf.gather(tf.nn.log_softmax(logits), token, axis=1, batch_dims=1)
        net = tf.gather(weights.embedding, token)
        next_outputs, next_cells = [], []
        for layer, output, cell in zip(weights.layers, outputs, cells, strict=True):
            gates = layer.project(net) + tf.matmul(output, layer.recurrent_kernel)
            net, cell, _ = lstm_cell(gates, cell)
            next_outputs.append(net)
            next_cells.append(cell)
        return t + 1, tuple(next_outputs), tuple(next_cells), tokens.write(t, token), scores.write(t, score)

    *_, tokens, scores = tf.while_loop(
        lambda t, *_: t < params.max_new_tokens,
        step,
        (tf.constant(0), outputs, cells, tokens, scores),
        maximum_iterations=params.max_new_tokens,
    )
    return tf.transpose(tokens.stack()), tf.transpose(scores.stack())


def _run_layers(
    weights: _Weights, input_ids: tf.Tensor, dropout_rate: float, dropout_seed: tf.Tensor | tuple[int, int]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Run all layers over whole rows; return each layer's outputs and each layer's cell states, [length, batch, hidden_units].

    Args:
        weights: weights of the network.
        input_ids: int32 [batch, length].
        dropout_rate: share of each layer's outputs to drop.
        dropout_seed: int32 [2]; the same seed drops the same outputs.
    """
    net = tf.gather(weights.embedding, tf.transpose(input_ids))
    outputs, cells = [], []
    for index, layer in enumerate(weights.layers):
        num_units = layer.recurrent_kernel.shape[0]
        # One matrix product for the inputs of all steps.
        gates = layer.project(tf.reshape(net, [-1, net.shape[2]]))
        # The batch, unlike the length, may be of unknown size.
        batch_size = -1 if net.shape[1] is None else net.shape[1]
        gates = tf.reshape(gates, [net.shape[0], batch_size, 4 * num_units])
        net, cell = lstm_recurrence(gates, layer.recurrent_kernel)
        net = drop(net, dropout_rate, dropout_seed, index=index)
        outputs.append(net)
        cells.append(cell)
    return outputs, cells


def _gather_step(values: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Gather one time step for each row: [length, batch, units] to [batch, units]."""
    return tf.gather(tf.transpose(values, [1, 0, 2]), positions, axis=1, batch_dims=1)


def model_fn(features: Tensors, labels: Tensors, mode: str, params: Mapping[str, object]) -> TPUEstimatorSpec:
    """Build the graph of one mode for an estimator: training, evaluation or the generation of text.

    Args:
        features: int32 [batch, length], or a dict with them as "input_ids"; in training and evaluation optionally with
            "token_weights" (float32 [batch, length], 0 for tokens whose label does not count) and "weights" (float32 [batch], 0
            for rows that do not count). In PREDICT the ids are prompts, optionally with "prompt_length" (int [batch], number of ids
            of the prompt; by default all but the padding of "attention_mask" or "segment_ids") and "prompt_seed" (int [batch], by
            default 0, for several continuations of one prompt).
        labels: int [batch, length], the token that follows each input id; None in PREDICT.
        mode: a value of ModeKeys.
        params: see CharLstmParams.

    Returns:
        The spec, with the metrics "cross_entropy" (in nats), "bits_per_character", "perplexity" and "accuracy", exact over
        all tokens that count, and the predictions "input_ids" (int32 [batch, length], the prompts), "generated_ids" (int32 [batch,
        max_new_tokens]) and "log_probabilities" (float32 [batch, max_new_tokens], of the generated tokens at temperature 1). The
        same seed, prompt and prompt_seed give the same tokens.

    Raises:
        UsageError: a parameter is unknown or not allowed, or features or labels have the wrong shape or dtype.
    """
    settings = CharLstmParams.from_params(params)
    input_ids = pick_input_ids(features, settings.model)
    if mode != ModeKeys.PREDICT:
        seed = make_step_seed(settings.seed)
        logits = char_lstm(input_ids, settings, training=mode == ModeKeys.TRAIN, dropout_seed=seed)
        return make_language_spec(features, labels, mode, logits, settings, bits_name="bits_per_character")
    feature_dict = features if isinstance(features, dict) else {}
    length = input_ids.shape[1]
    lengths = tf.clip_by_value(_count_prompt_lengths(feature_dict, input_ids), 1, length)
    seeds = make_row_seeds(input_ids, lengths, feature_dict.get("prompt_seed"))
    tokens, scores = generate(input_ids, lengths, seeds, settings)
    predictions = {"input_ids": input_ids, "generated_ids": tokens, "log_probabilities": scores}
    return TPUEstimatorSpec(mode, predictions=predictions)


def _count_prompt_lengths(feature_dict: Mapping[str, tf.Tensor], input_ids: tf.Tensor) -> tf.Tensor:
    """Return the number of ids of each prompt, int32 [batch]: "prompt_length", or the number of ids that are not padding."""
    if "prompt_length" in feature_dict:
        return tf.cast(feature_dict["prompt_length"], tf.int32)
    mask = feature_dict.get("attention_mask", feature_dict.get("segment_ids", tf.ones_like(input_ids)))
    return tf.reduce_sum(tf.cast(mask > 0, tf.int32), axis=1)

"""Inputs, losses and exact metrics of a language model, from its logits of next tokens."""

import math

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.tasks.ids import cast_ids
from tpudata.models.training.train_op import TrainingParams, make_train_op
from tpudata.models.training.weights import compute_weighted_mean, get_weights_or_ones
from tpudata.tensor_types import Tensors

_v1 = tf.compat.v1


def pick_input_ids(features: Tensors, model: str) -> tf.Tensor:
    """Return the token ids, int32 [batch, length]: the features themselves, or their "input_ids".

    Raises:
        UsageError: there are no token ids, or they are not integers of rank 2 with a known length.
    """
    input_ids = features
    if isinstance(features, dict):
        if "input_ids" not in features:
            raise UsageError(
                f'{model} reads tokens: features must contain "input_ids", got {", ".join(sorted(features))}. Use a dataset of '
                "tokens, or another model."
            )
        input_ids = features["input_ids"]
    if input_ids.shape.rank != 2 or input_ids.shape[1] is None or not input_ids.dtype.is_integer:
        raise UsageError(
            f"{model}: input_ids must be integers [batch, length] of a known length, got {input_ids.dtype.name} "
            f"{input_ids.shape}. Let make_input_fn pad them to sequence_length=N."
        )
    return cast_ids(input_ids)


def make_language_spec(
    features: Tensors, labels: tf.Tensor | None, mode: str, logits: tf.Tensor, params: TrainingParams, bits_name: str
) -> TPUEstimatorSpec:
    """Return the spec of a language model's training or evaluation.

    Args:
        features: a dict with "token_weights" (float32 [batch, length], 0 for tokens that do not count) and "weights" (floats
            [batch], 0 for rows that do not count), or other features; missing weights are 1.
        labels: integers [batch, length], the token that follows each input id.
        mode: TRAIN or EVAL.
        logits: float32 [batch, length, tokens].
        params: params of the model.
        bits_name: name of the metric for the cross entropy in bits.

    Raises:
        UsageError: labels are missing or have the wrong rank.
    """
    if labels is None or labels.shape.rank != 2:
        got = "none" if labels is None else f"shape {labels.shape}"
        raise UsageError(
            f"{params.model}: labels must be the next tokens, [batch, length], got {got}. Use make_input_fn with the layout "
            "sequences or packed, or with targets=True for padded tokens."
        )
    weights = _weigh_tokens(features, labels)
    # A label that does not count need not be a token id, which the loss requires.
    labels = tf.where(weights > 0, cast_ids(labels), 0)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = compute_weighted_mean(losses, weights, training=mode == ModeKeys.TRAIN)
    if mode == ModeKeys.TRAIN:
        return TPUEstimatorSpec(mode, loss=loss, train_op=make_train_op(loss, params))
    is_correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels), tf.float32)

    def make_metrics(
        losses: tf.Tensor, is_correct: tf.Tensor, weights: tf.Tensor
    ) -> dict[str, tuple[tf.Tensor, tf.Operation]]:
        """Return the v1 metrics of an evaluation, from each token's loss, correctness and weight."""
        mean, update = _v1.metrics.mean(losses, weights=weights)
        # One update serves the three metrics that follow from the mean.
        return {
            "cross_entropy": (mean, update),
            bits_name: (mean / math.log(2), update),
            "perplexity": (tf.exp(mean), update),
            "accuracy": _v1.metrics.mean(is_correct, weights=weights),
        }

    return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(make_metrics, [losses, is_correct, weights]))


def _weigh_tokens(features: Tensors, labels: tf.Tensor) -> tf.Tensor:
    """Return the product of each token's weight, 1 by default, and its row's weight: float32 [batch, length]."""
    weights = features.get("token_weights") if isinstance(features, dict) else None
    weights = tf.ones_like(labels, tf.float32) if weights is None else tf.cast(weights, tf.float32)
    # `labels[:, 0]` is passed only for its shape, [batch]: missing weights count as 1.
    return weights * get_weights_or_ones(features, labels[:, 0])[:, None]

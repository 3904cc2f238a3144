"""Losses, exact metrics and predictions of a classifier, from its logits."""

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.tasks.ids import cast_ids
from tpudata.models.training.train_op import TrainingParams, make_train_op
from tpudata.models.training.weights import compute_weighted_mean, get_weights_or_ones
from tpudata.tensor_types import Tensors

_v1 = tf.compat.v1


def make_classification_spec(
    features: Tensors,
    labels: tf.Tensor | None,
    mode: str,
    logits: tf.Tensor,
    params: TrainingParams,
    *,
    label_offset: int = 0,
    label_smoothing: float = 0.0,
    has_top_5: bool = False,
) -> TPUEstimatorSpec:
    """Return the spec of a classifier.

    Args:
        features: a dict with "weights" (floats [batch], 0 for rows that do not count); with other features, all rows count.
        labels: integers [batch]; in training also floats [batch, label_offset + classes], each label's share, from label 0 on.
            None in PREDICT.
        mode: a value of ModeKeys.
        logits: float32 [batch, classes].
        params: params of the model.
        label_offset: label of the first class.
        label_smoothing: share of each label that is spread over all classes in training.
        has_top_5: whether evaluation has the metric "top_5_accuracy".

    Raises:
        UsageError: labels are missing or have the wrong shape or dtype.
    """
    classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        predictions = {"classes": classes + label_offset, "probabilities": tf.nn.softmax(logits)}
        return TPUEstimatorSpec(mode, predictions=predictions)
    if labels is None:
        raise UsageError(f"{params.model}: mode {mode!r} needs labels (got features only). Return both from input_fn.")
    if labels.dtype.is_integer and labels.shape.rank != 1:
        raise UsageError(
            f"{params.model}: labels must be integers [batch], one for each row, got {labels.dtype.name} {labels.shape}."
        )
    # `classes` is passed only for its shape, [batch]: missing weights count as 1.
    weights = get_weights_or_ones(features, classes)
    if mode == ModeKeys.TRAIN:
        if labels.dtype.is_floating:
            losses = _compute_soft_losses(labels, logits, params.model, label_offset)
        else:
            losses = _compute_losses(_count_from_zero(labels, label_offset, weights), logits)
        if label_smoothing:
            uniform_losses = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
            losses = (1 - label_smoothing) * losses + label_smoothing * uniform_losses
        loss = compute_weighted_mean(losses, weights, training=True)
        return TPUEstimatorSpec(mode, loss=loss, train_op=make_train_op(loss, params))
    if labels.dtype.is_floating:
        raise UsageError(
            f"{params.model}: labels of evaluation must be integers [batch], got {labels.dtype.name} {labels.shape}."
        )
    labels = _count_from_zero(labels, label_offset, weights)
    losses = _compute_losses(labels, logits)
    values = {"accuracy": tf.cast(tf.equal(classes, labels), tf.float32), "cross_entropy": losses}
    if has_top_5:
        values["top_5_accuracy"] = _mark_top_rows(count=5, labels=labels, logits=logits)
    loss = compute_weighted_mean(losses, weights, training=False)
    return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(make_mean_metrics, {"weights": weights, **values}))


def make_mean_metrics(weights: tf.Tensor, **values: tf.Tensor) -> dict[str, tuple[tf.Tensor, tf.Operation]]:
    """Return the weighted mean of each of `values`, floats [batch], as a v1 metric of its name."""
    return {name: _v1.metrics.mean(value, weights=weights) for name, value in values.items()}


def _count_from_zero(labels: tf.Tensor, offset: int, weights: tf.Tensor) -> tf.Tensor:
    """Subtract the offset from the labels; rows of weight 0 get the label 0, since the label of padding would become negative."""
    return tf.where(weights > 0, cast_ids(labels) - offset, 0)


def _compute_losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _compute_soft_losses(labels: tf.Tensor, logits: tf.Tensor, model: str, offset: int) -> tf.Tensor:
    """Return the loss of each row, float32 [batch], from labels that are shares.

    Args:
        labels: floats [batch, offset + classes], each label's share, from label 0 on.
        logits: float32 [batch, classes].
        model: name of the model, for messages.
        offset: label of the first class.

    Raises:
        UsageError: labels have the wrong shape.
    """
    if labels.shape.rank != 2 or labels.shape[1] != logits.shape[1] + offset:
        raise UsageError(
            f"{model}: labels that are shares must be [batch, {logits.shape[1] + offset}], a value for each class, got "
            f"{labels.shape}. Set num_classes (it is {logits.shape[1]})."
        )
    # The numbers below the offset have no class.
    shares = tf.cast(labels[:, offset:], tf.float32)
    return tf.nn.softmax_cross_entropy_with_logits(labels=shares, logits=logits)


def _mark_top_rows(count: int, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return 1 for rows whose label is among the `count` highest logits, else 0: float32 [batch].

    The results equal those of tf.math.in_top_k, which XLA lacks: a tie counts as a hit, and a label whose logit is not finite as a
    miss.
    """
    label_logits = tf.gather(logits, labels, axis=1, batch_dims=1)[:, None]
    num_higher = tf.reduce_sum(tf.cast(logits > label_logits, tf.int32), axis=1)
    return tf.cast((num_higher < count) & tf.math.is_finite(label_logits[:, 0]), tf.float32)

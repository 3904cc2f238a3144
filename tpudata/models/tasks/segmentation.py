"""Losses, exact metrics and predictions of a model that gives each pixel a class, from its logits."""

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.tasks.classification import make_mean_metrics
from tpudata.models.tasks.ids import cast_ids
from tpudata.models.training.train_op import TrainingParams, make_train_op
from tpudata.models.training.weights import compute_weighted_mean, get_weights_or_ones
from tpudata.tensor_types import Tensors

_v1 = tf.compat.v1


def make_segmentation_spec(
    features: Tensors,
    labels: tf.Tensor | None,
    mode: str,
    logits: tf.Tensor,
    params: TrainingParams,
    *,
    ignored_label: int,
) -> TPUEstimatorSpec:
    """Return the spec of a segmentation.

    Args:
        features: a dict with "weights" (floats [batch], 0 for rows that do not count); with other features, all rows count.
        labels: integers [batch, height, width] or [batch, height, width, 1], the class of each pixel. None in PREDICT.
        mode: a value of ModeKeys.
        logits: float32 [batch, height, width, classes].
        params: params of the model.
        ignored_label: label of pixels that do not count.

    Raises:
        UsageError: labels are missing or have the wrong shape or dtype.
    """
    classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        return TPUEstimatorSpec(mode, predictions={"classes": classes})
    labels = _prepare_maps(labels, mode, logits, params.model)
    pixel_weights = tf.cast(tf.not_equal(labels, ignored_label), tf.float32)
    # `labels[:, 0, 0]` is passed only for its shape, [batch]: missing weights count as 1.
    pixel_weights *= get_weights_or_ones(features, labels[:, 0, 0])[:, None, None]
    # The logits have no class `ignored_label`, and any class serves for a pixel of weight 0.
    labels = tf.where(pixel_weights > 0, labels, 0)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = compute_weighted_mean(losses, pixel_weights, training=mode == ModeKeys.TRAIN)
    if mode == ModeKeys.TRAIN:
        return TPUEstimatorSpec(mode, loss=loss, train_op=make_train_op(loss, params))
    row_weights = tf.reduce_sum(pixel_weights, axis=[1, 2])
    is_correct = tf.cast(tf.equal(classes, labels), tf.float32)
    row_values = {
        "weights": row_weights,
        "confusion": _count_confusion(labels, classes, pixel_weights, logits.shape[-1]),
        "accuracy": _average_rows(is_correct, pixel_weights, row_weights),
        "cross_entropy": _average_rows(losses, pixel_weights, row_weights),
    }
    return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(_make_metrics, row_values))


def _make_metrics(
    weights: tf.Tensor, confusion: tf.Tensor, **values: tf.Tensor
) -> dict[str, tuple[tf.Tensor, tf.Operation]]:
    """Return the v1 metrics of an evaluation.

    Args:
        weights: float32 [batch], sum of the weights of each row's pixels.
        confusion: float32 [batch, labels, classes], from `_count_confusion`.
        **values: float32 [batch], each row's mean for the metrics that are means over pixels.
    """
    # Each pair of a label and a predicted class counts as often as pixels have it. TensorFlow adds these counts up in float64.
    num_classes = confusion.shape[-1]
    pairs = tf.reshape(tf.range(num_classes * num_classes), [num_classes, num_classes])
    pair_labels, pair_classes = pairs // num_classes, pairs % num_classes
    pixels_by_pair = tf.reduce_sum(tf.cast(confusion, tf.float64), axis=0)
    mean_iou = _v1.metrics.mean_iou(pair_labels, pair_classes, num_classes, weights=pixels_by_pair)
    return {**make_mean_metrics(weights, **values), "mean_iou": mean_iou}


def _prepare_maps(labels: tf.Tensor | None, mode: str, logits: tf.Tensor, model: str) -> tf.Tensor:
    """Return the label maps, int32 [batch, height, width].

    Args:
        labels: integers [batch, height, width] or [batch, height, width, 1]; or None.
        mode: a value of ModeKeys, for messages.
        logits: float32 [batch, height, width, classes].
        model: name of the model, for messages.

    Raises:
        UsageError: labels are missing or have the wrong shape or dtype.
    """
    size = logits.shape[1:3].as_list()
    if labels is None:
        raise UsageError(
            f"{model}: mode {mode!r} needs label maps as labels (got features only). Return both from input_fn."
        )
    if not labels.dtype.is_integer or labels.shape[1:].as_list() not in (size, [*size, 1]):
        raise UsageError(
            f"{model}: labels must be integers [batch, {size[0]}, {size[1]}] or [batch, {size[0]}, {size[1]}, 1], the class of each"
            f" pixel, got {labels.dtype.name} {labels.shape}."
        )
    return tf.reshape(cast_ids(labels), [-1, *size])


def _average_rows(values: tf.Tensor, pixel_weights: tf.Tensor, row_weights: tf.Tensor) -> tf.Tensor:
    """Return for each row the mean over its pixels that count, float32 [batch]; 0 for a row in which no pixel counts."""
    return tf.math.divide_no_nan(tf.reduce_sum(values * pixel_weights, axis=[1, 2]), row_weights)


def _count_confusion(labels: tf.Tensor, classes: tf.Tensor, pixel_weights: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Add up the weights of each row's pixels for each pair of a label and a predicted class: float32 [batch, labels, classes].

    Args:
        labels: int32 [batch, height, width], 0 to num_classes - 1.
        classes: int32 [batch, height, width], the predicted classes.
        pixel_weights: float32 [batch, height, width], 0 for pixels that do not count.
        num_classes: number of classes.
    """
    num_pixels = labels.shape[1] * labels.shape[2]
    one_hot_labels = tf.one_hot(labels, num_classes) * pixel_weights[..., None]
    flat_labels = tf.reshape(one_hot_labels, [-1, num_pixels, num_classes])
    flat_classes = tf.reshape(tf.one_hot(classes, num_classes), [-1, num_pixels, num_classes])
    return tf.matmul(flat_labels, flat_classes, transpose_a=True)

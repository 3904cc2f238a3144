"""Batches of one size for predicting, and which of their rows are real."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.feeding.signature import row_weights


def with_row_masks(dataset: Any, batch_size: int | None, axes: Sequence[int] | None = None) -> Any:
    """Drop the labels, pad short batches to `batch_size` and tell which rows are real.

    Args:
        dataset: of features or (features, labels).
        batch_size: the static size; None leaves batches as they are.
        axes: of each tensor of an element, in the order of `tf.nest.flatten`, the axis along which its rows lie; None: 0.

    Returns:
        A dataset of (features, bool [batch]); a row is real where it is no padding made here and where
        features["weights"], if there, is not 0.

    Raises:
        ValueError: no feature has rows.
    """

    def prepare(*parts: Any) -> tuple[Any, Any]:
        features = parts[0]
        tensors = tf.nest.flatten(features)
        # The axes of the labels come after those of the features.
        located = list(zip(tensors, axes or [0] * len(tensors), strict=False))
        batched = [(tensor, axis) for tensor, axis in located if tensor.shape.rank]
        if not batched:
            raise ValueError("predict: input_fn gave features without a batch dimension: batch the dataset.")
        rows = size = tf.shape(batched[0][0])[batched[0][1]]
        if batch_size is not None and any(tensor.shape[axis] is None for tensor, axis in batched):
            message = f"predict: input_fn gave a batch of more rows than predict_batch_size={batch_size}"
            with tf.control_dependencies([tf.debugging.assert_less_equal(rows, batch_size, message)]):
                missing = batch_size - rows
            size = tf.constant(batch_size)
            padded = [_pad(tensor, missing, batch_size, axis) for tensor, axis in located]
            features = tf.nest.pack_sequence_as(features, padded)
        mask = tf.range(size) < rows
        weights = row_weights(features)
        if weights is not None:
            mask &= weights > 0
        return features, mask

    return dataset.map(prepare).prefetch(1)


def _pad(tensor: Any, missing: Any, batch_size: int, axis: int) -> Any:
    if not tensor.shape.rank:
        return tensor
    shape = tf.tensor_scatter_nd_update(tf.shape(tensor), [[axis]], [missing])
    # tf.zeros also makes empty strings; tf.pad takes no strings.
    padded = tf.concat([tensor, tf.zeros(shape, tensor.dtype)], axis)
    static = tensor.shape.as_list()
    static[axis] = batch_size
    return tf.ensure_shape(padded, static)

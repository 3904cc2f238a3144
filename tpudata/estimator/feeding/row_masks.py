"""Batches of one size for prediction, with masks of their real rows."""

from collections.abc import Sequence

import tensorflow as tf

from tpudata.estimator.feeding.signature import row_weights
from tpudata.estimator.feeding.sparse_parts import list_roles
from tpudata.tensor_types import Tensors


def add_row_masks(
    dataset: tf.data.Dataset, batch_size: int | None, axes: Sequence[int] | None = None
) -> tf.data.Dataset:
    """Drop the labels, pad short batches to `batch_size` and add a mask of the real rows.

    Args:
        dataset: dataset of features or (features, labels).
        batch_size: the static size; None to leave batches unchanged.
        axes: axis of the rows for each tensor of an element, in the order of `tf.nest.flatten`; None for 0.

    Returns:
        A dataset of (features, bool [batch]). The mask is false for added rows, and for rows whose features["weights"] are 0.

    Raises:
        ValueError: no feature has a batch dimension.
    """

    def prepare(*parts: Tensors) -> tuple[Tensors, tf.Tensor]:
        features = parts[0]
        tensors = tf.nest.flatten(features)
        # The axes of the labels come after those of the features.
        with_axes = list(zip(tensors, list_roles(features), axes or [0] * len(tensors), strict=False))
        batched = [(tensor, axis) for tensor, role, axis in with_axes if role == "dense" and tensor.shape.rank]
        shapes = [tensor for tensor, role, _ in with_axes if role == "dense_shape"]
        if not batched and not shapes:
            raise ValueError("predict: the features of input_fn have no batch dimension. Batch the dataset.")
        first = batched[0] if batched else None
        rows = size = tf.cast(shapes[0][0], tf.int32) if first is None else tf.shape(first[0])[first[1]]
        if batch_size is not None and (shapes or any(tensor.shape[axis] is None for tensor, axis in batched)):
            message = f"predict: a batch of input_fn has more rows than predict_batch_size={batch_size}"
            with tf.control_dependencies([tf.debugging.assert_less_equal(rows, batch_size, message)]):
                num_missing = batch_size - rows
            size = tf.constant(batch_size)
            padded = [_pad(tensor, role, num_missing, batch_size, axis) for tensor, role, axis in with_axes]
            features = tf.nest.pack_sequence_as(features, padded)
        mask = tf.range(size) < rows
        weights = row_weights(features)
        if weights is not None:
            mask &= weights > 0
        return features, mask

    return dataset.map(prepare).prefetch(1)


def _pad(tensor: tf.Tensor, role: str, num_missing: tf.Tensor, batch_size: int, axis: int) -> tf.Tensor:
    if role == "dense_shape":  # Added rows of a sparse tensor are empty.
        return tf.concat([tensor[:1] + tf.cast(num_missing, tensor.dtype), tensor[1:]], 0)
    if role != "dense" or not tensor.shape.rank:
        return tensor
    shape = tf.tensor_scatter_nd_update(tf.shape(tensor), [[axis]], [num_missing])
    # Not tf.pad, which does not support strings; tf.zeros makes empty ones.
    padded = tf.concat([tensor, tf.zeros(shape, tensor.dtype)], axis)
    static = tensor.shape.as_list()
    static[axis] = batch_size
    return tf.ensure_shape(padded, static)

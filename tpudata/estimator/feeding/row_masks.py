"""Batches of one size for prediction, with masks of their real rows."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tpudata.estimator.feeding.signature import find_row_weights
from tpudata.estimator.feeding.sparse_parts import list_roles
from tpudata.tensor_types import Tensors


class _Leaf(NamedTuple):
    """A tensor of the features.

    Attributes:
        tensor: the tensor.
        role: "dense", or for a part of a sparse tensor "indices", "values" or "dense_shape".
        axis: axis of the rows.
    """

    tensor: tf.Tensor
    role: str
    axis: int


def add_row_masks(
    dataset: tf.data.Dataset, batch_size: int | None, axes: Sequence[int] | None = None
) -> tf.data.Dataset:
    """Drop the labels, pad short batches to `batch_size` and add a mask of the real rows.

    Args:
        dataset: dataset of features or (features, labels).
        batch_size: the static size; None to leave batches unchanged.
        axes: axis of the rows for each tensor of an element, in the order of `tf.nest.flatten`; None for axis 0.

    Returns:
        A dataset of (features, mask), the mask bool [batch]. It is false for added rows, and for rows whose features["weights"] are
        not positive.

    Raises:
        ValueError: no feature has a batch dimension.
    """

    def prepare(features: Tensors, *_labels: Tensors) -> tuple[Tensors, tf.Tensor]:
        """Return the padded features of a batch, and its mask."""
        tensors = tf.nest.flatten(features)
        # `axes` may be longer: it ends with the labels' axes, which `map` skips.
        leaves = list(map(_Leaf, tensors, list_roles(features), axes or [0] * len(tensors)))
        dense_leaves = [leaf for leaf in leaves if leaf.role == "dense" and leaf.tensor.shape.rank]
        sparse_shapes = [leaf.tensor for leaf in leaves if leaf.role == "dense_shape"]
        if dense_leaves:
            num_rows = tf.shape(dense_leaves[0].tensor)[dense_leaves[0].axis]
        elif sparse_shapes:
            num_rows = tf.cast(sparse_shapes[0][0], tf.int32)
        else:
            raise ValueError("predict: the features of input_fn have no batch dimension. Batch the dataset.")
        size = num_rows  # Number of rows of the batch that is returned.
        # Only sparse batches, and dense ones whose number of rows is not static, can be short.
        if batch_size is not None and (
            sparse_shapes or any(leaf.tensor.shape[leaf.axis] is None for leaf in dense_leaves)
        ):
            message = f"predict: a batch of input_fn has more rows than predict_batch_size={batch_size}"
            with tf.control_dependencies([tf.debugging.assert_less_equal(num_rows, batch_size, message)]):
                num_missing = batch_size - num_rows
            size = tf.constant(batch_size)
            padded = [_pad(leaf, num_missing, batch_size) for leaf in leaves]
            features = tf.nest.pack_sequence_as(features, padded)
        mask = tf.range(size) < num_rows
        weights = find_row_weights(features)
        if weights is not None:
            mask &= weights > 0
        return features, mask

    return dataset.map(prepare).prefetch(1)


def _pad(leaf: _Leaf, num_missing: tf.Tensor, batch_size: int) -> tf.Tensor:
    """Return the tensor of a leaf with `num_missing` more rows of zeros, `batch_size` in all."""
    tensor, role, axis = leaf
    if role == "dense_shape":  # Added rows of a sparse tensor are empty.
        return tf.concat([tensor[:1] + tf.cast(num_missing, tensor.dtype), tensor[1:]], 0)
    if role != "dense" or not tensor.shape.rank:  # Indices or values of a sparse tensor, or a scalar.
        return tensor
    missing_shape = tf.tensor_scatter_nd_update(tf.shape(tensor), [[axis]], [num_missing])
    # tf.pad does not support strings; tf.zeros makes empty ones.
    padded = tf.concat([tensor, tf.zeros(missing_shape, tensor.dtype)], axis)
    static_shape = tensor.shape.as_list()
    static_shape[axis] = batch_size
    return tf.ensure_shape(padded, static_shape)

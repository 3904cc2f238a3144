"""Records parsed by a user's function, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset_ops import cast_to_int32, ensure, without_autograph
from tpudata.input.elements import map_named
from tpudata.tensor_types import Element, Tensors


def parse_rows(parse: Callable[..., Element], serialized: tf.Tensor) -> Element:
    """Return the result of `parse` for some records.

    Args:
        parse: returns features, or (features, labels), a row for each record.
        serialized: string [n], the records as stored.

    Returns:
        The same structure of tensors [n, ...]; int64 as int32.

    Raises:
        FeatureError: a tensor is not dense, has no rows, or its rows have no static shape; the message names it.
        UsageError: parse returned None.
    """
    # Only the user's function is converted by AutoGraph: it may branch on tensors.
    return without_autograph(_convert_result)(parse(serialized), tf.shape(serialized)[0])


def _convert_result(parsed: Element, num_records: tf.Tensor) -> Element:
    """Return the result of `parse` as tensors, with int64 as int32, and check that each has a row for each record.

    Args:
        parsed: the result.
        num_records: int32 scalar, number of records.

    Raises:
        UsageError: the result is None.
        FeatureError: a tensor of it is not dense, has no rows, or its rows have no static shape.

    A wrong number of rows fails at run time with `tf.errors.InvalidArgumentError`.
    """
    if parsed is None:
        raise UsageError("parse returned None. End it with `return features, labels`, or `return features`.")

    def convert(name: str, leaf: Tensors) -> tf.Tensor:
        """Return one tensor of the result, called `name` in messages, once it is checked."""
        tensor = leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)
        if not isinstance(tensor, tf.Tensor) or tensor.shape.rank in (None, 0) or None in tensor.shape[1:].as_list():
            type_name = "tensor" if isinstance(tensor, tf.Tensor) else type(tensor).__name__
            raise FeatureError(
                f"{name} is a {type_name} of shape {tensor.shape}: parse gets a batch of records, and returns tensors"
                " [records, ...] whose other dimensions are static. Fix them with tf.ensure_shape or tf.reshape."
            )
        message = f"{name} does not have a row for each record."
        return cast_to_int32(name, ensure(tensor, tf.equal(tf.shape(tensor)[0], num_records), message))

    return map_named(convert, parsed, "the result of parse")

"""Records parsed by a user's function, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset_ops import cast_to_int32, ensure, without_autograph
from tpudata.input.elements import map_named


def parse_rows(parse: Callable[[tf.Tensor], Any], serialized: tf.Tensor) -> Any:
    """Return the result of `parse` for some records.

    Args:
        parse: returns features, or (features, labels), a row for each record.
        serialized: string [n], the records as they are stored.

    Returns:
        The same structure of tensors [n, ...]; int64 as int32.

    Raises:
        FeatureError: a tensor has no rows, or its rows have no static shape; the message names it.
        UsageError: parse returned None.
    """
    # Only the user's function is converted by AutoGraph: it may branch on tensors.
    return without_autograph(_check_result)(parse(serialized), tf.shape(serialized)[0])


def _check_result(parsed: Any, count: tf.Tensor) -> Any:
    """Return the result of `parse`, with int64 as int32, in which each tensor must have a row of static shape for each record.

    Raises:
        UsageError: the result is None.
        FeatureError: a part of it is not such a tensor. A wrong number of rows shows in the graph.
    """
    if parsed is None:
        raise UsageError("parse returned None. End it with `return features, labels`, or `return features`.")

    def check_rows(name: str, leaf: Any) -> tf.Tensor:
        tensor = leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)
        if not isinstance(tensor, tf.Tensor) or tensor.shape.rank in (None, 0) or None in tensor.shape[1:].as_list():
            kind = "tensor" if isinstance(tensor, tf.Tensor) else type(tensor).__name__
            raise FeatureError(
                f"{name} is a {kind} of shape {tensor.shape}: parse gets a batch of records, and returns tensors"
                " [records, ...] whose other dimensions are static. Fix them with tf.ensure_shape or tf.reshape."
            )
        message = f"{name} does not have a row for each record."
        return cast_to_int32(name, ensure(tensor, tf.equal(tf.shape(tensor)[0], count), message))

    return map_named(check_rows, parsed, "the result of parse")

"""Records of one length, as numpy describes them, taken apart in a TensorFlow graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.input.dataset.fields import Field
from tpudata.input.decode.parse import to_int32


def parse_fixed(records: tf.Tensor, dtype: np.dtype[Any], fields: Sequence[Field]) -> dict[str, tf.Tensor]:
    """Take records apart.

    Args:
        records: string [n], each as long as `dtype` says.
        dtype: what a record is, a structured dtype.
        fields: the parts that are read.

    Returns:
        By feature name, a tensor [n, *field.shape]; int64 as int32.
    """
    return {field.feature.name: _part(records, dtype, field) for field in fields}


def _part(records: tf.Tensor, dtype: np.dtype[Any], field: Field) -> tf.Tensor:
    assert dtype.fields is not None
    part, offset = dtype.fields[field.feature.name][:2]
    stored = tf.strings.substr(records, offset, part.itemsize)
    little_endian = part.base == part.base.newbyteorder("<")
    values = tf.io.decode_raw(stored, _stored_dtype(part.base), little_endian=little_endian)
    values = tf.reshape(values, (-1, *field.shape))
    return to_int32(field.feature.name, tf.cast(values, tf.as_dtype(field.feature.dtype)))


def _stored_dtype(base: np.dtype[Any]) -> tf.DType:
    return tf.as_dtype(base.newbyteorder("="))

"""Records of one length, as numpy describes them, decoded in a TensorFlow graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.format import Feature
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import cast_to_int32


def parse_fixed(records: tf.Tensor, dtype: np.dtype[Any], fields: Sequence[Field]) -> dict[str, tf.Tensor]:
    """Decode records.

    Args:
        records: string [n], each of the size of `dtype`.
        dtype: structured dtype of a record.
        fields: the parts that are read.

    Returns:
        By feature name, a tensor [n, *field.shape]; int64 as int32.
    """
    columns = {field.feature.name: _take_part(records, dtype, field.feature, field.shape) for field in fields}
    return {name: cast_to_int32(name, column) for name, column in columns.items()}


def parse_all(records: tf.Tensor, dtype: np.dtype[Any], features: Sequence[Feature]) -> dict[str, tf.Tensor]:
    """Decode all features of records, [n, *shape], as they are stored; see `parse_fixed`."""
    return {feature.name: _take_part(records, dtype, feature, feature.shape) for feature in features}


def _take_part(records: tf.Tensor, dtype: np.dtype[Any], feature: Feature, shape: Sequence[int | None]) -> tf.Tensor:
    assert dtype.fields is not None
    part_dtype, offset = dtype.fields[feature.name][:2]
    stored = tf.strings.substr(records, offset, part_dtype.itemsize)
    little_endian = part_dtype.base == part_dtype.base.newbyteorder("<")
    values = tf.io.decode_raw(stored, _stored_dtype(part_dtype.base), little_endian=little_endian)
    return tf.cast(tf.reshape(values, (-1, *shape)), tf.as_dtype(feature.dtype))


def _stored_dtype(base: np.dtype[Any]) -> tf.DType:
    return tf.as_dtype(base.newbyteorder("="))

"""Class numbers and token ids of any integer type, as the bundled models compute with them: int32."""

from __future__ import annotations

import tensorflow as tf


def cast_ids(ids: tf.Tensor) -> tf.Tensor:
    """Return integers as int32; a value beyond int32 becomes the smallest or the largest int32, which is outside of all classes.

    A plain cast would wrap it, perhaps to a valid class.

    Args:
        ids: integers of any shape and type.
    """
    if ids.dtype.size < 4 or ids.dtype == tf.int32:
        return tf.cast(ids, tf.int32)
    # `tf.saturate_cast` has no kernel for unsigned integers. From 2**63 on, a uint64 becomes negative, and so no class.
    return tf.cast(tf.clip_by_value(tf.cast(ids, tf.int64), tf.int32.min, tf.int32.max), tf.int32)

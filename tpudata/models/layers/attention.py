"""Attention of each token to those before it in its own document, and rotary positions."""

import tensorflow as tf


def visible(segment_ids: tf.Tensor) -> tf.Tensor:
    """Return whether a token sees another: one of the same segment that does not come after it. Every token sees itself.

    Args:
        segment_ids: int32 [batch, length].

    Returns:
        bool [batch, 1, length (who sees), length (who is seen)].
    """
    length = segment_ids.shape[1]
    is_same = tf.equal(segment_ids[:, :, None], segment_ids[:, None, :])
    is_before = tf.range(length)[None, :] <= tf.range(length)[:, None]
    return (is_same & is_before)[:, None]


def attention(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return for each query the mean of the values, weighted by the softmax of query times key.

    Args:
        queries: floats [batch, heads, length, size].
        keys: of the same shape and dtype.
        values: of the same shape and dtype.
        mask: bool [batch, 1, length, length], as `visible` gives it.

    Returns:
        Floats of the queries' shape and dtype; the softmax is computed in float32.
    """
    scores = tf.matmul(queries, keys, transpose_b=True)
    scores = tf.cast(scores, tf.float32) * (queries.shape[-1] ** -0.5)
    shares = tf.nn.softmax(tf.where(mask, scores, scores.dtype.min))
    return tf.matmul(tf.cast(shares, values.dtype), values)


def rotated(inputs: tf.Tensor, positions: tf.Tensor, base: float = 10_000.0) -> tf.Tensor:
    """Turn pairs of numbers by angles that grow with the position, so that products depend on distances (Su et al., 2021).

    The pairs are (i, i + size / 2), and the angle of pair i is position / base ** (2 i / size).

    Args:
        inputs: floats [batch, heads, length, size], size even.
        positions: int32 [batch, length].
        base: as above.

    Returns:
        Floats of the inputs' shape and dtype.
    """
    half = inputs.shape[-1] // 2
    turns = tf.pow(base, -tf.range(half, dtype=tf.float32) / half)
    angles = tf.cast(positions, tf.float32)[:, None, :, None] * turns
    sine, cosine = tf.sin(angles), tf.cos(angles)
    first, second = tf.split(tf.cast(inputs, tf.float32), 2, axis=-1)
    turned = tf.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return tf.cast(turned, inputs.dtype)

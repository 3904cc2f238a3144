"""Causal attention within documents, and rotary positions."""

import tensorflow as tf


def make_causal_mask(segment_ids: tf.Tensor) -> tf.Tensor:
    """Return the attention mask: a token sees itself and the tokens before it in its segment.

    Args:
        segment_ids: int32 [batch, length], the segment of each token.

    Returns:
        bool [batch, 1, length of queries, length of keys].
    """
    length = segment_ids.shape[1]
    is_same_segment = tf.equal(segment_ids[:, :, None], segment_ids[:, None, :])
    is_not_later = tf.range(length)[None, :] <= tf.range(length)[:, None]
    return (is_same_segment & is_not_later)[:, None]


def attention(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return for each query the mean of the values, weighted by the softmax of query times key divided by sqrt(size).

    Args:
        queries: floats [batch, heads, length, size].
        keys: floats of the same shape and dtype.
        values: floats of the same shape and dtype.
        mask: bool [batch, 1, length, length], from `make_causal_mask`.

    Returns:
        Floats of the queries' shape and dtype; the softmax is computed in float32.
    """
    scores = tf.matmul(queries, keys, transpose_b=True)
    scores = tf.cast(scores, tf.float32) * (queries.shape[-1] ** -0.5)
    weights = tf.nn.softmax(tf.where(mask, scores, scores.dtype.min))
    return tf.matmul(tf.cast(weights, values.dtype), values)


def rotate(inputs: tf.Tensor, positions: tf.Tensor, base: float = 10_000.0) -> tf.Tensor:
    """Rotate pairs of numbers by angles that grow with the position, so that query times key depends on the tokens' distance.

    These are the rotary positions of Su et al. (2021). The pairs are (i, i + size / 2), and the angle of pair i is
    position / base ** (2 i / size).

    Args:
        inputs: floats [batch, heads, length, size], with an even size.
        positions: int32 [batch, length], the position of each token.
        base: base of the angles.

    Returns:
        Floats of the inputs' shape and dtype.
    """
    half = inputs.shape[-1] // 2
    angles_per_position = tf.pow(base, -tf.range(half, dtype=tf.float32) / half)
    angles = tf.cast(positions, tf.float32)[:, None, :, None] * angles_per_position
    sine, cosine = tf.sin(angles), tf.cos(angles)
    first, second = tf.split(tf.cast(inputs, tf.float32), 2, axis=-1)
    rotated = tf.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return tf.cast(rotated, inputs.dtype)

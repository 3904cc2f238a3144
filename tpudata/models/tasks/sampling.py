"""Stateless sampling of tokens: the same seed gives the same tokens in any batch, on any device."""

import numpy as np
import tensorflow as tf

# Those of a float32.
_FRACTION_BITS = 23


def row_seeds(input_ids: tf.Tensor, lengths: tf.Tensor, row_offsets: tf.Tensor | None = None) -> tf.Tensor:
    """Return a seed for each row, from its prompt and from `row_offsets`.

    The draws of a row depend neither on its place in the batch nor on the number of replicas.

    Args:
        input_ids: int32 [batch, length], the prompts.
        lengths: int32 [batch], number of ids of each prompt.
        row_offsets: int32 [batch], a number for each continuation of one prompt; None for 0.

    Returns:
        int32 [batch].
    """
    length = input_ids.shape[1]
    # Multiply and add, modulo 2**32.
    powers = np.cumprod(np.full(length, 1_000_003, np.uint32), dtype=np.uint32).view(np.int32)
    counts = tf.range(length) < lengths[:, None]
    seeds = tf.reduce_sum(tf.where(counts, (input_ids + 1) * powers, 0), axis=1)
    return seeds if row_offsets is None else seeds + 7919 * tf.cast(row_offsets, tf.int32)


def uniform_draws(seed: int, rows: tf.Tensor, count: int) -> tf.Tensor:
    """Return uniform draws in [0, 1), float32 [batch, count].

    Args:
        seed: seed of the model.
        rows: int32 [batch], a seed for each row.
        count: number of draws for each row.
    """

    def draw_row(row: tf.Tensor) -> tf.Tensor:
        pair = tf.stack([tf.constant(seed), row])
        # Kernels of CPUs and XLA have the same words of Philox, but make other fractions of them.
        words = tf.random.stateless_uniform([count], pair, None, None, tf.int32, alg="philox")
        return tf.cast(tf.bitwise.bitwise_and(words, 2**_FRACTION_BITS - 1), tf.float32) * 2.0**-_FRACTION_BITS

    return tf.map_fn(draw_row, rows, fn_output_signature=tf.TensorSpec([count], tf.float32))


def draw(logits: tf.Tensor, uniform: tf.Tensor, temperature: float) -> tf.Tensor:
    """Return a token for each row, drawn by its probability: the one whose part of the cumulative sum contains `uniform`.

    Args:
        logits: float32 [batch, tokens].
        uniform: float32 [batch], draws in [0, 1).
        temperature: number that divides the logits; 0 takes the most probable token.

    Returns:
        int32 [batch].
    """
    if temperature == 0:
        return tf.argmax(logits, axis=-1, output_type=tf.int32)
    ends = tf.cumsum(tf.nn.softmax(logits / temperature), axis=-1)
    # The last end may not be exactly 1.
    is_passed = ends <= uniform[:, None] * ends[:, -1:]
    return tf.minimum(tf.reduce_sum(tf.cast(is_passed, tf.int32), axis=-1), logits.shape[-1] - 1)

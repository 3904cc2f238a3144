"""Stateless sampling of tokens: the same seed gives the same tokens in any batch, on any device."""

import numpy as np
import tensorflow as tf

# Bits of a float32's fraction. With all 32 bits of a word, rounding could make a draw 1.
_FRACTION_BITS = 23
# Distance between the seeds of two continuations of one prompt.
_CONTINUATION_STRIDE = 7919


def make_row_seeds(input_ids: tf.Tensor, lengths: tf.Tensor, prompt_seeds: tf.Tensor | None = None) -> tf.Tensor:
    """Return a seed for each row, from its prompt and its prompt seed.

    The draws of a row depend neither on its position in the batch nor on the number of replicas.

    Args:
        input_ids: int32 [batch, length], the prompts.
        lengths: int32 [batch], number of ids of each prompt.
        prompt_seeds: int32 [batch], different numbers for several continuations of one prompt; None for 0.

    Returns:
        int32 [batch].
    """
    length = input_ids.shape[1]
    # A polynomial hash of the ids modulo 2**32, with the powers of a prime. 1 is added to each id, so that 0 also changes the hash.
    powers = np.cumprod(np.full(length, 1_000_003, np.uint32), dtype=np.uint32).view(np.int32)
    is_prompt = tf.range(length) < lengths[:, None]
    seeds = tf.reduce_sum(tf.where(is_prompt, (input_ids + 1) * powers, 0), axis=1)
    return seeds if prompt_seeds is None else seeds + _CONTINUATION_STRIDE * tf.cast(prompt_seeds, tf.int32)


def draw_uniform(model_seed: int, row_seeds: tf.Tensor, count: int) -> tf.Tensor:
    """Return uniform draws in [0, 1), float32 [batch, count].

    Args:
        model_seed: seed of the model.
        row_seeds: int32 [batch], a seed for each row.
        count: number of draws for each row.
    """

    def draw_row(row_seed: tf.Tensor) -> tf.Tensor:
        """Return the draws of one row, float32 [count]."""
        seed = tf.stack([tf.constant(model_seed), row_seed])
        # CPUs and XLA draw the same words with Philox, but make different fractions of the words, so only words are drawn:
        # without limits (None), a draw is all 32 bits.
        words = tf.random.stateless_uniform([count], seed, None, None, tf.int32, alg="philox")
        return tf.cast(tf.bitwise.bitwise_and(words, 2**_FRACTION_BITS - 1), tf.float32) * 2.0**-_FRACTION_BITS

    return tf.map_fn(draw_row, row_seeds, fn_output_signature=tf.TensorSpec([count], tf.float32))


def draw(logits: tf.Tensor, uniform: tf.Tensor, temperature: float) -> tf.Tensor:
    """Draw a token for each row by its probability: the first token at which the cumulative probability exceeds `uniform`.

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
    # Scaled by the last end, which may not be exactly 1.
    is_passed = ends <= uniform[:, None] * ends[:, -1:]
    # Rounding may make the product equal to the last end.
    return tf.minimum(tf.reduce_sum(tf.cast(is_passed, tf.int32), axis=-1), logits.shape[-1] - 1)

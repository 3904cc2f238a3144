"""Distributions that draw what TensorFlow's CPU kernels draw, of operations that XLA compiles.

XLA compiles stateless operations for most of these, but they draw other numbers than the CPU kernels with the same key and counter.
A step on several devices then could not be compared with the same step on one. The first four draw equal numbers bit for bit, or
to the last digits of a sine or a logarithm.
"""

import math
from typing import Any

import tensorflow as tf

from tpudata.estimator.graph.draws.words import join, next_words, words_at

# Bits of the fraction of a number of each type.
_FRACTION = {tf.float16: 10, tf.bfloat16: 7, tf.float32: 23, tf.float64: 52}
_TRUNCATED_AT = 2.0
# Counters that the CPU kernel reserves for a draw.
_RESERVED = 64
# Candidates for these draws. A candidate is dropped with probability 0.0455, so that fewer than four of 16 stay once in 10**15.
_CANDIDATES = 16
# The least argument of a logarithm.
_LEAST = 1e-7


def uniform(shape: Any, dtype: Any, key: Any, counter: Any) -> Any:
    """Return values in [0, 1)."""
    if dtype == tf.float64:
        return _fraction64(next_words(shape, key, counter, tf.uint64))
    return tf.cast(_fraction(next_words(shape, key, counter), _FRACTION[dtype]), dtype)


def uniform_integer(shape: Any, low: Any, high: Any, key: Any, counter: Any) -> Any:
    """Return integers in [low, high)."""
    return tf.raw_ops.StatelessRandomUniformIntV2(
        shape=shape, key=key, counter=counter, alg=tf.random.Algorithm.PHILOX.value, minval=low, maxval=high
    )


def normal(shape: Any, dtype: Any, key: Any, counter: Any) -> Any:
    """Return values of the standard normal distribution."""
    size = tf.reduce_prod(tf.cast(shape, tf.int32))
    pairs = (size + 1) // 2
    if dtype == tf.float64:
        words = next_words(tf.stack([pairs, 2]), key, counter, tf.uint64)
        drawn = _box_muller(_fraction64(words[:, 0]), _fraction64(words[:, 1]))
    else:
        words = next_words(tf.stack([pairs, 2]), key, counter)
        drawn = _box_muller(_fraction(words[:, 0]), _fraction(words[:, 1]))
    return tf.cast(tf.reshape(tf.reshape(drawn, [-1])[:size], shape), dtype)


def truncated_normal(shape: Any, dtype: Any, key: Any, counter: Any) -> Any:
    """Return values of the standard normal distribution that are less than 2 from 0: the first such candidates."""
    size = tf.reduce_prod(tf.cast(shape, tf.int32))
    # The draws that a CPU kernel makes from one range of counters, and the candidates that a counter gives.
    in_group = 2 if dtype == tf.float64 else 4
    groups = tf.cast(tf.range((size + in_group - 1) // in_group), tf.uint64)
    counters = tf.cast(tf.range(_CANDIDATES // in_group), tf.uint64)
    reserved = tf.constant(in_group * _RESERVED, tf.uint64)
    words = words_at(groups[:, None] * reserved + counters[None, :], key, counter)
    if dtype == tf.float64:
        candidates = _box_muller(_fraction64(join(*words[:2])), _fraction64(join(*words[2:])))
    else:
        fractions = [_fraction(word) for word in words]
        candidates = tf.concat([_box_muller(*fractions[:2]), _box_muller(*fractions[2:])], -1)
    candidates = tf.reshape(candidates, [-1, _CANDIDATES])
    is_kept = tf.abs(candidates) < _TRUNCATED_AT
    rank = tf.cumsum(tf.cast(is_kept, tf.int32), axis=1, exclusive=True)
    is_drawn = is_kept[:, :, None] & tf.equal(rank[:, :, None], tf.range(in_group))
    drawn = tf.reduce_sum(tf.where(is_drawn, candidates[:, :, None], tf.zeros([], candidates.dtype)), axis=1)
    return tf.cast(tf.reshape(tf.reshape(drawn, [-1])[:size], shape), dtype)


def parameterized_truncated_normal(
    shape: Any, mean: Any, deviation: Any, low: Any, high: Any, key: Any, counter: Any
) -> Any:
    """Return normal values in [low, high], by the inverse of the distribution function; the CPU kernel draws others.

    Args:
        shape: shape of the result; its first dimension is that of the parameters.
        mean: scalar, or a value for each row, like the three that follow.
        deviation: standard deviation of the distribution that is cut.
        low: least value.
        high: upper bound.
        key: key of the generator.
        counter: counter of the generator.
    """
    rows = tf.concat([[-1], tf.ones_like(shape[1:])], 0)
    mean, deviation, low, high = (tf.reshape(item, rows) for item in (mean, deviation, low, high))

    def portion_below(bound: Any) -> Any:
        return 0.5 * tf.math.erfc((mean - bound) / deviation * math.sqrt(0.5))

    least, most = portion_below(low), portion_below(high)
    portion = least + uniform(shape, mean.dtype, key, counter) * (most - least)
    return tf.clip_by_value(mean + deviation * tf.math.ndtri(portion), low, high)


def categorical(logits: Any, samples: Any, dtype: Any, key: Any, counter: Any) -> Any:
    """Return the numbers of classes, drawn by the logits of each row.

    Args:
        logits: shape [rows, classes].
        samples: number of draws for each row.
        dtype: type of the result.
        key: key of the generator.
        counter: counter of the generator.
    """
    logits = tf.cast(logits, tf.float64)
    is_finite = tf.math.is_finite(logits)
    most = tf.reduce_max(tf.where(is_finite, logits, logits.dtype.min), axis=1, keepdims=True)
    portions = tf.cumsum(tf.where(is_finite, tf.exp(logits - most), tf.zeros_like(logits)), axis=1)
    shape = tf.stack([tf.shape(logits)[0], samples])
    drawn = _fraction64(next_words(shape, key, counter, tf.uint64)) * portions[:, -1:]
    return tf.cast(tf.reduce_sum(tf.cast(portions[:, None, :] <= drawn[:, :, None], tf.int32), axis=2), dtype)


def shuffle(value: Any, key: Any, counter: Any) -> Any:
    """Return the rows of a tensor in a random order, by the algorithm of Fisher and Yates."""
    size = tf.shape(value)[0]
    words = tf.cast(next_words(tf.stack([size]), key, counter), tf.int64)

    def swap(row: Any, order: Any) -> tuple[Any, Any]:
        # A gather: TensorFlow takes the bounds of slices for constants, and would compile a program for each draw.
        other = row + tf.cast(tf.gather(words, row) % tf.cast(size - row, tf.int64), tf.int32)
        rows = tf.gather(order, tf.stack([other, row]))
        return row + 1, tf.tensor_scatter_nd_update(order, tf.stack([[row], [other]]), rows)

    _, order = tf.while_loop(lambda row, _: row < size - 1, swap, [tf.constant(0), tf.range(size)])
    # Shape inference does not see through the loop.
    return tf.reshape(tf.gather(value, order), tf.shape(value))


def _fraction(words: Any, bits: int = 23) -> Any:
    """Return float32 values in [0, 1) of the lowest bits of uint32 words."""
    fraction = tf.bitwise.bitwise_and(words, tf.constant(2**bits - 1, tf.uint32))
    return tf.cast(tf.cast(fraction, tf.int32), tf.float32) * 2.0**-bits


def _fraction64(pairs: Any) -> Any:
    """Return float64 values in [0, 1) of pairs of words: the first word has the higher bits."""
    bits = _FRACTION[tf.float64]
    high = tf.bitwise.bitwise_and(pairs, tf.constant(2 ** (bits - 32) - 1, tf.uint64))
    fraction = tf.bitwise.left_shift(high, tf.constant(32, tf.uint64)) + tf.bitwise.right_shift(
        pairs, tf.constant(32, tf.uint64)
    )
    return tf.cast(tf.cast(fraction, tf.int64), tf.float64) * 2.0**-bits


def _box_muller(first: Any, second: Any) -> Any:
    """Return pairs of normal values, in a new last dimension, of two uniform values each."""
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(first, tf.constant(_LEAST, first.dtype))))
    angle = 2.0 * math.pi * second
    return tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], -1)

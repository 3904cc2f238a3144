"""Words of the Philox generator, from which all draws are computed.

Philox is a function from a key (uint64 [1]) and a counter (128 bits, as uint64 [2], the low half first) to four uint32 words. A
generator is thus a key and a first counter. TensorFlow's CPU kernels take the words in this order, so the same words give the same
draws; XLA's kernels use the same words, but other bits of them.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Of Philox 4x32 with 10 rounds, as Salmon et al. define it.
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
# Key of the generator that makes a key and a counter of two seeds.
_KEY_OF_SEEDS = 0x02461E293EC8F720
# Of splitmix64: the golden ratio, and the multipliers and shifts of its finalizer.
_GOLDEN = 0x9E3779B97F4A7C15
_FINALIZER = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def next_words(shape: Any, key: Any, counter: Any, dtype: Any = tf.uint32) -> Any:
    """Return the first words of a generator.

    Args:
        shape: shape of the result, a vector.
        key: key of the generator.
        counter: counter of the generator.
        dtype: uint32, or uint64 for pairs of words, the low one first.
    """
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=tf.random.Algorithm.PHILOX.value, dtype=dtype
    )


def words_at(skipped: Any, key: Any, counter: Any) -> list[Any]:
    """Return four words of a generator for each of several positions.

    Args:
        skipped: number of counters to skip, uint64 of any shape.
        key: key of the generator.
        counter: counter of the generator.
    """
    low = counter[0] + skipped
    carry = tf.cast(low < skipped, tf.uint64)
    words = [half for part in (low, counter[1] + carry) for half in _halves(part)]
    keys = _halves(key[0])
    for _ in range(_ROUNDS):
        words = _round(words, keys)
        keys = [_add(part, step) for part, step in zip(keys, _KEY_STEPS, strict=True)]
    return words


def key_and_counter(seed: Any) -> tuple[Any, Any]:
    """Return the key and the first counter of the generator that belongs to a seed, an integer vector of two numbers.

    XLA's kernel drops the high half of both numbers, so that it differs for those that are negative.
    """
    seeds = tf.cast(tf.cast(seed, tf.int64), tf.uint64)
    words = words_at(tf.zeros([], tf.uint64), tf.constant([_KEY_OF_SEEDS], tf.uint64), seeds)
    return join(*words[:2])[tf.newaxis], tf.stack([tf.zeros([], tf.uint64), join(*words[2:])])


def join(low: Any, high: Any) -> Any:
    """Return uint64 values with these low and high 32 bits."""
    return tf.cast(low, tf.uint64) + tf.bitwise.left_shift(tf.cast(high, tf.uint64), tf.constant(32, tf.uint64))


def mix(value: Any, salt: Any) -> Any:
    """Return a uint64 scalar that looks random, and is another one for each value with the same salt.

    Args:
        value: integer scalar of 64 bits.
        salt: uint64 scalar.
    """
    mixed = tf.cast(value, tf.uint64) * tf.constant(_GOLDEN, tf.uint64) + salt
    for shift, multiplier in _FINALIZER:
        mixed = tf.bitwise.bitwise_xor(mixed, _shift(mixed, shift)) * tf.constant(multiplier, tf.uint64)
    return tf.bitwise.bitwise_xor(mixed, _shift(mixed, 31))


def _round(words: Sequence[Any], keys: Sequence[Any]) -> list[Any]:
    products = [
        tf.cast(word, tf.uint64) * tf.constant(multiplier, tf.uint64)
        for word, multiplier in zip(words[::2], _MULTIPLIERS, strict=True)
    ]
    (low0, high0), (low1, high1) = map(_halves, products)
    xor = tf.bitwise.bitwise_xor
    return [xor(xor(high1, words[1]), keys[0]), low1, xor(xor(high0, words[3]), keys[1]), low0]


def _halves(value: Any) -> list[Any]:
    """Return the low and the high 32 bits of a uint64 tensor."""
    return [tf.cast(tf.bitwise.bitwise_and(value, tf.constant(_LOW, tf.uint64)), tf.uint32), _high(value)]


def _high(value: Any) -> Any:
    return tf.cast(_shift(value, 32), tf.uint32)


def _shift(value: Any, bits: int) -> Any:
    return tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64))


def _add(word: Any, step: int) -> Any:
    """Return the sum modulo 2**32; CPU kernels do not add uint32."""
    return _halves(tf.cast(word, tf.uint64) + tf.constant(step, tf.uint64))[0]

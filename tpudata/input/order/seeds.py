"""Seeds for random draws of a record or a batch: functions of only the run's seed, the position in the run and the use."""

from __future__ import annotations

import tensorflow as tf

# Combined with a record's seed for each use, so that no two uses share their draws. A user's transform gets the seed itself.
# Arbitrary numbers: digits of pi.
CROP_SEED = (0x243F6A88, 0x05A308D3)
AUGMENT_SEED = (0x13198A2E, 0x03707344)
MIX_SEED = (0x24093822, 0x299F31D0)


def derive_record_seeds(seed: int, positions: tf.Tensor) -> tf.Tensor:
    """Return a seed for each record, from only the run's seed and the record's position in the stream.

    Args:
        seed: seed of the run, from 0 to 2**32 - 1.
        positions: positions in the stream, int64 [...].

    Returns:
        int32 [..., 2].
    """

    def to_uint64(number: int) -> tf.Tensor:
        return tf.constant(number, tf.uint64)

    def xor_shift(bits: tf.Tensor, num_bits: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, to_uint64(num_bits)))

    # SplitMix64 (Steele, Lea, Flood 2014) gives neighbouring counters unrelated seeds. The counter is the position plus 1, since
    # 0 stays 0; the run's seed above the lower 32 bits separates the first 2**32 positions of different runs.
    bits = tf.cast(positions, tf.uint64) + to_uint64(1 + (seed << 32))
    bits = bits * to_uint64(0x9E3779B97F4A7C15)
    bits = xor_shift(bits, 30) * to_uint64(0xBF58476D1CE4E5B9)
    bits = xor_shift(bits, 27) * to_uint64(0x94D049BB133111EB)
    return tf.bitcast(xor_shift(bits, 31), tf.int32)


def derive_seed(seed: tf.Tensor | None, use: tuple[int, int]) -> tf.Tensor | None:
    """Return a separate seed, int32 [..., 2], for one use of a record's seed, such as `CROP_SEED`; None without a seed."""
    return None if seed is None else tf.bitwise.bitwise_xor(seed, tf.constant(use, tf.int32))

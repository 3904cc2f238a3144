"""Random integers of an order: functions of a seed and a position, the same with every release of TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

# Uses of draws, so that no two uses of a seed share draws: each seed has a key for each of up to `_MAX_USES` uses.
EPOCH_DRAWS, BLOCK_DRAWS, STEP_DRAWS = 0, 1, 2
_MAX_USES = 4
# Random bits of a draw. The other bits of an int64 can order draws by something else first, such as a lane or a turn.
DRAW_BITS = 40
# TensorFlow's number of the Philox algorithm.
_PHILOX = 1


def draw(shape: Sequence[int] | tf.Tensor, seed: int, epoch_or_block: tf.Tensor, use: int) -> tf.Tensor:
    """Return random integers from 0 to 2**40 - 1, int64.

    Args:
        shape: shape of the result.
        seed: seed, from 0 to 2**32 - 1.
        epoch_or_block: index of the epoch or block, int64.
        use: `EPOCH_DRAWS`, `BLOCK_DRAWS` or `STEP_DRAWS`.
    """
    philox_seed = tf.stack([tf.constant(seed * _MAX_USES + use, tf.int64), tf.cast(epoch_or_block, tf.int64)])
    # Same draws as `tf.random.stateless_uniform` with alg="philox", which makes eight times as many operations.
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=philox_seed)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=tf.uint64
    )
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(64 - DRAW_BITS, tf.uint64)), tf.int64)

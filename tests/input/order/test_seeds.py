"""Seeds depend only on the position, and spread over all bits.

Seeds are private: an input_fn passes them to functions, for the positions of the records that it feeds.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tpudata.input.order.seeds import derive_record_seeds

_MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """As Sebastiano Vigna's splitmix64.c has it, of a state."""
    bits = state * 0x9E3779B97F4A7C15 & _MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _MASK
    return bits ^ bits >> 31


def test_record_seeds_depend_only_on_the_position() -> None:
    seeds = derive_record_seeds(3, tf.range(10_000, dtype=tf.int64)).numpy()
    assert (seeds.shape, seeds.dtype) == ((10_000, 2), np.int32)
    assert len(np.unique(seeds, axis=0)) == 10_000
    np.testing.assert_array_equal(derive_record_seeds(3, tf.constant([77, 5], tf.int64)), seeds[[77, 5]])
    assert not (derive_record_seeds(4, tf.range(10_000, dtype=tf.int64)) == seeds).numpy().all(axis=1).any()
    # Every bit is set about half of the time.
    share = np.unpackbits(seeds.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert (np.abs(share - 0.5) < 0.03).all()


def test_record_seeds_equal_splitmix64() -> None:
    seed, positions = 2**32 - 1, [0, 1, 2**40]
    found = derive_record_seeds(seed, tf.constant(positions, tf.int64)).numpy().view("<u8")[:, 0]
    assert found.tolist() == [splitmix64(position + 1 + (seed << 32) & _MASK) for position in positions]

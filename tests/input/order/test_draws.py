"""Draws depend only on the seed, the number and the use, and are the same with every TensorFlow release.

Draws are private: an order permutes by them, and shows only their ranks.
"""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.input.order.draws import BLOCK_DRAWS, DRAW_BITS, EPOCH_DRAWS, STEP_DRAWS, draw


def test_draws_equal_those_of_the_first_release() -> None:
    # What TensorFlow 2.15 gave. A dataset's order follows from them, and users rely on it across releases.
    assert draw([3], 7, tf.constant(2, tf.int64), BLOCK_DRAWS).numpy().tolist() == [
        933740275850,
        111228843114,
        566716445797,
    ]


def test_different_seeds_numbers_and_uses_share_no_draws() -> None:
    uses = (EPOCH_DRAWS, BLOCK_DRAWS, STEP_DRAWS)
    found = [draw([64], *key).numpy() for key in itertools.product((0, 1, 2**32 - 1), (0, 1, 2**40), uses)]
    assert len(np.unique(np.concatenate(found))) == 64 * len(found)


def test_draws_are_uniform() -> None:
    found = draw([100_000], 1, tf.constant(0, tf.int64), EPOCH_DRAWS).numpy()
    assert found.min() >= 0
    assert found.max() < 2**DRAW_BITS
    counts = np.histogram(found, 64, (0, 2**DRAW_BITS))[0]
    # Chi-squared of 63 degrees of freedom has a standard deviation of 11.
    assert ((counts - 100_000 / 64) ** 2 / (100_000 / 64)).sum() < 63 + 6 * 11.2


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=2),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**62),
    st.sampled_from((EPOCH_DRAWS, BLOCK_DRAWS, STEP_DRAWS)),
)
def test_draws_are_the_high_bits_of_stateless_uniform(shape: list[int], seed: int, number: int, use: int) -> None:
    key = tf.constant([4 * seed + use, number], tf.int64)
    expected = tf.random.stateless_uniform(shape, key, minval=None, maxval=None, dtype=tf.uint64, alg="philox")
    found = draw(shape, seed, tf.constant(number, tf.int64), use)
    np.testing.assert_array_equal(found, expected.numpy() >> np.uint64(64 - DRAW_BITS))

"""Draws of an order, against TensorFlow's own function for them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.input.order.draws import BLOCK_DRAWS, DRAW_BITS, EPOCH_DRAWS, STEP_DRAWS, draw


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=2),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**62),
    st.sampled_from((EPOCH_DRAWS, BLOCK_DRAWS, STEP_DRAWS)),
)
def test_they_are_the_high_bits_of_stateless_uniform(shape: list[int], seed: int, number: int, use: int) -> None:
    key = tf.constant([4 * seed + use, number], tf.int64)
    expected = tf.random.stateless_uniform(shape, key, minval=None, maxval=None, dtype=tf.uint64, alg="philox")
    found = draw(shape, seed, tf.constant(number, tf.int64), use)
    np.testing.assert_array_equal(found, expected.numpy() >> np.uint64(64 - DRAW_BITS))

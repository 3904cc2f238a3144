"""Attention and rotary positions, compared with Keras and complex numbers.

Logits of a model mix them with everything else, so tests call the layers.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tpudata.models.layers.attention import attention, make_causal_mask, rotate

RNG = np.random.default_rng(6)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 3, 3]], np.int32)


def drawn(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def test_tokens_see_only_earlier_tokens_of_their_segment() -> None:
    found = make_causal_mask(tf.constant(SEGMENTS)).numpy()
    assert found.shape == (2, 1, 6, 6)
    for row, segments in enumerate(SEGMENTS):
        for i in range(6):
            for j in range(6):
                assert found[row, 0, i, j] == (j <= i and segments[i] == segments[j])


def test_attention_equals_keras() -> None:
    heads, size = 3, 4
    layer = tf_keras.layers.MultiHeadAttention(heads, size, use_bias=False)
    inputs = drawn(2, 6, 5)
    mask = make_causal_mask(tf.constant(SEGMENTS))
    expected = layer(inputs, inputs, attention_mask=mask[:, 0])
    query, key, value, output = layer.get_weights()
    queries, keys, values = (tf.einsum("bld,dhs->bhls", inputs, kernel) for kernel in (query, key, value))
    found = tf.einsum("bhls,hsd->bld", attention(queries, keys, values, mask), output)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_rotating_pairs_equals_multiplying_complex_numbers() -> None:
    inputs, positions = drawn(2, 3, 5, 8), RNG.integers(0, 50, size=(2, 5)).astype(np.int32)
    turns = np.exp(1j * positions[:, None, :, None] / 10_000 ** (np.arange(4) / 4))
    expected = (inputs[..., :4] + 1j * inputs[..., 4:]) * turns
    found = rotate(tf.constant(inputs), tf.constant(positions)).numpy()
    np.testing.assert_allclose(found[..., :4] + 1j * found[..., 4:], expected, atol=1e-4)


def test_products_of_rotated_vectors_depend_only_on_distances() -> None:
    a, b = drawn(1, 1, 4, 8), drawn(1, 1, 4, 8)

    def products(shift: int) -> Any:
        positions = tf.range(4)[None] + shift
        return tf.matmul(rotate(a, positions), rotate(b, positions), transpose_b=True)

    np.testing.assert_allclose(products(0), products(37), atol=1e-4)
    assert rotate(tf.zeros([1, 1, 2, 4], tf.bfloat16), tf.zeros([1, 2], tf.int32)).dtype == tf.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_to_large_scores_is_finite(dtype: str) -> None:
    values = tf.cast(drawn(1, 1, 6, 4), dtype)
    mask = make_causal_mask(tf.ones([1, 6], tf.int32))
    # Scores beyond what exp takes.
    found = attention(values * 30, values * 30, values, mask)
    assert found.dtype == values.dtype
    assert np.isfinite(tf.cast(found, tf.float32)).all()

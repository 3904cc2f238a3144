"""Draws of the next token: their shares, and what their seeds depend on.

Tests draw thousands of times from given probabilities, which no model has.
"""

import numpy as np
import pytest
import tensorflow as tf

from tpudata.models.tasks.sampling import draw, draw_uniform, make_row_seeds

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_tokens_with_their_probabilities(temperature: float) -> None:
    logits = np.array([1.0, -1.0, 0.5, 2.0, -30.0], np.float32)
    count = 20_000
    uniform = (np.arange(count, dtype=np.float32) + 0.5) / count
    found = draw(tf.tile(logits[None], [count, 1]), tf.constant(uniform), temperature).numpy()
    exact = np.exp(logits / temperature)
    np.testing.assert_allclose(np.bincount(found, minlength=5) / count, exact / exact.sum(), atol=2e-4)


def test_temperature_zero_takes_the_best_and_extreme_draws_are_tokens() -> None:
    logits = tf.constant(RNG.normal(size=(50, 7)).astype(np.float32))
    np.testing.assert_array_equal(draw(logits, tf.zeros([50]), 0.0), logits.numpy().argmax(1))
    top = np.nextafter(np.float32(1), np.float32(0))
    assert draw(logits, tf.fill([50], top), 1.0).numpy().tolist() == [6] * 50
    assert draw(logits, tf.zeros([50]), 1.0).numpy().tolist() == [0] * 50


def test_row_seeds_depend_only_on_the_prompt_and_the_given_seed() -> None:
    prompts = tf.constant([[1, 2, 3], [1, 2, 9], [2, 1, 3], [1, 2, 3], [0, 0, 0]])
    lengths = tf.constant([3, 3, 3, 3, 3])
    seeds = make_row_seeds(prompts, lengths).numpy()
    assert seeds[0] == seeds[3]
    assert len({*seeds}) == 4
    shorter = make_row_seeds(prompts, tf.constant([2, 2, 2, 2, 2])).numpy()
    assert shorter[0] == shorter[1] != shorter[2]
    # A prompt has the same seed in a longer row.
    assert make_row_seeds(prompts[:, :2], tf.constant([2] * 5)).numpy().tolist() == shorter.tolist()
    given = make_row_seeds(prompts, lengths, tf.range(5)).numpy()
    assert given[0] == seeds[0]
    assert given[0] != given[3]


def test_draws_are_uniform_and_follow_their_seeds() -> None:
    seeds = tf.range(200)
    found = draw_uniform(7, seeds, 50).numpy()
    assert found.shape == (200, 50)
    assert 0 <= found.min() < found.max() < 1
    assert found.mean() == pytest.approx(0.5, abs=0.01)
    assert len(np.unique(found[:, 0])) == 200
    np.testing.assert_array_equal(draw_uniform(7, seeds[::-1], 50), found[::-1])


def test_compiled_draws_equal_uncompiled_ones() -> None:
    seeds = tf.constant([0, 1, -1, 2**31 - 1, -(2**31)])
    found = tf.function(lambda: draw_uniform(7, seeds, 5), jit_compile=True)()
    np.testing.assert_array_equal(found, draw_uniform(7, seeds, 5))
    by_tensorflow = [tf.random.stateless_uniform([5], [7, seed]) for seed in seeds.numpy()]
    np.testing.assert_array_equal(found, by_tensorflow)
    assert not np.array_equal(draw_uniform(8, seeds, 50), found)

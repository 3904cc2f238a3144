"""Mixed batches compared with numpy, with the shares read from the labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.input.image.mix import CutMix, MixUp, beta, mix

SEED = tf.constant([6, 7])


def batch(rows: int = 12, dtype: str = "float32") -> tuple[tf.Tensor, tf.Tensor]:
    """Noise, and labels that are all different."""
    images = np.random.default_rng(0).integers(0, 256, (rows, 10, 14, 3))
    return tf.cast(images, dtype), tf.range(rows)


def shares_of(soft: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Each row's share of its label, checked to leave the rest to the row before it."""
    rows = np.arange(len(soft))
    shares = soft[rows, rows]
    want = np.zeros_like(soft)
    want[rows, rows] += shares
    want[rows, rows - 1] += 1 - shares
    np.testing.assert_allclose(soft, want, atol=1e-6)
    return np.asarray(shares)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_mixup_blends_images_by_the_shares_of_the_labels(dtype: str) -> None:
    images, labels = batch(dtype=dtype)
    got, soft = mix(images, labels, 12, MixUp(1.0), SEED)
    assert got.dtype == dtype
    assert soft.dtype == tf.float32
    shares = shares_of(soft.numpy())[:, None, None, None]
    values = tf.cast(images, tf.float32).numpy()
    want = shares * values + (1 - shares) * np.roll(values, 1, axis=0)
    tolerance = {"float32": 1e-3, "bfloat16": 0.51, "uint8": 0.501}[dtype]
    np.testing.assert_allclose(tf.cast(got, tf.float32).numpy(), want, atol=tolerance)
    assert np.ptp(shares) > 0.3  # A share for each row, not one for all.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_cutmix_pastes_a_rectangle_and_shares_labels_by_its_pixels(dtype: str) -> None:
    images, labels = batch(40, dtype=dtype)
    got, soft = mix(images, labels, 40, CutMix(), SEED)
    values, mixed = tf.cast(images, tf.float32).numpy(), tf.cast(got, tf.float32).numpy()
    shares = shares_of(soft.numpy())
    for row in range(40):
        own = (mixed[row] == values[row]).all(axis=-1)
        assert (mixed[row] == np.where(own[..., None], values[row], values[row - 1])).all()
        pasted = ~own
        assert math.isclose(own.mean(), shares[row], abs_tol=1e-6)
        rectangle = np.outer(pasted.any(axis=1), pasted.any(axis=0))
        np.testing.assert_array_equal(pasted, rectangle)
    assert 0.3 < shares.mean() < 0.9
    assert len(np.unique(shares)) > 10


def test_shares_have_a_beta_distribution() -> None:
    rng = np.random.default_rng(0)
    for alpha in (0.2, 1.0, 3.0):
        got = np.sort(beta(4000, alpha, SEED).numpy())
        want = np.sort(rng.beta(alpha, alpha, 4000))
        points = np.union1d(got, want)
        far = np.searchsorted(got, points, "right") - np.searchsorted(want, points, "right")
        assert np.abs(far).max() / 4000 < 1.95 * math.sqrt(2 / 4000)


def test_an_uncut_rectangles_area_is_one_minus_the_share() -> None:
    images = tf.reshape(tf.range(200.0), (200, 1, 1, 1)) + tf.zeros((1, 100, 100, 1))
    _, soft = mix(images, tf.range(200), 200, CutMix(), SEED)
    kept = shares_of(soft.numpy())
    drawn = beta(200, 1.0, tf.random.split(SEED, 2)[0]).numpy()
    assert (kept >= drawn - 1e-6).all()
    # Small rectangles seldom reach the border: their sides are cut to whole pixels, 100 a side.
    small = drawn > 0.99
    assert small.any()
    assert (kept[small] <= drawn[small] + 2 * 0.01 * np.sqrt(1 - drawn[small]) + 0.02).all()


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 50.0])
@pytest.mark.parametrize("make", [MixUp, CutMix])
def test_extreme_alphas_give_finite_values(make: Any, alpha: float) -> None:
    images, labels = batch(64)
    got, soft = mix(images, labels, 64, make(alpha), SEED)
    assert np.isfinite(got.numpy()).all()
    np.testing.assert_allclose(soft.numpy().sum(axis=1), 1, atol=1e-6)
    assert (soft.numpy() >= 0).all()


def test_accepts_shares_as_labels_and_a_row_as_its_own_partner() -> None:
    images, _ = batch(1)
    labels = tf.constant([[0.25, 0.75]])
    for options in (MixUp(), CutMix()):
        got, soft = mix(images, labels, 2, options, SEED)
        np.testing.assert_allclose(got, images, rtol=1e-6)
        np.testing.assert_allclose(soft, labels, atol=1e-6)


def test_the_seed_decides_the_batch() -> None:
    images, labels = batch()
    for options in (MixUp(), CutMix()):
        one, again, other = (
            mix(images, labels, 12, options, tf.constant(seed))[0] for seed in ([1, 2], [1, 2], [1, 3])
        )
        np.testing.assert_array_equal(one, again)
        assert (one.numpy() != other.numpy()).any()


def test_mixed_batches_have_static_shapes_in_a_dataset() -> None:
    dataset = tf.data.Dataset.from_tensors(batch(4, "uint8"))
    for options in (MixUp(), CutMix()):
        mixed = dataset.map(lambda images, labels, options=options: mix(images, labels, 9, options, SEED))
        assert mixed.element_spec == (tf.TensorSpec((4, 10, 14, 3), tf.uint8), tf.TensorSpec((4, 9), tf.float32))


@pytest.mark.parametrize("label", [-1, 12])
def test_rejects_a_label_out_of_range(label: int) -> None:
    images, _ = batch(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="12 classes"):
        mix(images, tf.constant([0, label]), 12, MixUp(), SEED)


@pytest.mark.parametrize("make", [MixUp, CutMix])
@pytest.mark.parametrize("alpha", [0, -1.0, math.inf, math.nan, "1", True])
def test_rejects_options_out_of_range_by_name(make: Any, alpha: Any) -> None:
    with pytest.raises(UsageError, match=f"{make.__name__}.alpha: invalid value"):
        make(alpha)

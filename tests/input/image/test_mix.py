"""Mixed batches compared with numpy, with the shares read from the labels.

The shares' distribution is private: thousands of draws would be thousands of batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tpudata import CutMix, Images, MixUp, UsageError, make_input_fn
from tpudata.format import Feature
from tpudata.input.image.mix import draw_beta, mix_images, mix_labels

SEED = tf.constant([6, 7])
ROWS = 40
PIXELS = np.random.default_rng(0).integers(0, 256, (ROWS, 10, 14, 3), dtype=np.uint8)
Mixed = Callable[..., Any]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    """A function from options of images to a batch of the pictures in order, mixed; their labels are all different."""
    features = [
        Feature("image_raw", "bytes", "uint8", PIXELS.shape[1:], "raw"),
        Feature("label", "int64", "int64", num_classes=ROWS),
    ]
    records = [{"image_raw": pixels.tobytes(), "label": row} for row, pixels in enumerate(PIXELS)]
    path = write_dataset(str(tmp_path_factory.mktemp("noise")), {"train": records}, features, layout="raw", shards=2)

    def feed(**images: Any) -> Any:
        input_fn = make_input_fn(path, "train", training=True, shuffle=False, seed=6, images=Images(**images))
        features, labels = next(input_fn({"batch_size": ROWS}).as_numpy_iterator())
        return features["image"], labels

    return feed


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
def test_mixup_blends_images_by_the_shares_of_the_labels(mixed: Mixed, dtype: str) -> None:
    got, soft = mixed(dtype=dtype, mix=MixUp(1.0))
    assert got.dtype == dtype
    assert soft.dtype == np.float32
    shares = shares_of(soft)[:, None, None, None]
    values = PIXELS.astype(float)
    want = shares * values + (1 - shares) * np.roll(values, 1, axis=0)
    # Of 255, rounded before and after the blend.
    tolerance = {"float32": 1e-3, "bfloat16": 1.01, "uint8": 0.501}[dtype]
    np.testing.assert_allclose(got.astype(float) * (1 if dtype == "uint8" else 255), want, atol=tolerance)
    assert np.ptp(shares) > 0.3  # A share for each row, not one for all.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_cutmix_pastes_a_rectangle_and_shares_labels_by_its_pixels(mixed: Mixed, dtype: str) -> None:
    got, soft = mixed(dtype=dtype, mix=CutMix())
    (values, _), shares = mixed(dtype=dtype), shares_of(soft)
    for row in range(ROWS):
        own = (got[row] == values[row]).all(axis=-1)
        assert (got[row] == np.where(own[..., None], values[row], values[row - 1])).all()
        pasted = ~own
        assert math.isclose(own.mean(), shares[row], abs_tol=1e-6)
        rectangle = np.outer(pasted.any(axis=1), pasted.any(axis=0))
        np.testing.assert_array_equal(pasted, rectangle)
    assert 0.3 < shares.mean() < 0.9
    assert len(np.unique(shares)) > 10


def test_shares_have_a_beta_distribution() -> None:
    rng = np.random.default_rng(0)
    for alpha in (0.2, 1.0, 3.0):
        got = np.sort(draw_beta(4000, alpha, SEED).numpy())
        want = np.sort(rng.beta(alpha, alpha, 4000))
        points = np.union1d(got, want)
        far = np.searchsorted(got, points, "right") - np.searchsorted(want, points, "right")
        assert np.abs(far).max() / 4000 < 1.95 * math.sqrt(2 / 4000)


def test_an_uncut_rectangles_area_is_one_minus_the_share() -> None:
    images = tf.reshape(tf.range(200.0), (200, 1, 1, 1)) + tf.zeros((1, 100, 100, 1))
    _, shares = mix_images((images,), CutMix(), SEED)
    kept = shares_of(mix_labels(tf.range(200), 200, shares).numpy())
    drawn = draw_beta(200, 1.0, tf.random.split(SEED, 2)[0]).numpy()
    assert (kept >= drawn - 1e-6).all()
    # Small rectangles seldom reach the border: their sides are cut to whole pixels, 100 a side.
    small = drawn > 0.99
    assert small.any()
    assert (kept[small] <= drawn[small] + 2 * 0.01 * np.sqrt(1 - drawn[small]) + 0.02).all()


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 50.0])
@pytest.mark.parametrize("make", [MixUp, CutMix])
def test_extreme_alphas_give_finite_values(mixed: Mixed, make: Any, alpha: float) -> None:
    got, soft = mixed(dtype="float32", mix=make(alpha))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(soft.sum(axis=1), 1, atol=1e-6)
    assert (soft >= 0).all()


@pytest.mark.parametrize("options", [MixUp(), CutMix()])
def test_accepts_shares_as_labels_and_a_row_as_its_own_partner(tmp_path: Path, options: Any) -> None:
    features = [Feature("image_raw", "bytes", "uint8", (1, 1, 1), "raw"), Feature("label", "float", "float32", (2,))]
    records = [{"image_raw": b"9", "label": [0.25, 0.75]}]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="raw", shards=1)
    input_fn = make_input_fn(path, "train", training=True, images=Images(mix=options))
    batch, labels = next(input_fn({"batch_size": 1}).as_numpy_iterator())
    assert batch["image"].tolist() == [[[[ord("9")]]]]
    np.testing.assert_allclose(labels, [[0.25, 0.75]], atol=1e-6)


@pytest.mark.parametrize("label", [-1, 12])
def test_rejects_a_label_out_of_range(tmp_path: Path, label: int) -> None:
    features = [
        Feature("image_raw", "bytes", "uint8", (1, 1, 1), "raw"),
        Feature("label", "int64", "int64", num_classes=12),
    ]
    records = [{"image_raw": b"9", "label": number} for number in (0, label)]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="raw", shards=1)
    input_fn = make_input_fn(path, "train", training=True, images=Images(mix=MixUp()))
    with pytest.raises(tf.errors.InvalidArgumentError, match="12 classes"):
        next(input_fn({"batch_size": 2}).as_numpy_iterator())


@pytest.mark.parametrize("make", [MixUp, CutMix])
@pytest.mark.parametrize("alpha", [0, -1.0, math.inf, math.nan, 10**400, "1", True])
def test_rejects_options_out_of_range_by_name(make: Any, alpha: Any) -> None:
    with pytest.raises(UsageError, match=f"{make.__name__}.alpha: invalid value"):
        make(alpha)

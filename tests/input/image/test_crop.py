"""Windows compared with the same algorithm in plain Python, number by number and as distributions.

Windows of given seeds are private: an input_fn draws the seeds, and does not return the windows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata import CentreCrop, TrainCrop, UsageError
from tpudata.input.image.crop import draw_flip, find_crop

Window = tuple[int, int, int, int]
F = np.float32


class Drawn:
    """The generator's 32-bit words, used as TensorFlow's kernel uses them."""

    def __init__(self, seed: Any) -> None:
        words = tf.random.stateless_uniform([256], tf.random.split(seed, 2)[0], None, None, tf.uint32)
        self._words: Iterator[int] = iter(words.numpy().tolist())

    def fraction(self) -> Any:
        return F(next(self._words) % 2**23) / F(2**23)

    def below(self, limit: int) -> int:
        if limit & (limit - 1) == 0:
            return next(self._words) % limit
        unfair = (2**32 - 1) % limit + 1
        while (word := next(self._words)) < unfair:
            pass
        return word % limit


class Random:
    """The same, from numpy."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def fraction(self) -> Any:
        return F(self._rng.random())

    def below(self, limit: int) -> int:
        return int(self._rng.integers(limit))


def plain_window(height: int, width: int, options: TrainCrop, numbers: Drawn | Random) -> Window:
    """A window as in the kernel of SampleDistortedBoundingBox, or the middle."""
    least, most = (F(F(share) * F(width)) * F(height) for share in options.area)
    low, high = map(F, options.ratio)
    for _ in range(options.attempts):
        ratio = numbers.fraction() * (high - low) + low
        tall, tallest = (round(float(np.sqrt(area / ratio))) for area in (least, most))
        if round(float(F(tallest) * ratio)) > width:
            tallest = int((width + 0.5 - float(F(1e-7))) / float(ratio))
            tallest -= round(float(F(tallest) * ratio)) > width
        tallest = min(tallest, height)
        tall = tall + numbers.below(tallest - tall + 1) if tall < tallest else tallest
        wide = round(float(F(tall) * ratio))
        if tall * wide < least:
            tall, wide = tall + 1, round(float(F(tall + 1) * ratio))
        if tall * wide > most:
            tall, wide = tall - 1, round(float(F(tall - 1) * ratio))
        if not least <= tall * wide <= most or not 0 < wide <= width or not 0 < tall <= height:
            continue
        y = numbers.below(height - tall) if tall < height else 0
        x = numbers.below(width - wide) if wide < width else 0
        if (tall, wide) == (height, width):
            break
        return y, x, tall, wide
    return plain_centre(height, width, 0.875)


def plain_centre(height: int, width: int, fraction: float) -> Window:
    side = max(1, math.floor(F(fraction) * F(min(height, width))))
    return math.ceil((height - side) / 2), math.ceil((width - side) / 2), side, side


def windows(height: int, width: int, options: TrainCrop | CentreCrop, seeds: npt.NDArray[np.int32]) -> Any:
    shape = tf.constant([height, width, 3])
    drawn = tf.data.Dataset.from_tensor_slices(seeds).map(lambda seed: find_crop(shape, options, seed))
    return np.stack(list(drawn.as_numpy_iterator()))


def seeds_of(count: int) -> npt.NDArray[np.int32]:
    return np.stack([np.full(count, 5), np.arange(count)], axis=1).astype(np.int32)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (256, 256), (30, 2000), (1, 1), (2, 3)])
@pytest.mark.parametrize(
    "options",
    [
        TrainCrop(224),
        TrainCrop(224, area=(0.9, 1.0), ratio=(1.0, 1.0), attempts=1),
        TrainCrop(8, area=(0.25, 0.25), ratio=(0.5, 2.0)),
    ],
)
def test_windows_equal_the_plain_algorithm(height: int, width: int, options: TrainCrop) -> None:
    seeds = seeds_of(60)
    want = [plain_window(height, width, options, Drawn(seed)) for seed in seeds]
    np.testing.assert_array_equal(windows(height, width, options, seeds), want)


@settings(max_examples=40)
@given(st.integers(1, 3000), st.integers(1, 3000), st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2))
def test_a_window_lies_within_its_image(height: int, width: int, seed: tuple[int, int]) -> None:
    y, x, tall, wide = find_crop(tf.constant([height, width, 3]), TrainCrop(224), tf.constant(seed)).numpy().tolist()
    assert 0 <= y <= y + tall <= height
    assert 0 <= x <= x + wide <= width
    assert tall >= 1
    assert wide >= 1


def test_windows_have_the_algorithms_distribution() -> None:
    height, width, count = 375, 500, 4000
    options = TrainCrop(224)
    got = windows(height, width, options, seeds_of(count)).astype(float)
    random = Random(0)
    want = np.array([plain_window(height, width, options, random) for _ in range(count)], float)
    for one, other in zip(measures(got), measures(want), strict=True):
        # The Kolmogorov-Smirnov distance of two samples stays below this in 999 of 1,000 cases.
        assert distance(one, other) < 1.95 * math.sqrt(2 / count)
    share = got[:, 2] * got[:, 3] / (height * width)
    assert 0.08 <= share.min() < 0.1
    assert 0.8 < share.max() <= 1


def measures(drawn: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Area, ratio, y and x of windows."""
    y, x, height, width = drawn.T
    return [height * width, width / height, y, x]


def distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Largest difference between two samples' cumulative distributions."""
    points = np.union1d(one, other)
    below = [np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def test_falls_back_to_the_centre_if_no_window_fits() -> None:
    options = TrainCrop(224, area=(0.9, 1.0))
    got = windows(30, 2000, options, seeds_of(3))  # No ratio up to 4/3 covers 90 % of this.
    np.testing.assert_array_equal(got, [[2, 987, 26, 26]] * 3)


@pytest.mark.parametrize("fraction", [0.875, 0.5, 1.0, 0.001])
@pytest.mark.parametrize(("height", "width"), [(375, 500), (501, 375), (256, 256), (1, 9)])
def test_the_centre_crop_equals_resnet_preprocessing(height: int, width: int, fraction: float) -> None:
    got = find_crop(tf.constant([height, width, 3]), CentreCrop(224, fraction)).numpy()
    np.testing.assert_array_equal(got, plain_centre(height, width, fraction))


def test_half_of_the_crops_are_mirrored_independently_of_their_windows() -> None:
    seeds = seeds_of(2000)
    options = TrainCrop(224)
    drawn = tf.data.Dataset.from_tensor_slices(seeds).map(lambda seed: draw_flip(options, seed))
    flips = np.array(list(drawn.as_numpy_iterator()))
    assert abs(flips.mean() - 0.5) < 0.04
    x = windows(375, 500, options, seeds)[:, 1]
    assert abs(np.corrcoef(flips, x)[0, 1]) < 0.08
    assert not draw_flip(dataclasses.replace(options, flip=False), tf.constant(seeds[0]))
    assert not draw_flip(CentreCrop(224), None)


def test_a_train_crop_requires_a_seed() -> None:
    with pytest.raises(UsageError, match="int32"):
        find_crop(tf.constant([10, 10, 3]), TrainCrop(8))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: TrainCrop(0), "TrainCrop.size"),
        (lambda: TrainCrop(224.0), "TrainCrop.size"),  # type: ignore[arg-type]
        (lambda: CentreCrop(True), "CentreCrop.size"),
        (lambda: TrainCrop(8, area=(0.0, 1.0)), "TrainCrop.area"),
        (lambda: TrainCrop(8, area=(0.5, 1.1)), "TrainCrop.area"),
        (lambda: TrainCrop(8, area=(1.0, 0.5)), "TrainCrop.area"),
        (lambda: TrainCrop(8, area=0.5), "TrainCrop.area"),  # type: ignore[arg-type]
        (lambda: TrainCrop(8, ratio=(-1.0, 1.0)), "TrainCrop.ratio"),
        (lambda: TrainCrop(8, ratio=(1.0, math.inf)), "TrainCrop.ratio"),
        (lambda: TrainCrop(8, ratio=(1.0, math.nan)), "TrainCrop.ratio"),
        (lambda: TrainCrop(8, flip=1), "TrainCrop.flip"),  # type: ignore[arg-type]
        (lambda: TrainCrop(8, attempts=0), "TrainCrop.attempts"),
        (lambda: TrainCrop(8, method="nearest"), "TrainCrop.method"),  # type: ignore[arg-type]
        (lambda: CentreCrop(8, shrink=None), "CentreCrop.shrink"),  # type: ignore[arg-type]
        (lambda: CentreCrop(8, fraction=0.0), "CentreCrop.fraction"),
        (lambda: CentreCrop(8, fraction=1.5), "CentreCrop.fraction"),
    ],
)
def test_rejects_options_out_of_range_by_name(make: Any, named: str) -> None:
    with pytest.raises(UsageError, match=rf"{named}: invalid value \(got .*, expected "):
        make()

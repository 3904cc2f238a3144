"""Normalisation compared with numpy in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.input.image.normalize import Normalize, normalize

# Half of the last place, relative to the value.
ROUNDING = {"float32": 2e-7, "bfloat16": 2**-8, "float16": 2**-11}


@pytest.mark.parametrize("shape", [(4, 5, 3), (2, 4, 5, 3), (0, 4, 5, 3)])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_normalized_values_equal_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    options = Normalize.imagenet()
    got = normalize(tf.constant(images), options, dtype)
    assert got.dtype == dtype
    assert got.shape == shape
    want = (images / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(tf.cast(got, tf.float32).numpy(), want, rtol=1.01 * ROUNDING[dtype], atol=1e-6)


def test_one_mean_applies_to_all_channels() -> None:
    images = tf.constant(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    got = normalize(images, Normalize(mean=(0.5,), std=(0.25,)), tf.float32).numpy()
    np.testing.assert_allclose(got, (images.numpy() / 255 - 0.5) / 0.25, rtol=1e-6, atol=1e-6)


def test_keeps_an_unknown_batch_size_and_static_dimensions() -> None:
    step = tf.function(
        lambda images: normalize(images, Normalize.imagenet(), tf.bfloat16),
        input_signature=[tf.TensorSpec((None, 4, 5, 3), tf.uint8)],
    )
    assert step.get_concrete_function().output_shapes.as_list() == [None, 4, 5, 3]
    assert step(tf.zeros((7, 4, 5, 3), tf.uint8)).shape == (7, 4, 5, 3)


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.5, 0.5), (0.5,)),
        ((), ()),
        ((0.5,), (0.0,)),
        ((0.5,), (-1.0,)),
        ((math.nan,), (1.0,)),
        ((0.5,), (math.inf,)),
        ([0.5], [0.5]),
        (0.5, 0.5),
        (("0.5",), (0.5,)),
    ],
)
def test_rejects_options_out_of_range(mean: Any, std: Any) -> None:
    with pytest.raises(UsageError, match="Normalize"):
        Normalize(mean, std)


def test_rejects_other_dtypes_and_channels() -> None:
    images = tf.zeros((2, 2, 1), tf.uint8)
    with pytest.raises(UsageError, match="float64"):
        normalize(images, Normalize((0.5,), (0.5,)), tf.float64)
    with pytest.raises(UsageError, match="3 means, and the images have 1 channels"):
        normalize(images, Normalize.imagenet(), tf.float32)

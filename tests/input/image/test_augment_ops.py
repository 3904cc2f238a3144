"""Every operation equals Pillow's to the pixel, on several kinds of pictures.

Operations are private: RandAugment draws which one changes an image, and how much.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.input.pillow_ops import pictures, pillow, plain_cutout
from tpudata.input.image import augment_ops

VALUES: dict[str, tuple[float, ...]] = {
    "posterize": (1, 4, 7, 8),
    "solarize": (0, 1, 128, 255, 256),
    "solarize_add": (0, 55, 110, 127),
    "color": (0.0, 0.1, 0.73, 1.0, 1.9),
    "contrast": (0.0, 0.1, 0.73, 1.0, 1.9),
    "brightness": (0.0, 0.1, 0.73, 1.0, 1.9),
    "sharpness": (0.0, 0.1, 0.73, 1.0, 1.9),
    "rotate": (-30.0, -7.3, 12.5, 30.0, 90.0),
    "shear_x": (-0.3, -0.1, 0.17, 0.3),
    "shear_y": (-0.3, -0.1, 0.17, 0.3),
    "translate_x": (-50, -3, 7, 15),
    "translate_y": (-50, -3, 7, 15),
}


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "invert"])
def test_operations_without_strength_equal_pillow(name: str) -> None:
    for image in pictures():
        got = getattr(augment_ops, name)(tf.constant(image)).numpy()
        np.testing.assert_array_equal(got, pillow(name, image, 0))


def change(name: str, image: tf.Tensor, value: float) -> tf.Tensor:
    """Return the image after an operation."""
    moves = {
        "rotate": lambda degrees: augment_ops.make_rotation(image, degrees),
        "shear_x": augment_ops.make_x_shear,
        "shear_y": augment_ops.make_y_shear,
        "translate_x": augment_ops.make_x_translation,
        "translate_y": augment_ops.make_y_translation,
    }
    if name in moves:
        return augment_ops.transform(image, moves[name](value))
    return getattr(augment_ops, name)(image, value)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in VALUES.items() for value in values])
def test_operations_equal_pillow(name: str, value: float) -> None:
    for image in pictures():
        got = change(name, tf.constant(image), value)
        assert got.dtype == tf.uint8
        np.testing.assert_array_equal(got.numpy(), pillow(name, image, value))


@settings(max_examples=60)
@given(st.sampled_from(["color", "contrast", "brightness", "sharpness"]), st.floats(0, 2, width=32))
def test_blends_by_any_factor_equal_pillow(name: str, factor: float) -> None:
    image = pictures()[0]
    got = getattr(augment_ops, name)(tf.constant(image), factor).numpy().astype(int)
    # float32 may be rounded once more or less than Pillow's C compiler does.
    assert np.abs(got - pillow(name, image, factor).astype(int)).max() <= 1


@settings(max_examples=60)
@given(st.integers(0, 30), st.integers(0, 40), st.integers(0, 32))
def test_cutout_paints_a_grey_square(side: int, y: int, x: int) -> None:
    image = pictures()[0]
    got = augment_ops.cutout(tf.constant(image), side, tf.constant([y, x])).numpy()
    np.testing.assert_array_equal(got, plain_cutout(image, side, y, x))

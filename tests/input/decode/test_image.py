"""Decoding compared with Pillow, and resizing with TensorFlow."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.helpers.datasets import encode_image
from tpudata.format import Feature
from tpudata.input.dataset.fields import Field
from tpudata.input.decode.image import cast_image, decode_images


def field(stored: tuple[int | None, int | None, int], shape: tuple[int, int, int]) -> Field:
    return Field(Feature("image/encoded", "bytes", "uint8", stored, "image"), "image", shape)


# TensorFlow decodes GIF to colour only, and does not read the palettes of the grey BMP that Pillow writes.
@pytest.mark.parametrize(("file_format", "channels"), [("PNG", 1), ("PNG", 3), ("BMP", 3), ("GIF", 3)])
def test_decodes_lossless_formats_exactly(file_format: str, channels: int) -> None:
    rng = np.random.default_rng(1)
    # Few values, so that a GIF's palette holds them.
    images = [rng.integers(0, 4, (6, 5, channels), dtype=np.uint8) * 80 for _ in range(3)]
    encoded = tf.constant([encode_image(image, file_format) for image in images])
    got = decode_images(encoded, field((6, 5, channels), (6, 5, channels)))
    np.testing.assert_array_equal(got, np.stack(images))


def test_decodes_jpeg_as_pillow_does_but_for_rounding() -> None:
    ramp = np.add.outer(np.arange(32), np.arange(48)).astype(np.uint8)
    image = np.stack([ramp, ramp[::-1], 255 - ramp], axis=-1)
    data = encode_image(image, "JPEG")
    (got,) = decode_images(tf.constant([data]), field((32, 48, 3), (32, 48, 3))).numpy()
    want = np.asarray(Image.open(io.BytesIO(data)))
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 8


def test_converts_between_grey_and_colour() -> None:
    grey = np.full((4, 4, 1), 77, np.uint8)
    (got,) = decode_images(tf.constant([encode_image(grey)]), field((4, 4, 3), (4, 4, 3))).numpy()
    assert (got == 77).all()
    assert got.shape == (4, 4, 3)
    colour = np.full((4, 4, 3), 77, np.uint8)
    (got,) = decode_images(tf.constant([encode_image(colour, "JPEG")]), field((4, 4, 1), (4, 4, 1))).numpy()
    assert got.shape == (4, 4, 1)
    assert np.abs(got.astype(int) - 77).max() <= 1


def test_a_constant_image_stays_constant_at_every_size() -> None:
    white = np.full((9, 7, 3), 255, np.uint8)
    for size in ((3, 3), (9, 7), (20, 30)):
        got = decode_images(tf.constant([encode_image(white)]), field((None, None, 3), (*size, 3)))
        assert got.shape == (1, *size, 3)
        assert (got.numpy() == 255).all()


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 1), np.uint8)
    stripes[::2] = 255
    got = decode_images(tf.constant([encode_image(stripes)]), field((64, 64, 1), (8, 8, 1))).numpy()
    assert np.abs(got[0, 1:-1].astype(int) - 127).max() <= 2  # Grey; without antialiasing all black or all white.


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("size", "drafted"), [((16, 12), 8), ((24, 30), 4), ((60, 40), 2), ((128, 96), 1)])
def test_decodes_a_large_jpeg_at_a_fraction_of_its_size(mode: str, size: tuple[int, int], drafted: int) -> None:
    # Smooth shapes with noise, 400 x 320.
    y, x = np.mgrid[:320, :400]
    waves = 110 + 60 * np.sin(x / 23) + 50 * np.cos(y / 17)
    noisy = np.clip(waves + np.random.default_rng(0).normal(0, 8, waves.shape), 0, 255).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(noisy).convert(mode).save(data, "JPEG", quality=95, subsampling=0)
    channels = len(mode)
    (got,) = decode_images(tf.constant([data.getvalue()]), field((None, None, channels), (*size, channels))).numpy()
    # Pillow's draft mode has libjpeg decode at the same fraction.
    image = Image.open(data)
    image.draft(mode, (400 // drafted, 320 // drafted))
    assert image.size == (400 // drafted, 320 // drafted)
    pixels = np.asarray(image).reshape(320 // drafted, 400 // drafted, channels)
    expected = tf.image.resize(pixels, size, antialias=True).numpy()
    assert np.abs(got - expected).max() <= 2
    image = Image.open(data)
    whole = tf.image.resize(np.asarray(image).reshape(320, 400, channels), size, antialias=True).numpy()
    assert np.abs(got - whole).mean() < 1


def test_rejects_an_image_of_another_size_than_the_field() -> None:
    data = tf.constant([encode_image(np.zeros((5, 5, 3), np.uint8))])
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        decode_images(data, field((4, 4, 3), (4, 4, 3)))


def test_cast_maps_uint8_to_0_to_1() -> None:
    values = tf.constant(np.arange(256, dtype=np.uint8))
    got = cast_image(values, tf.float32).numpy()
    np.testing.assert_array_equal(got, np.arange(256, dtype=np.float32) / np.float32(255))
    assert cast_image(values, tf.bfloat16).dtype == tf.bfloat16

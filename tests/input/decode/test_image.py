"""Decoding compared with Pillow, and resizing with TensorFlow."""

from __future__ import annotations

import io
import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.helpers.datasets import encode_image, write_dataset
from tpudata import Images, make_input_fn
from tpudata.format import Feature


def decode(files: list[bytes], stored: tuple[int | None, int | None, int], **images: Any) -> Any:
    """The images of a batch of files whose sizes are `stored`, with some options of images."""
    feature = Feature("image/encoded", "bytes", "uint8", stored, "image")
    with tempfile.TemporaryDirectory() as folder:
        records = [{feature.name: file} for file in files]
        path = write_dataset(folder, {"train": records}, [feature], layout="imagenet", shards=1)
        input_fn = make_input_fn(path, "train", training=False, images=Images(**images))
        (batch,) = input_fn({"batch_size": len(files)}).as_numpy_iterator()
    return batch["image"]


# TensorFlow decodes GIF to colour only, and does not read the palettes of the grey BMP that Pillow writes.
@pytest.mark.parametrize(("file_format", "channels"), [("PNG", 1), ("PNG", 3), ("BMP", 3), ("GIF", 3)])
def test_decodes_lossless_formats_exactly(file_format: str, channels: int) -> None:
    rng = np.random.default_rng(1)
    # Few values, so that a GIF's palette holds them.
    images = [rng.integers(0, 4, (6, 5, channels), dtype=np.uint8) * 80 for _ in range(3)]
    got = decode([encode_image(image, file_format) for image in images], (6, 5, channels))
    np.testing.assert_array_equal(got, np.stack(images))


def test_decodes_jpeg_as_pillow_does_but_for_rounding() -> None:
    ramp = np.add.outer(np.arange(32), np.arange(48)).astype(np.uint8)
    image = np.stack([ramp, ramp[::-1], 255 - ramp], axis=-1)
    data = encode_image(image, "JPEG")
    (got,) = decode([data], (32, 48, 3))
    want = np.asarray(Image.open(io.BytesIO(data)))
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 8


def test_converts_between_grey_and_colour() -> None:
    grey = np.full((4, 4, 1), 77, np.uint8)
    (got,) = decode([encode_image(grey)], (4, 4, 3))
    assert (got == 77).all()
    assert got.shape == (4, 4, 3)
    colour = np.full((4, 4, 3), 77, np.uint8)
    (got,) = decode([encode_image(colour, "JPEG")], (4, 4, 1))
    assert got.shape == (4, 4, 1)
    assert np.abs(got.astype(int) - 77).max() <= 1


def test_a_constant_image_stays_constant_at_every_size() -> None:
    white = np.full((9, 7, 3), 255, np.uint8)
    for size in ((3, 3), (9, 7), (20, 30)):
        got = decode([encode_image(white)], (None, None, 3), size=size)
        assert got.shape == (1, *size, 3)
        assert (got == 255).all()


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 1), np.uint8)
    stripes[::2] = 255
    got = decode([encode_image(stripes)], (64, 64, 1), size=(8, 8))
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
    (got,) = decode([data.getvalue()], (None, None, channels), size=size)
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


def test_rejects_an_image_of_another_size_than_the_manifest_says() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode([encode_image(np.zeros((5, 5, 3), np.uint8))], (4, 4, 3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_maps_uint8_to_0_to_1(dtype: str) -> None:
    values = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    (got,) = decode([encode_image(values)], (16, 16, 1), dtype=dtype)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, (values.astype(np.float32) / np.float32(255)).astype(got.dtype))

"""Decoded crops compared with whole images, cut and resized with numpy.

Crops of given seeds are private: an input_fn draws the seeds, and does not return the windows.
"""

from __future__ import annotations

import dataclasses
import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from PIL import Image, ImageFilter

from tests.helpers.datasets import encode_image
from tpudata import CentreCrop, TrainCrop, UsageError
from tpudata.input.decode.decode_crop import decode_crop
from tpudata.input.image.crop import draw_flip, find_crop

Pixels = npt.NDArray[np.uint8]
SEEDS = [(3, number) for number in range(6)]


def picture(height: int, width: int, channels: int = 3) -> Pixels:
    """Smooth colours with some texture, as photographs have them."""
    rng = np.random.default_rng(height)
    noise = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    image = np.asarray(noise.filter(ImageFilter.GaussianBlur(4)), int)
    image = np.clip((image - 128) * 6 + 128, 0, 255).astype(np.uint8)
    chosen: Pixels = image[..., :channels]
    return chosen


def jpeg(pixels: Pixels, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def taps(source: int, size: int, method: str) -> Any:
    """[size, source]: what each pixel of the result takes of each of the source's, at pixels' centres."""
    centres = (np.arange(size) + 0.5) * source / size - 0.5
    far = np.abs(centres[:, None] - np.arange(source))
    if method == "bilinear":
        far = np.abs(np.clip(centres, 0, source - 1)[:, None] - np.arange(source))
        return np.clip(1 - far, 0, None)
    # Keys' cubic with a = -1/2; what lies outside of the image does not count.
    near = (1.5 * far - 2.5) * far**2 + 1
    mid = ((-0.5 * far + 2.5) * far - 4) * far + 2
    weights = np.where(far < 1, near, np.where(far < 2, mid, 0))
    return weights / weights.sum(axis=1, keepdims=True)


def decode(
    encoded: tf.Tensor,
    channels: int,
    options: TrainCrop | CentreCrop,
    seed: tf.Tensor | None = None,
    dtype: tf.DType = tf.uint8,
) -> tf.Tensor:
    """The crop alone, without its window."""
    return decode_crop(encoded, channels, options, seed, dtype)[0]


def plain_crop(whole: Pixels, options: TrainCrop | CentreCrop, seed: tuple[int, int] | None) -> Any:
    """The crop of a decoded image, before it is rounded."""
    key = None if seed is None else tf.constant(seed)
    y, x, height, width = find_crop(tf.constant(whole.shape), options, key).numpy()
    cut = whole[y : y + height, x : x + width].astype(float)
    rows, columns = (taps(source, options.size, options.method) for source in (height, width))
    image = np.clip(np.einsum("yh,hwc,xw->yxc", rows, cut, columns, optimize=True), 0, 255)
    return image[:, ::-1] if draw_flip(options, key) else image


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("file_format", "channels"), [("PNG", 1), ("PNG", 3), ("BMP", 3)])
def test_crops_lossless_formats_as_numpy_does(file_format: str, channels: int, method: Any) -> None:
    image = picture(60, 83, channels)
    encoded = tf.constant(encode_image(image, file_format))
    for seed in SEEDS:
        options = TrainCrop(32, method=method)
        got = decode(encoded, channels, options, tf.constant(seed)).numpy()
        assert got.dtype == np.uint8
        # 0.5 for rounding, and more for bicubic, whose weights TensorFlow reads from a table.
        assert np.abs(got - plain_crop(image, options, seed)).max() <= (0.501 if method == "bilinear" else 0.8)


def test_crops_gifs_and_images_of_four_channels() -> None:
    flat = np.full((20, 30, 3), 90, np.uint8)
    got = decode(tf.constant(encode_image(flat, "GIF")), 3, TrainCrop(8), tf.constant([1, 2])).numpy()
    assert got.shape == (8, 8, 3)
    assert (got == 90).all()
    alpha = np.dstack([flat, np.full((20, 30), 7, np.uint8)])
    got = decode(tf.constant(encode_image(alpha)), 4, CentreCrop(8)).numpy()
    assert (got == [90, 90, 90, 7]).all()


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_a_jpegs_crop_equals_that_of_pillows_whole_image(subsampling: int, progressive: bool) -> None:
    encoded = jpeg(picture(150, 203), subsampling=subsampling, progressive=progressive)
    whole = np.asarray(Image.open(io.BytesIO(encoded)))
    for seed in SEEDS:
        options = TrainCrop(112)
        got = decode(tf.constant(encoded), 3, options, tf.constant(seed)).numpy()
        difference = np.abs(got - plain_crop(whole, options, seed))
        if subsampling:  # The columns at the edge miss the colour next to them.
            assert difference.max() < 25
            difference = difference[:, 8:-8]
        assert difference.max() <= 0.501


@pytest.mark.parametrize("channels", [1, 3])
def test_crops_grey_jpegs(channels: int) -> None:
    encoded = jpeg(picture(70, 90, 1))
    options = CentreCrop(64)
    got = decode(tf.constant(encoded), channels, options).numpy()
    assert got.shape == (64, 64, channels)
    whole = np.asarray(Image.open(io.BytesIO(encoded)))[..., np.newaxis]
    assert np.abs(got - plain_crop(whole, options, None)).max() <= 0.501


@pytest.mark.parametrize(("side", "shrink"), [(120, 2), (256, 4), (600, 8)])
def test_shrinks_large_windows_while_decoding(side: int, shrink: int) -> None:
    image = picture(side, side + 64)
    encoded = jpeg(image, quality=95, subsampling=0)
    size = side // shrink
    options = CentreCrop(size, fraction=1.0, shrink=True)
    got = decode(tf.constant(encoded), 3, options).numpy().astype(float)
    # A shrunk pixel is the mean of shrink x shrink pixels.
    side = size * shrink
    cut = image[:side, 32 : 32 + side].reshape(size, shrink, size, shrink, 3).mean(axis=(1, 3))
    assert np.abs(got - cut).mean() < 2.0
    assert np.abs(got.mean(axis=(0, 1)) - cut.mean(axis=(0, 1))).max() < 0.5
    if shrink > 2:  # Without shrinking, pixels are dropped, and the result is further from the mean.
        plain = decode(tf.constant(encoded), 3, dataclasses.replace(options, shrink=False)).numpy()
        assert np.abs(got - cut).mean() < np.abs(plain - cut).mean() / 2


def test_a_shrunk_window_equals_the_exact_one_within_half_a_pixel() -> None:
    # Values encode the position: red grows by 1 every 4 pixels to the right, green downwards.
    y, x = np.mgrid[:800, :1000] / 4
    encoded = tf.constant(jpeg(np.stack([x, y, 0 * x], axis=-1).astype(np.uint8), quality=95, subsampling=0))
    for number in range(20):
        options, seed = TrainCrop(64), tf.constant([1, number])
        shrunk = decode(encoded, 3, options, seed).numpy().astype(float)
        exact = decode(encoded, 3, dataclasses.replace(options, shrink=False), seed).numpy()
        # Half of 8 pixels is 1 of red or green; dropping cut pixels at the end enlarges a window by less than one of them.
        assert np.abs(shrunk - exact).max() <= 4
        assert np.abs((shrunk - exact).mean(axis=(0, 1))).max() <= 1.5


def test_the_same_seed_gives_the_same_crop() -> None:
    encoded, options = tf.constant(jpeg(picture(80, 100))), TrainCrop(24)
    first, second, again = (decode(encoded, 3, options, tf.constant([1, seed])).numpy() for seed in (1, 3, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()


def test_does_not_round_floats() -> None:
    image = picture(60, 83)
    encoded = tf.constant(encode_image(image))
    for method in ("bilinear", "bicubic"):
        options = TrainCrop(32, method=method)
        got = decode(encoded, 3, options, tf.constant(SEEDS[0]), tf.float32)
        assert got.dtype == tf.float32
        assert np.abs(got - plain_crop(image, options, SEEDS[0])).max() <= (1e-3 if method == "bilinear" else 0.3)
        rounded = decode(encoded, 3, options, tf.constant(SEEDS[0]))
        np.testing.assert_array_equal(np.floor(got + 0.5), rounded)
    middle = decode(encoded, 3, CentreCrop(32), dtype=tf.float32)
    assert np.abs(middle - plain_crop(image, CentreCrop(32), None)).max() <= 1e-3


def test_crops_have_static_shapes_in_a_dataset() -> None:
    encoded = [jpeg(picture(80, 100)), encode_image(picture(61, 50))]
    records = tf.data.Dataset.from_tensor_slices((encoded, [[1, 1], [1, 2]]))
    single = records.map(lambda item, seed: decode(item, 3, TrainCrop(24), seed))
    assert single.element_spec == tf.TensorSpec((24, 24, 3), tf.uint8)


def test_rejects_a_train_crop_without_a_seed() -> None:
    with pytest.raises(UsageError, match="seed"):
        decode(tf.constant(jpeg(picture(80, 100))), 3, TrainCrop(24))


def test_enlarges_single_pixels_and_strips() -> None:
    for height, width in ((1, 1), (1, 300), (300, 1)):
        encoded = tf.constant(jpeg(np.full((height, width, 3), 200, np.uint8)))
        got = decode(encoded, 3, TrainCrop(16), tf.constant([0, 0])).numpy()
        assert got.shape == (16, 16, 3)
        assert math.isclose(got.mean(), 200, abs_tol=1)

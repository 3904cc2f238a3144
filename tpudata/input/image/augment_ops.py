"""The operations of AutoAugment on one image, in TensorFlow, to the pixel as Pillow's ImageOps and ImageEnhance compute them.

Images are uint8 [height, width, 3] of static shape, and so are the results. Nothing is drawn: random values are arguments.
Arithmetic is Pillow's: float32 blends cut to uint8, tables over histograms, and transforms by the nearest pixel in 16.16 fixed
point. `transform` rotates, shears or translates an image with the sources that a `make_` function returns; it also takes other
integers and any number of channels, and fills uncovered corners, by default with grey (128, 128, 128).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from tpudata.tensor_types import Scalar

# Grey, for the pixels of corners and holes.
FILL = 128


class PixelSources(NamedTuple):
    """Source coordinates of the pixels of a transformed image, at pixels' centres.

    Attributes:
        x_coefficients: (a, b, c): the x from which pixel (x, y) comes is a * x + b * y + c.
        y_coefficients: (d, e, f): the y from which pixel (x, y) comes is d * x + e * y + f.
    """

    x_coefficients: tuple[Scalar, Scalar, Scalar]
    y_coefficients: tuple[Scalar, Scalar, Scalar]


def invert(image: tf.Tensor) -> tf.Tensor:
    """Return 255 minus each value."""
    return 255 - image


def posterize(image: tf.Tensor, bits: int) -> tf.Tensor:
    """Keep the highest `bits` bits of each value, 1 to 8."""
    return tf.bitwise.bitwise_and(image, tf.constant(0xFF << (8 - bits) & 0xFF, tf.uint8))


def solarize(image: tf.Tensor, threshold: int) -> tf.Tensor:
    """Invert the values at or above `threshold`, 0 to 256."""
    # No value is that high, and uint8 cannot hold 256.
    if threshold > 255:
        return image
    # A product, since tf.where takes five times as long; 255 - v has the bits of v turned over.
    inverted_bits = 255 * tf.cast(image >= tf.constant(threshold, tf.uint8), tf.uint8)
    return tf.bitwise.bitwise_xor(image, inverted_bits)


def solarize_add(image: tf.Tensor, addition: int) -> tf.Tensor:
    """Add `addition`, 0 to 127, to the values below 128."""
    return image + tf.constant(addition, tf.uint8) * tf.cast(image < 128, tf.uint8)


def autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Stretch each channel's values to 0 to 255; a channel of one value stays."""
    occurs = _count_values(image) > 0
    values = tf.range(256, dtype=tf.float64)
    low = tf.reduce_min(tf.where(occurs, values, 255.0), axis=1, keepdims=True)
    high = tf.reduce_max(tf.where(occurs, values, 0.0), axis=1, keepdims=True)
    scale = 255.0 / tf.maximum(high - low, 1.0)
    stretched = tf.clip_by_value(tf.cast(values * scale - low * scale, tf.int32), 0, 255)
    return _look_up(image, tf.where(high > low, stretched, tf.range(256)))


def equalize(image: tf.Tensor) -> tf.Tensor:
    """Spread each channel's values so that all are about as frequent; a channel with under 255 pixels below its maximum stays."""
    counts = _count_values(image)
    num_pixels = image.shape[0] * image.shape[1]
    counts_below = tf.cumsum(counts, axis=1, exclusive=True)
    # Number of pixels below the highest value that occurs.
    count_below_highest = tf.reduce_max(tf.where(counts_below < num_pixels, counts_below, 0), axis=1, keepdims=True)
    # Pillow's rule: value v becomes the number of pixels below it, in steps of a 255th of the pixels below the highest value.
    step = count_below_highest // 255
    spread = tf.minimum((step // 2 + counts_below) // tf.maximum(step, 1), 255)
    return _look_up(image, tf.where(step > 0, spread, tf.range(256)))


def color(image: tf.Tensor, factor: Scalar) -> tf.Tensor:
    """Blend the image with its grey version: factor 0 gives grey, 1 the image, 2 twice its colour."""
    return _blend(_convert_to_grey(image), image, factor)


def contrast(image: tf.Tensor, factor: Scalar) -> tf.Tensor:
    """Blend the image with its mean grey: factor 0 gives that grey, 1 the image, 2 twice the contrast."""
    num_values = image.shape[0] * image.shape[1] * 3
    total = tf.reduce_sum(tf.cast(_convert_to_grey(image), tf.int64))
    mean = (2 * total + num_values) // (2 * num_values)  # Rounded, half up.
    return _blend(tf.cast(mean, tf.float32), image, factor)


def brightness(image: tf.Tensor, factor: Scalar) -> tf.Tensor:
    """Blend the image with black: factor 0 gives black, 1 the image, 2 twice the brightness."""
    return _blend(tf.constant(0.0), image, factor)


def sharpness(image: tf.Tensor, factor: Scalar) -> tf.Tensor:
    """Blend the image with a smoothed one: factor 0 smooths, 1 gives the image, 2 sharpens. The outermost pixels stay."""
    height, width = image.shape[:2]
    # Every pixel is on the border.
    if height < 3 or width < 3:
        return image
    values = tf.cast(image, tf.float32)
    rows = values[:-2] + values[1:-1] + values[2:]
    neighbourhood = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    inner = values[1:-1, 1:-1]
    # Pillow's filter SMOOTH: the pixel has the weight 5 of 13, and each of its 8 neighbours 1.
    smooth = tf.floor((neighbourhood + 4.0 * inner) / 13.0 + 0.5)
    # The border is not smoothed.
    change = tf.pad(smooth - inner, ((1, 1), (1, 1), (0, 0)))
    return _blend(values + change, image, factor)


def make_rotation(image: tf.Tensor, degrees: Scalar) -> PixelSources:
    """Return the sources of pixels that rotate the image about its centre, counterclockwise."""
    angle = -tf.cast(degrees, tf.float64) * (math.pi / 180.0)
    cos, sin = tf.cos(angle), tf.sin(angle)
    centre_x, centre_y = image.shape[1] / 2.0, image.shape[0] / 2.0
    # The offsets keep the centre in its position.
    x_offset = centre_x - cos * centre_x - sin * centre_y
    y_offset = centre_y + sin * centre_x - cos * centre_y
    return PixelSources((cos, sin, x_offset), (-sin, cos, y_offset))


def make_x_shear(slope: Scalar) -> PixelSources:
    """Return the sources of pixels that move each row to the left by `slope` times its y."""
    return PixelSources((1.0, slope, 0.0), (0.0, 1.0, 0.0))


def make_y_shear(slope: Scalar) -> PixelSources:
    """Return the sources of pixels that move each column up by `slope` times its x."""
    return PixelSources((1.0, 0.0, 0.0), (slope, 1.0, 0.0))


def make_x_translation(pixels: Scalar) -> PixelSources:
    """Return the sources of pixels that move the image to the left."""
    return PixelSources((1.0, 0.0, pixels), (0.0, 1.0, 0.0))


def make_y_translation(pixels: Scalar) -> PixelSources:
    """Return the sources of pixels that move the image up."""
    return PixelSources((1.0, 0.0, 0.0), (0.0, 1.0, pixels))


def cutout(image: tf.Tensor, side: int, centre: tf.Tensor) -> tf.Tensor:
    """Fill a square of `side` pixels with grey; parts outside of the image are cut off.

    Args:
        image: uint8 [height, width, 3], of static shape.
        side: side of the square, in pixels.
        centre: int32 [2], y and x of the pixel at side // 2 of the square.
    """
    height, width = image.shape[:2]
    y = tf.range(height) - (centre[0] - side // 2)
    x = tf.repeat(tf.range(width), 3) - (centre[1] - side // 2)
    rows, columns = (tf.cast((offset >= 0) & (offset < side), tf.uint8) for offset in (y, x))
    hole = rows[:, tf.newaxis] * columns
    flat = tf.reshape(image, (height, width * 3))
    # In the hole, value + (FILL - value) = FILL; uint8 wraps around where the difference is negative.
    return tf.reshape(flat + hole * (FILL - flat), image.shape)


def _blend(background: tf.Tensor, image: tf.Tensor, factor: Scalar) -> tf.Tensor:
    """Return background + factor * (image - background), clipped to uint8; `background` is float32."""
    values = tf.cast(image, tf.float32)
    mixed = background + tf.cast(factor, tf.float32) * (values - background)
    return tf.cast(tf.clip_by_value(mixed, 0.0, 255.0), tf.uint8)


def _convert_to_grey(image: tf.Tensor) -> tf.Tensor:
    """Return float32 [height, width, 3]: in all channels the ITU-R 601 luma, in 16 bits as Pillow's mode L computes it.

    Weights and sums are integers below 2**24, which float32 holds exactly.
    """
    weights = tf.constant([[19595.0] * 3, [38470.0] * 3, [7471.0] * 3])
    luma = tf.matmul(tf.reshape(tf.cast(image, tf.float32), (-1, 3)), weights)
    return tf.reshape(tf.floor((luma + 32768.0) / 65536.0), image.shape)


def _count_values(image: tf.Tensor) -> tf.Tensor:
    """Return int32 [3, 256]: number of occurrences of each value in each channel."""
    counts = tf.math.bincount(_number_channel_values(image), minlength=3 * 256, maxlength=3 * 256, dtype=tf.int32)
    return tf.reshape(counts, (3, 256))


def _number_channel_values(image: tf.Tensor) -> tf.Tensor:
    """Return int32 [height, width * 3]: each value plus 256 times the index of its channel."""
    height, width = image.shape[:2]
    # Number a row of pixels at a time: TensorFlow is slow if the innermost dimension is 3.
    rows = tf.cast(tf.reshape(image, (height, width * 3)), tf.int32)
    return rows + tf.tile([0, 256, 512], [width])


def _look_up(image: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Return the image with table[channel, value] in place of each value; the table is [3, 256]."""
    mapped = tf.gather(tf.reshape(tf.cast(table, tf.uint8), [-1]), _number_channel_values(image))
    return tf.reshape(mapped, image.shape)


def transform(image: tf.Tensor, sources: PixelSources, fill: int = FILL) -> tf.Tensor:
    """Return the image with each pixel taken from its source, or `fill` if the source lies outside of the image."""
    height, width, channels = image.shape
    x = _find_source(sources.x_coefficients, height, width)
    y = _find_source(sources.y_coefficients, height, width)
    is_inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    # One row of fill after the pixels, for pixels from outside the image.
    pixels = tf.concat(
        [tf.reshape(image, (-1, channels)), tf.fill((1, channels), tf.constant(fill, image.dtype))], axis=0
    )
    return tf.gather(pixels, tf.where(is_inside, y * width + x, height * width))


def _find_source(coefficients: tuple[Scalar, ...], height: int, width: int) -> tf.Tensor:
    """Return the x or the y that each pixel comes from, int32 [height, width], from the three coefficients of `PixelSources`.

    As in Pillow, it is computed at the pixel's centre, in fixed-point numbers with 16 bits after the point, and rounded down.
    """
    a, b, c = (tf.cast(coefficient, tf.float64) for coefficient in coefficients)
    start, per_x, per_y = (
        tf.cast(tf.floor(coefficient * 65536.0 + 0.5), tf.int32) for coefficient in (c + 0.5 * a + 0.5 * b, a, b)
    )
    fixed_point = start + per_y * tf.range(height)[:, tf.newaxis] + per_x * tf.range(width)
    return tf.bitwise.right_shift(fixed_point, tf.constant(16))

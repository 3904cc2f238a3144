"""Decoding of a crop of an encoded image, without the rest of the image if the format allows it."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tpudata.input.dataset_ops import ensure
from tpudata.input.decode.label_map import resize_map
from tpudata.input.image.crop import CentreCrop, TrainCrop, draw_flip, find_crop

# Channels that `decode_and_crop_jpeg` can decode to, and factors by which it can shrink.
_JPEG_CHANNELS = (1, 3)
_SHRINKS = (1, 2, 4, 8)


class CropWindow(NamedTuple):
    """Window of a crop in its image, with which the image's label maps and masks are also cropped.

    Attributes:
        shape: int32 [3], height, width and channels of the whole image.
        box: int32 [4], y, x, height and width of the window.
        flip: bool scalar, whether the crop is mirrored.
    """

    shape: tf.Tensor
    box: tf.Tensor
    flip: tf.Tensor


def decode_crop(
    encoded: tf.Tensor,
    channels: int,
    options: TrainCrop | CentreCrop,
    seed: tf.Tensor | None,
    dtype: tf.DType,
) -> tuple[tf.Tensor, CropWindow]:
    """Decode a crop of one JPEG, PNG, GIF (first frame) or BMP image.

    For a JPEG with 1 or 3 channels, rows below the window are not read, and pixels outside it are not decoded. If its colour is
    stored at half the width, the window's outermost columns lack the colour of their neighbours. Other images are decoded whole.

    Args:
        encoded: string, scalar.
        channels: 1, 3 or 4.
        options: the crop.
        seed: int32 [2], for a TrainCrop: the same seed gives the same crop, so the caller passes a different one for every record
            and epoch. None for a CentreCrop.
        dtype: uint8, or float32 to omit the rounding if floats come next: 5 % faster.

    Returns:
        The crop, `dtype` [size, size, channels] with values 0 to 255, and its window.

    Raises:
        UsageError: a TrainCrop without a seed.
    """
    if channels not in _JPEG_CHANNELS:
        return crop_image(_decode_image(encoded, channels), options, seed, dtype)
    # Two conditionals with only the decoding inside: TensorFlow also visits the operations of branches not taken. With all of a
    # format's operations in its branch, an image of 256 pixels takes 10 % longer.
    is_jpeg = tf.io.is_jpeg(encoded)

    def decode_whole() -> tuple[tf.Tensor, tf.Tensor]:
        image = _decode_image(encoded, channels)
        return tf.shape(image), image

    def read_shape() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.extract_jpeg_shape(encoded), tf.zeros([0, 0, channels], tf.uint8)

    # Both branches return the same structure; a JPEG is decoded once its window is known.
    shape, whole_image = tf.cond(is_jpeg, read_shape, decode_whole)
    box = find_crop(shape, options, seed)
    image = tf.cond(is_jpeg, lambda: _decode_box(encoded, channels, box, options), lambda: _slice_box(whole_image, box))
    flip = draw_flip(options, seed)
    return _flip_and_resize(image, flip, channels, options, dtype), CropWindow(shape, box, flip)


def crop_image(
    image: tf.Tensor, options: TrainCrop | CentreCrop, seed: tf.Tensor | None, dtype: tf.DType
) -> tuple[tf.Tensor, CropWindow]:
    """Crop a decoded image, with the same result as `decode_crop` has for an encoded one.

    Args:
        image: uint8 [height, width, channels], with channels static.
        options: the crop.
        seed: int32 [2], for a TrainCrop; None for a CentreCrop.
        dtype: uint8, or float32 to omit the rounding.

    Returns:
        The crop, `dtype` [size, size, channels] with values 0 to 255, and its window.

    Raises:
        UsageError: a TrainCrop without a seed.
    """
    shape = tf.shape(image)
    box, flip = find_crop(shape, options, seed), draw_flip(options, seed)
    cropped = _flip_and_resize(_slice_box(image, box), flip, image.shape[2], options, dtype)
    return cropped, CropWindow(shape, box, flip)


def crop_map(
    values: tf.Tensor, name: str, window: CropWindow, options: TrainCrop | CentreCrop, kind: str = "label map"
) -> tf.Tensor:
    """Crop a label map or a mask with its image's window.

    Args:
        values: integers [height, width, 1]: a map as large as the image. A map of a different size fails at run time with
            `tf.errors.InvalidArgumentError`.
        name: name of the map's feature, for the message.
        window: window of the image's crop.
        options: the crop.
        kind: noun for the map in the message.

    Returns:
        The same dtype, [size, size, 1]: each pixel is the nearest one of the map.
    """
    message = f"Feature {name}: a {kind} does not have the size of its image. Store {kind}s of the images' sizes, or omit the crop."
    values = ensure(values, tf.reduce_all(tf.equal(tf.shape(values)[:2], window.shape[:2])), message)
    cropped = _slice_box(values, window.box)
    cropped = tf.cond(window.flip, lambda: tf.reverse(cropped, [1]), lambda: cropped)
    return tf.ensure_shape(resize_map(cropped, (options.size, options.size)), (options.size, options.size, 1))


def _decode_box(encoded: tf.Tensor, channels: int, box: tf.Tensor, options: TrainCrop | CentreCrop) -> tf.Tensor:
    """Decode a window of a JPEG, uint8 [height, width, channels], at 1/2, 1/4 or 1/8 of its size if the options allow it.

    Args:
        encoded: the JPEG, string scalar.
        channels: number of channels.
        box: int32 [4]: y, x, height and width of the window in the image.
        options: the crop: with `shrink`, the result has at least `size` pixels on each side, if the window has.
    """

    def decode_at(shrink: int) -> tf.Tensor:
        """Decode the window at 1 / shrink of its size."""
        # The window in the shrunk image: y and x to the nearest pixel, height and width rounded down. The shrunk image's size is
        # rounded up, so the window lies inside.
        half_shrink = tf.constant([shrink // 2, shrink // 2, 0, 0])
        return tf.image.decode_and_crop_jpeg(
            encoded,
            box if shrink == 1 else (box + half_shrink) // shrink,
            channels=channels,
            ratio=shrink,
            # As Pillow and libjpeg decode; TensorFlow's own default is up to 14 of 255 off, and hardly faster.
            dct_method="INTEGER_ACCURATE",
        )

    if not options.shrink:
        return decode_at(1)
    # Shrink while at least `size` pixels remain on each side.
    min_sides = tf.constant([options.size * shrink for shrink in _SHRINKS[1:]])
    shrink_index = tf.reduce_sum(tf.cast(tf.reduce_min(box[2:]) >= min_sides, tf.int32))
    return tf.switch_case(shrink_index, [lambda shrink=shrink: decode_at(shrink) for shrink in _SHRINKS])


def _decode_image(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    return tf.ensure_shape(image, (None, None, channels))


def _slice_box(image: tf.Tensor, box: tf.Tensor) -> tf.Tensor:
    """Return the window of a decoded image, with all channels."""
    begin, size = tf.concat([box[:2], [0]], axis=0), tf.concat([box[2:], [-1]], axis=0)
    return tf.slice(image, begin, size)


def _flip_and_resize(
    image: tf.Tensor, flip: tf.Tensor, channels: int, options: TrainCrop | CentreCrop, dtype: tf.DType
) -> tf.Tensor:
    """Return a window of an image, mirrored if `flip` is set, resized to `dtype` [size, size, channels].

    Args:
        image: the window, uint8 [height, width, channels].
        flip: bool scalar.
        channels: number of channels.
        options: the crop.
        dtype: uint8 to round the result, or float32.
    """
    # Flip before the window becomes float32, which has four times the bytes.
    image = tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
    image = _resize(image, options)
    if dtype == tf.uint8:
        # The cast cuts off fractions.
        image = tf.cast(image + 0.5, tf.uint8)
    return tf.ensure_shape(image, (options.size, options.size, channels))


def _resize(image: tf.Tensor, options: TrainCrop | CentreCrop) -> tf.Tensor:
    """Return an image resized to float32 [size, size, channels].

    The kernels are those of `tf.image.resize`, whose shape checks would take 5 % of an image's time. Bicubic results are clipped to
    0 to 255.
    """
    # The kernels for float32 are twice as fast as the kernels for uint8.
    images, size = tf.cast(image, tf.float32)[tf.newaxis], (options.size, options.size)
    if options.method == "bilinear":
        return tf.raw_ops.ResizeBilinear(images=images, size=size, half_pixel_centers=True)[0]
    image = tf.raw_ops.ResizeBicubic(images=images, size=size, half_pixel_centers=True)[0]
    return tf.clip_by_value(image, 0.0, 255.0)  # Bicubic overshoots at edges; bilinear does not.

"""Steps of `Images`, for single images and for whole batches."""

from __future__ import annotations

import tensorflow as tf

from tpudata.input.decode.decode_crop import crop_image, decode_crop
from tpudata.input.decode.image import cast_image
from tpudata.input.image.augment import rand_augment
from tpudata.input.image.normalize import normalize
from tpudata.input.options.images import Images
from tpudata.input.order.seeds import AUGMENT_SEED, CROP_SEED


def prepare_image(image: tf.Tensor, channels: int, options: Images, seed: tf.Tensor | None) -> tf.Tensor:
    """Crop, augment and scale one image.

    Args:
        image: uint8 [height, width, channels], or a string if it is encoded.
        channels: number of its channels.
        options: options of the steps.
        seed: int32 [2], seed of the record; None if nothing is drawn.

    Returns:
        [height, width, channels] of `options.dtype_name`.
    """
    if options.crop is not None:
        # Rounded only if the next step takes integers.
        is_rounded = options.augment is not None or options.dtype_name == "uint8"
        dtype = tf.uint8 if is_rounded else tf.float32
        crop_seed = _derived(seed, CROP_SEED)
        if image.dtype == tf.string:
            image = decode_crop(image, channels, options.crop, crop_seed, dtype)
        else:
            image = crop_image(image, options.crop, crop_seed, dtype)
    if options.augment is not None:
        image = rand_augment(image, options.augment, _derived(seed, AUGMENT_SEED))
    return scale_images(image, options)


def scale_images(images: tf.Tensor, options: Images) -> tf.Tensor:
    """Convert images [..., width, channels], 0 to 255, to `options.dtype_name`: normalised, from 0 to 1, or unchanged uint8."""
    if options.normalize is not None:
        return normalize(images, options.normalize, tf.as_dtype(options.dtype_name))
    return images if options.dtype_name == "uint8" else cast_image(images, tf.as_dtype(options.dtype_name))


def _derived(seed: tf.Tensor | None, purpose: tuple[int, int]) -> tf.Tensor | None:
    return None if seed is None else tf.bitwise.bitwise_xor(seed, tf.constant(purpose, tf.int32))

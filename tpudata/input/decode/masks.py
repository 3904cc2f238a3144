"""Decoding of the masks of an image's objects: a list of PNGs of a record, as large as the image."""

from __future__ import annotations

import tensorflow as tf

from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import ensure
from tpudata.input.decode.decode_crop import CropWindow, crop_map
from tpudata.input.decode.label_map import resize_map
from tpudata.input.image.crop import CentreCrop, TrainCrop


def decode_masks(encoded: tf.Tensor, counts: tf.Tensor, field: Field) -> tf.Tensor:
    """Decode the masks of a batch of records.

    Args:
        encoded: string [n, entries]: PNGs, and padding.
        counts: int32 [n], number of entries of each record that are not padding.
        field: field of the shape (entries, height, width). Masks are resized to it if their image is, and each pixel is then
            the nearest one of the mask; otherwise a mask of a different size fails at run time.

    Returns:
        uint8 [n, entries, height, width]: 1 inside, 0 outside and in padding.
    """
    assert field.masks_of is not None
    num_entries, *size = field.shape
    is_resized = field.masks_of.shape[:2] != tuple(size)

    def decode_mask(png: tf.Tensor) -> tf.Tensor:
        """Return one mask, uint8 [height, width]."""
        mask = _decode(png)
        if is_resized:
            mask = resize_map(mask, tuple(size))
        else:
            message = f"Feature {field.feature.name}: a mask does not have the size of its image. Store masks of the images' sizes."
            mask = ensure(mask, tf.reduce_all(tf.equal(tf.shape(mask)[:2], size)), message)
        return tf.ensure_shape(mask[..., 0], size)

    unpadded = tf.boolean_mask(encoded, tf.sequence_mask(counts, num_entries))
    masks = tf.map_fn(decode_mask, unpadded, fn_output_signature=tf.TensorSpec(size, tf.uint8))
    rows = tf.RaggedTensor.from_row_lengths(masks, counts, validate=False)
    return rows.to_tensor(0, shape=(None, *field.shape))


def crop_masks(
    encoded: tf.Tensor, num_masks: tf.Tensor, name: str, window: CropWindow, options: TrainCrop | CentreCrop
) -> tf.Tensor:
    """Decode the masks of one record, and crop them like their image.

    Args:
        encoded: string [entries]: PNGs as large as the image, and padding. Other sizes fail at run time with
            `tf.errors.InvalidArgumentError`.
        num_masks: int32 scalar, number of entries that are not padding.
        name: name of the masks' feature, for the message.
        window: window of the image's crop.
        options: the crop.

    Returns:
        uint8 [entries, size, size]: 1 inside, 0 outside and in padding.
    """
    size = (options.size, options.size)
    masks = tf.map_fn(
        lambda png: crop_map(_decode(png), name, window, options, kind="mask")[..., 0],
        encoded[:num_masks],
        fn_output_signature=tf.TensorSpec(size, tf.uint8),
    )
    num_entries = encoded.shape[0]
    return tf.ensure_shape(tf.pad(masks, [[0, num_entries - num_masks], [0, 0], [0, 0]]), (num_entries, *size))


def _decode(encoded: tf.Tensor) -> tf.Tensor:
    """Decode one mask, string scalar, to uint8 [height, width, 1] of 0 and 1."""
    # Read 16 bits: with 8, TensorFlow would divide the values of a PNG of 16 bits by 256, and 1 would become 0.
    return tf.cast(tf.io.decode_png(encoded, channels=1, dtype=tf.uint16) > 0, tf.uint8)

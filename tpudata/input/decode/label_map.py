"""Decoding of label maps: the class of each pixel, unchanged by decoding, cropping and resizing."""

from __future__ import annotations

import tensorflow as tf

from tpudata.format import Feature
from tpudata.format.label_map import (
    DEPTH_OFFSET,
    GREY,
    HEADER_END,
    HEADER_NAME,
    HEADER_NAME_OFFSET,
    MAP_BITS,
    PNG_SIGNATURE,
)
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import ensure

# Fed dtype for each stored one: a TPU takes no uint16.
_DTYPES = {"uint8": tf.uint8, "uint16": tf.int32}


def decode_label_maps(encoded: tf.Tensor, field: Field) -> tf.Tensor:
    """Decode a batch of label maps.

    If the manifest gives all maps the shape of the field, a map of a different shape is an error at run time. Otherwise each map is
    resized to the field's shape: each pixel is the nearest one of the map.

    Args:
        encoded: string [n].
        field: shape (height, width, 1).

    Returns:
        uint8 [n, height, width, 1]; int32 if the maps are uint16.
    """
    is_resized = field.feature.shape != field.shape

    def decode_map(png: tf.Tensor) -> tf.Tensor:
        values = _decode(png, field.feature, (None, None, 1) if is_resized else field.shape)
        return tf.ensure_shape(resize_map(values, field.shape[:2]) if is_resized else values, field.shape)

    dtype = _DTYPES[field.feature.dtype]
    encoded = _ensure_grey_png(encoded, field.feature)
    return tf.map_fn(decode_map, encoded, fn_output_signature=tf.TensorSpec(field.shape, dtype))


def decode_label_map(encoded: tf.Tensor, feature: Feature) -> tf.Tensor:
    """Decode one label map, string scalar, to [height, width, 1]; the dtype is that of `decode_label_maps`."""
    return _decode(_ensure_grey_png(encoded, feature), feature, (None, None, 1))


def resize_map(values: tf.Tensor, size: tuple[int, ...]) -> tf.Tensor:
    """Return a map [height, width, 1] in another size: each pixel has the value of the map's pixel in which its centre lies."""
    return tf.raw_ops.ResizeNearestNeighbor(images=values[tf.newaxis], size=size, half_pixel_centers=True)[0]


def _decode(encoded: tf.Tensor, feature: Feature, shape: tuple[int | None, ...]) -> tf.Tensor:
    """Decode one label map, string scalar, which must have `shape`, with None for a size that may vary."""
    values = tf.io.decode_png(encoded, channels=1, dtype=tf.as_dtype(feature.dtype))
    # Check the shape before the cast: the error then names DecodePng, by which `tpudata.error_text.libraries` recognizes it.
    return tf.cast(tf.ensure_shape(values, shape), _DTYPES[feature.dtype])


def _ensure_grey_png(encoded: tf.Tensor, feature: Feature) -> tf.Tensor:
    """Return stored maps, string [n] or scalar, unchanged; fail at run time unless all are grey PNGs of the feature's bits."""
    bits = MAP_BITS[feature.dtype]
    # By position in the file: the signature, the name of the header, the bits and the colour type.
    expected_bytes = dict(enumerate(PNG_SIGNATURE))
    expected_bytes |= dict(enumerate(HEADER_NAME, HEADER_NAME_OFFSET)) | {DEPTH_OFFSET: bits, DEPTH_OFFSET + 1: GREY}
    header = tf.io.decode_raw(encoded, tf.uint8, fixed_length=HEADER_END)
    header_bytes = tf.gather(header, list(expected_bytes), axis=-1)
    message = (
        f"Feature {feature.name}: a label map is not a PNG of {bits} bits, grey: TensorFlow would change its values. Store the"
        " classes so, or declare the feature as an image."
    )
    return ensure(
        encoded, tf.reduce_all(tf.equal(header_bytes, tf.constant(list(expected_bytes.values()), tf.uint8))), message
    )

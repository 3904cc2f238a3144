"""The images among the features, as a network takes them."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.errors import UsageError


def images_of(
    features: Any,
    model: str,
    *,
    mean: Sequence[float] | float,
    deviation: Sequence[float] | float,
    shape: tuple[int, int, int] | None = None,
    transposed: bool = False,
) -> tf.Tensor:
    """Return images [batch, height, width, channels].

    Args:
        features: images, or a dict with them as "image": uint8 or floats.
        model: the model's name, for errors.
        mean: is taken off uint8 images, whose values are 0 to 1 then; for each channel, or for all.
        deviation: divides uint8 images afterwards.
        shape: (height, width, channels) of images that come flat; None if they come with their shape.
        transposed: whether they come as [height, width, channels, batch].

    Returns:
        float32 of uint8 images; floats as they are.

    Raises:
        UsageError: no images among the features.
    """
    if isinstance(features, dict):
        if "image" not in features:
            raise UsageError(
                f'{model} reads images: features must hold "image", got {", ".join(sorted(features))}. Take a dataset of images, '
                "or another model."
            )
        features = features["image"]
    images = features
    if transposed:
        if images.shape.rank != 4:
            raise UsageError(
                f"{model}: transpose_input takes images [height, width, channels, batch], got {images.shape}."
            )
        images = tf.transpose(images, [3, 0, 1, 2])
    if images.dtype == tf.uint8:
        images = (tf.cast(images, tf.float32) / 255.0 - mean) / deviation
    if shape is not None:
        images = tf.reshape(images, [-1, *shape])
    return images

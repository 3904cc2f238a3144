"""Images among the features, prepared for a network."""

from collections.abc import Sequence

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.tensor_types import Tensors


def pick_images(
    features: Tensors,
    model: str,
    *,
    mean: Sequence[float] | float,
    deviation: Sequence[float] | float,
    shape: tuple[int, int, int] | None = None,
    batch_is_last: bool = False,
) -> tf.Tensor:
    """Return the images among the features as floats [batch, height, width, channels].

    Args:
        features: images, or a dict with them as "image": uint8 or floats.
        model: the model's name, for errors.
        mean: mean of uint8 images, scaled to 0..1, which is subtracted; one number for each channel, or for all.
        deviation: standard deviation; uint8 images are divided by it after the subtraction.
        shape: (height, width, channels) of flat images; None if images are not flat.
        batch_is_last: whether images are [height, width, channels, batch].

    Returns:
        Float32 images, normalized, if they were uint8; floats keep their values and dtype.

    Raises:
        UsageError: the features contain no images, or with `batch_is_last`, images that are not of rank 4.
    """
    if isinstance(features, dict):
        if "image" not in features:
            raise UsageError(
                f'{model} reads images: features must contain "image", got {", ".join(sorted(features))}. Use a dataset of images, '
                "or another model."
            )
        images = features["image"]
    else:
        images = features
    if batch_is_last:
        if images.shape.rank != 4:
            raise UsageError(
                f"{model}: images must be [height, width, channels, batch] with transpose_input, got {images.shape}."
            )
        images = tf.transpose(images, [3, 0, 1, 2])
    if images.dtype == tf.uint8:
        images = (tf.cast(images, tf.float32) / 255.0 - mean) / deviation
    if shape is not None:
        images = tf.reshape(images, [-1, *shape])
    return images

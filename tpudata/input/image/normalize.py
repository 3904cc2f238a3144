"""Normalization: uint8 images to floats of about zero mean and unit deviation."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tpudata.checks import check, is_number
from tpudata.errors import UsageError

_DTYPES = (tf.float32, tf.bfloat16, tf.float16)


@dataclasses.dataclass(frozen=True)
class Normalize:
    """Normalization of each channel: (value / 255 - mean) / std.

    Attributes:
        mean: mean of each channel, or one for all; of values from 0 to 1.
        std: standard deviation of each channel, or one for all; of values from 0 to 1.

    Raises:
        UsageError: lengths differ, a value is not a finite number, or a deviation is not above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            are_numbers = isinstance(values, tuple) and len(values) > 0 and all(map(is_number, values))
            expected = "a tuple of numbers for values 0 to 1, one a channel or one for all"
            check(f"Normalize.{name}", values, are_numbers, expected)
        if len(self.mean) != len(self.std):
            raise UsageError(
                f"Normalize: different numbers of means and deviations (got {len(self.mean)} and {len(self.std)}). Pass"
                " the same number of each."
            )
        check("Normalize.std", self.std, min(self.std) > 0, "numbers above 0")

    @classmethod
    def imagenet(cls) -> Normalize:
        """Return the means and deviations of red, green and blue that ImageNet models are trained with."""
        return cls(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def normalize(images: tf.Tensor, options: Normalize, dtype: tf.DType) -> tf.Tensor:
    """Normalize an image, or a batch of them, in float32, and round the result once to `dtype`.

    Args:
        images: [..., width, channels] with values 0 to 255; width and channels are static.
        options: means and deviations.
        dtype: float32, bfloat16 or float16.

    Returns:
        `dtype`, of the shape of images.

    Raises:
        UsageError: `dtype` is none of these, or there is neither one mean nor one for each channel.
    """
    dtype = tf.as_dtype(dtype)
    if dtype not in _DTYPES:
        raise UsageError(f"Normalize gives float32, bfloat16 or float16; dtype is {dtype.name}. Choose one of these.")
    width, channels = images.shape[-2:]
    if len(options.mean) not in (1, channels):
        raise UsageError(
            f"Normalize has {len(options.mean)} means, and the images have {channels} channels. Pass one for each, or one for all."
        )
    # Normalize a whole row of pixels at a time: with an innermost dimension of 3, TensorFlow takes four times as long. NumPy tiles
    # once; TensorFlow would tile for every image.
    num_repeats = width * channels // len(options.mean)
    row_scale = np.tile(np.array([1 / (255 * std) for std in options.std], np.float32), num_repeats)
    offsets = [-mean / std for mean, std in zip(options.mean, options.std, strict=True)]
    row_offset = np.tile(np.array(offsets, np.float32), num_repeats)
    rows = tf.reshape(images, [-1, width * channels])
    normalized = tf.cast(tf.cast(rows, tf.float32) * row_scale + row_offset, dtype)
    return tf.ensure_shape(tf.reshape(normalized, tf.shape(images)), images.shape)

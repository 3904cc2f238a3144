"""Crops of images: their options, and their position in an image.

The training crop is that of Inception and ResNet, as tensorflow/tpu's resnet_preprocessing takes it: a random window, resized to a
square, and flipped in half of the cases. The evaluation crop is the middle. `decode_crop` decodes both.

Nothing here keeps state: the same size and seed give the same window.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import tensorflow as tf

from tpudata.checks import check, check_flag, check_integer, check_one_of, convert_integers, is_number
from tpudata.errors import UsageError

Method = Literal["bilinear", "bicubic"]

# Share of the shorter side that the middle takes, also if no window is found: 224 of 256 pixels, as in resnet_preprocessing's
# evaluation crop.
CENTRE_FRACTION = 0.875
# Largest side of a crop in pixels, as for `Images.size`.
_MAX_SIZE = 1 << 14


@dataclasses.dataclass(frozen=True)
class TrainCrop:
    """A random window of each image, resized to `size` x `size`, for training.

    A window is drawn as `tf.image.sample_distorted_bounding_box` draws it: an aspect ratio, uniform; a height, uniform between
    the heights that give the smallest and the largest area; then a position. A window that does not fit into the image is drawn
    again, up to `attempts` times in all. If none fits, or if the window is the whole image, the crop is the middle as in
    `CentreCrop`.

    Attributes:
        size: height and width of the result, in pixels.
        area: least and largest share of the image's area, above 0 and up to 1. resnet_preprocessing has 0.08, but also
            requires a tenth of the image, so its windows have 0.1 or more.
        ratio: least and largest width / height of the window, in the image's pixels.
        flip: whether to mirror left and right in half of the cases.
        attempts: number of draws before the middle is taken.
        method: method of resizing the window. "bilinear" takes less than half the time of resnet_preprocessing's "bicubic",
            which is sharper if a small window is enlarged. Neither is antialiased.
        shrink: whether to decode a JPEG's window of at least twice `size` at 1/2, 1/4 or 1/8, if `size` pixels remain: much less
            work for large photographs, and smoother than resizing without antialiasing, since a shrunk pixel is a mean. The
            window then moves by up to half a shrunk pixel.

    Raises:
        UsageError: an option is out of range or of the wrong type.
    """

    size: int
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    attempts: int = 10
    method: Method = "bilinear"
    shrink: bool = True

    def __post_init__(self) -> None:
        _check_common(self)
        _check_range("TrainCrop.area", self.area, maximum=1.0)
        _check_range("TrainCrop.ratio", self.ratio, maximum=math.inf)
        check_flag("TrainCrop.flip", self.flip)
        check_integer("TrainCrop.attempts", self.attempts, 1)
        convert_integers(self, "attempts")


@dataclasses.dataclass(frozen=True)
class CentreCrop:
    """The middle of each image, a square, resized to `size` x `size`, for evaluation.

    Attributes:
        size: height and width of the result, in pixels.
        fraction: side of the square, as a share of the image's shorter side. The default is resnet_preprocessing's at 224 pixels,
            size / (size + 32).
        method: as in TrainCrop.
        shrink: as in TrainCrop; off, so that accuracies compare with other programs'.

    Raises:
        UsageError: an option is out of range or of the wrong type.
    """

    size: int
    fraction: float = CENTRE_FRACTION
    method: Method = "bilinear"
    shrink: bool = False

    def __post_init__(self) -> None:
        _check_common(self)
        is_fraction = is_number(self.fraction, 0, 1) and self.fraction > 0
        check("CentreCrop.fraction", self.fraction, is_fraction, "a number above 0 and up to 1")


def find_crop(shape: tf.Tensor, options: TrainCrop | CentreCrop, seed: tf.Tensor | None = None) -> tf.Tensor:
    """Return the window of an image's crop.

    Args:
        shape: int32 [3], the image's height, width and channels.
        options: the crop.
        seed: int32 [2], for a TrainCrop; None for a CentreCrop.

    Returns:
        int32 [4]: y, x, height and width of the window, in the image's pixels.

    Raises:
        UsageError: a TrainCrop without a seed.
    """
    if isinstance(options, CentreCrop):
        return _find_middle(shape, options.fraction)
    window_seed, _ = _split_seed(seed)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=window_seed,
        min_object_covered=0.0,
        aspect_ratio_range=options.ratio,
        area_range=options.area,
        max_attempts=options.attempts,
        use_image_if_no_bounding_boxes=True,
    )
    # TensorFlow returns the whole image if no attempt fits. Take the middle instead, even if the whole was drawn.
    is_whole = tf.reduce_all(tf.equal(size[:2], shape[:2]))
    drawn = tf.concat([begin[:2], size[:2]], axis=0)
    return tf.where(is_whole, _find_middle(shape, CENTRE_FRACTION), drawn)


def draw_flip(options: TrainCrop | CentreCrop, seed: tf.Tensor | None) -> tf.Tensor:
    """Return whether the crop is mirrored: bool, scalar.

    Args:
        options: the crop.
        seed: int32 [2]; only a TrainCrop that mirrors needs it.

    Raises:
        UsageError: a TrainCrop that mirrors, without a seed.
    """
    if isinstance(options, CentreCrop) or not options.flip:
        return tf.constant(False)
    _, flip_seed = _split_seed(seed)
    return tf.random.stateless_uniform([], flip_seed) < 0.5


def _find_middle(shape: tf.Tensor, fraction: float) -> tf.Tensor:
    """Return the middle square, int32 [4], as `find_crop` does; if it cannot be exact, it is half a pixel down and to the right.

    Args:
        shape: int32 [3], the image's height, width and channels.
        fraction: side of the square, as a share of the image's shorter side.
    """
    side = tf.cast(fraction * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
    side = tf.maximum(side, 1)
    return tf.stack([(shape[0] - side + 1) // 2, (shape[1] - side + 1) // 2, side, side])


def _split_seed(seed: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (seed of the window, seed of the flip), int32 [2] each; UsageError without a seed."""
    if seed is None:
        raise UsageError("TrainCrop draws its windows from a seed. Pass one: int32 [2].")
    # The seed is split, since the caller's next record may have seed + 1.
    return tuple(tf.unstack(tf.random.split(seed, 2)))


def _check_common(options: TrainCrop | CentreCrop) -> None:
    """Check and convert the attributes that both kinds of crop have; UsageError if one is invalid."""
    name = type(options).__name__
    check_integer(f"{name}.size", options.size, 1, _MAX_SIZE)
    convert_integers(options, "size")
    check_one_of(f"{name}.method", options.method, ("bilinear", "bicubic"))
    check_flag(f"{name}.shrink", options.shrink)


def _check_range(name: str, bounds: tuple[float, float], maximum: float) -> None:
    """Check that an attribute is (least, largest), both above 0 and at most `maximum`; UsageError if not."""
    are_numbers = isinstance(bounds, tuple) and len(bounds) == 2 and all(map(is_number, bounds))
    check(name, bounds, are_numbers, "a tuple of two numbers, (least, largest)")
    limit = "" if math.isinf(maximum) else f", up to {maximum:g}"
    check(name, bounds, 0 < bounds[0] <= bounds[1] <= maximum, f"numbers above 0{limit}, the smaller one first")

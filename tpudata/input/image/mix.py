"""MixUp and CutMix: each image of a batch is mixed with another image of the batch, and its labels in the same shares.

Both run on whole batches, once their images are cropped, augmented and scaled. A row's partner is the row before it (the first
row's is the last), which in a shuffled batch is a random one. With several hosts, the partner is in the host's part of the global
batch, so that the pairs, unlike the set of records, depend on the number of hosts.

Classes become soft labels, float32 [B, classes], for a softmax cross-entropy that takes probabilities; several classes of a record
and other floats are blended directly. Label maps get the partner's rectangle with CutMix, and cannot be blended with
MixUp. Nothing here keeps state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tpudata.checks import check, is_number
from tpudata.console.tables import count_text
from tpudata.input.dataset_ops import ensure
from tpudata.tensor_types import Scalar


@dataclasses.dataclass(frozen=True)
class MixUp:
    """Each image becomes share * image + (1 - share) * partner. Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2017).

    Attributes:
        alpha: the shares are drawn from Beta(alpha, alpha), one a row: near 0 or 1 with small alpha, uniform with 1.

    Raises:
        UsageError: alpha is not a number above 0.
    """

    alpha: float = 0.2

    def __post_init__(self) -> None:
        _check_alpha(self)


@dataclasses.dataclass(frozen=True)
class CutMix:
    """A rectangle of each image, and of its label maps, comes from its partner. Yun et al., "CutMix: Regularization ..." (2019).

    The rectangle has the image's aspect ratio and 1 - share of its area, its centre anywhere in the image. Parts outside
    of the image are cut off, and the labels' shares are the shares of the pixels.

    Attributes:
        alpha: the shares are drawn from Beta(alpha, alpha), one a row.

    Raises:
        UsageError: alpha is not a number above 0.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_alpha(self)


def mix_images(
    images: Sequence[tf.Tensor], options: MixUp | CutMix, seed: tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Mix the images of a batch.

    Args:
        images: the images, [B, height, width, channels], static except B: uint8, or floats, normalized or not. With CutMix also
            label maps: integers [B, height, width, 1].
        options: options of the mix.
        seed: int32 [2]: the same seed gives the same shares and rectangles.

    Returns:
        The mixed images and maps, of the same dtypes and shapes (integers rounded); and the share of each row's own image in the
        mixed one, float32 [B].
    """
    share_seed, centre_seed = tf.unstack(tf.random.split(seed, 2))
    shares = draw_beta(tf.shape(images[0])[0], options.alpha, share_seed)
    if isinstance(options, MixUp):
        return [_blend(batch, shares) for batch in images], shares
    return _paste(images, shares, centre_seed)


def mix_labels(labels: tf.Tensor, num_classes: int | None, own_shares: tf.Tensor) -> tf.Tensor:
    """Return the labels of mixed images, float32 [B, classes], or [B, ...] if they are numbers.

    Args:
        labels: classes, integers [B] from 0 to num_classes - 1; soft labels, float32 [B, classes]; or numbers [B, ...]. An integer
            out of range fails at run time with `tf.errors.InvalidArgumentError`.
        num_classes: number of classes; None for numbers, and for soft labels whose number of classes is not checked.
        own_shares: float32 [B], the share of each row's own image in the mixed one.
    """
    soft_labels = tf.cast(labels, tf.float32) if num_classes is None else _encode_soft_labels(labels, num_classes)
    weight = tf.reshape(own_shares, [-1] + [1] * (soft_labels.shape.rank - 1))
    return weight * soft_labels + (1.0 - weight) * _roll_to_partner(soft_labels)


def draw_beta(num_draws: Scalar, alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Draw numbers from Beta(alpha, alpha): float32 [num_draws]."""
    gamma, other_gamma = tf.unstack(tf.random.stateless_gamma([2, num_draws], seed, alpha, dtype=tf.float64))
    total = gamma + other_gamma
    # With a tiny alpha both draws may underflow: a share would then be 1 or, equally likely, 0; take 1.
    return tf.cast(tf.where(total > 0, gamma / total, tf.ones_like(total)), tf.float32)


def _blend(images: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    """Return share * image + (1 - share) * partner of each image, of the images' dtype."""
    weight = shares[:, tf.newaxis, tf.newaxis, tf.newaxis]
    batch = tf.cast(images, tf.float32)
    mixed = weight * batch + (1.0 - weight) * _roll_to_partner(batch)
    return tf.cast(tf.round(mixed) if images.dtype.is_integer else mixed, images.dtype)


def _paste(images: Sequence[tf.Tensor], shares: tf.Tensor, seed: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Paste a rectangle of its partner into each image of a batch.

    Args:
        images: the images and label maps of the batch, [B, height, width, channels] each, static except B.
        shares: float32 [B], drawn share of each image that it keeps.
        seed: int32 [2], for the centres of the rectangles.

    Returns:
        The mixed images, and the share of the pixels that each keeps, float32 [B]. These shares differ from the drawn ones,
        since rectangles are cut off at the border of the image and their sides are whole pixels.
    """
    height, width = images[0].shape[1:3]
    centres = tf.random.stateless_uniform([2, tf.shape(images[0])[0]], seed)
    row_mask, heights = _mask_rectangle(height, shares, centres[0])
    column_mask, widths = _mask_rectangle(width, shares, centres[1])
    kept_shares = 1.0 - tf.cast(heights * widths, tf.float32) / (height * width)
    return [_paste_partner(batch, row_mask, column_mask) for batch in images], kept_shares


def _paste_partner(images: tf.Tensor, row_mask: tf.Tensor, column_mask: tf.Tensor) -> tf.Tensor:
    """Replace the pixels inside a rectangle with the partner's.

    Args:
        images: [B, height, width, channels].
        row_mask: bool [B, height], rows of the rectangle.
        column_mask: bool [B, width], its columns.
    """
    # Merge width and channels: TensorFlow is slow at broadcasting a mask over channels.
    height, width, channels = images.shape[1:]
    is_inside = row_mask[:, :, tf.newaxis] & tf.repeat(column_mask, channels, axis=1)[:, tf.newaxis]
    flat = tf.reshape(images, (-1, height, width * channels))
    return tf.reshape(tf.where(is_inside, _roll_to_partner(flat), flat), tf.shape(images))


def _mask_rectangle(num_pixels: int, shares: tf.Tensor, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which pixels along an axis lie in each image's rectangle, bool [B, num_pixels], and their number, int32 [B].

    Args:
        num_pixels: number of pixels along the axis.
        shares: float32 [B], share of the image outside of the rectangle.
        centre: float32 [B], centre of the rectangle, from 0 to 1.
    """
    length = tf.cast(num_pixels * tf.sqrt(1.0 - shares), tf.int32)
    begin = tf.cast(num_pixels * centre, tf.int32) - length // 2
    offset = tf.range(num_pixels)[tf.newaxis] - begin[:, tf.newaxis]
    is_inside = (offset >= 0) & (offset < length[:, tf.newaxis])
    return is_inside, tf.reduce_sum(tf.cast(is_inside, tf.int32), axis=1)


def _roll_to_partner(batch: tf.Tensor) -> tf.Tensor:
    """Return the batch with each row replaced by the row before it, and the first by the last."""
    return tf.roll(batch, 1, axis=0)


def _encode_soft_labels(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Return labels, which are class indices or already soft labels, as soft labels, float32 [B, classes]."""
    if labels.shape.rank == 2:
        return tf.cast(tf.ensure_shape(labels, (None, num_classes)), tf.float32)
    # one_hot gives zeros for a label out of range, which training would not notice.
    message = f"labels: a label is not from 0 to {num_classes - 1}, as there are {count_text(num_classes, 'class', 'classes')}."
    is_class = tf.logical_and(labels >= 0, labels < tf.cast(num_classes, labels.dtype))
    return tf.one_hot(ensure(labels, tf.reduce_all(is_class), message), num_classes, dtype=tf.float32)


def _check_alpha(options: MixUp | CutMix) -> None:
    is_valid = is_number(options.alpha) and options.alpha > 0
    check(f"{type(options).__name__}.alpha", options.alpha, is_valid, "a number above 0")

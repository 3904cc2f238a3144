"""Steps of `Images`, for single images and for whole batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from tpudata.format import Feature
from tpudata.input.dataset.fields import Field
from tpudata.input.decode.decode_crop import crop_image, crop_map, decode_crop
from tpudata.input.decode.image import cast_image
from tpudata.input.decode.label_map import decode_label_map
from tpudata.input.decode.masks import crop_masks
from tpudata.input.image.augment import augment_image
from tpudata.input.image.normalize import normalize
from tpudata.input.lists.moves import compute_crop_transform
from tpudata.input.options.images import Images
from tpudata.input.order.seeds import AUGMENT_SEED, CROP_SEED, derive_seed

# Label maps of one record by the names of their columns: the feature, and its value.
Maps: TypeAlias = Mapping[str, tuple[Feature, tf.Tensor]]


class Masks(NamedTuple):
    """Masks of the objects of one record.

    Attributes:
        field: field of the list.
        values: uint8 [entries, height, width], or string [entries] if there is a crop.
        count: int32 scalar, number of entries without padding.
    """

    field: Field
    values: tf.Tensor
    count: tf.Tensor


class PreparedImage(NamedTuple):
    """An image after its steps, with its moved label maps and masks.

    Attributes:
        image: [height, width, channels].
        maps: its label maps by name, integers [height, width, 1].
        masks: the masks of its objects by name, uint8 [entries, height, width].
        moves: the moves of its pixels, float32 [2, 3] each, see `tpudata.input.lists.moves`; empty unless they are requested.
        shape_before_crop: int32 [3], height, width and channels; None without a crop.
    """

    image: tf.Tensor
    maps: dict[str, tf.Tensor]
    masks: dict[str, tf.Tensor]
    moves: list[tf.Tensor]
    shape_before_crop: tf.Tensor | None


def prepare_image(
    image: tf.Tensor,
    channels: int,
    options: Images,
    seed: tf.Tensor | None,
    maps: Maps,
    *,
    masks: Mapping[str, Masks],
    tracks_moves: bool = False,
) -> PreparedImage:
    """Crop, augment and scale one image, and move its label maps and masks with it.

    Args:
        image: uint8 [height, width, channels], or a string if it is encoded.
        channels: number of its channels.
        options: options of the steps.
        seed: int32 [2], seed of the record; None if nothing is drawn.
        maps: its label maps: integers [height, width, 1], or strings if there is a crop.
        masks: the masks of its objects, by the names of their columns.
        tracks_moves: whether to return how the image was moved, so that boxes and points can follow.
    """
    moved_maps = {name: map_value for name, (_, map_value) in maps.items()}
    moved_masks = {name: mask_list.values for name, mask_list in masks.items()}
    moves: list[tf.Tensor] = []
    shape_before_crop = None
    if options.crop is not None:
        # The crop is rounded only if the next step takes integers.
        is_rounded = options.augment is not None or options.dtype_name == "uint8"
        dtype = tf.uint8 if is_rounded else tf.float32
        crop_seed = derive_seed(seed, CROP_SEED)
        if image.dtype == tf.string:
            image, window = decode_crop(image, channels, options.crop, crop_seed, dtype)
        else:
            image, window = crop_image(image, options.crop, crop_seed, dtype)
        moved_maps = {
            name: crop_map(decode_label_map(map_value, feature), feature.name, window, options.crop)
            for name, (feature, map_value) in maps.items()
        }
        moved_masks = {
            name: crop_masks(mask_list.values, mask_list.count, mask_list.field.feature.name, window, options.crop)
            for name, mask_list in masks.items()
        }
        shape_before_crop = window.shape
        if tracks_moves:
            moves.append(compute_crop_transform(*window))
    if options.augment is not None:
        augmented = augment_image(
            image,
            options.augment,
            derive_seed(seed, AUGMENT_SEED),
            maps=tuple(moved_maps.values()),
            masks=tuple(moved_masks.values()),
            tracks_moves=tracks_moves,
        )
        image = augmented.image
        moved_maps = dict(zip(moved_maps, augmented.maps, strict=True))
        moved_masks = dict(zip(moved_masks, augmented.masks, strict=True))
        moves += augmented.moves
    return PreparedImage(scale_images(image, options), moved_maps, moved_masks, moves, shape_before_crop)


def scale_images(images: tf.Tensor, options: Images) -> tf.Tensor:
    """Convert images [..., width, channels], 0 to 255, to `options.dtype_name`: normalized, from 0 to 1, or unchanged uint8."""
    if options.normalize is not None:
        return normalize(images, options.normalize, tf.as_dtype(options.dtype_name))
    return images if options.dtype_name == "uint8" else cast_image(images, tf.as_dtype(options.dtype_name))

"""Steps that crop, augment and scale images, with the boxes, points, label maps and masks that move with them."""

from __future__ import annotations

import tensorflow as tf

from tpudata.input.dataset.fields import Field, Fields
from tpudata.input.dataset_ops import ensure, without_autograph
from tpudata.input.elements import get_features, replace_features
from tpudata.input.graph.steps.step import Extras, Step
from tpudata.input.image.image_steps import Masks, PreparedImage, prepare_image, scale_images
from tpudata.input.lists.moves import move_record, move_tables
from tpudata.input.lists.tables import Table
from tpudata.input.options.images import Images
from tpudata.tensor_types import Element

# Extra of a record: the moves of its image, float32 [moves, 2, 3].
_MOVES = "moves"


def make_scale_step(fields: Fields, options: Images) -> Step:
    """Return the step that applies `scale_images` to the images among the columns of a batch."""

    @without_autograph
    def scale(columns: dict[str, tf.Tensor], extras: Extras) -> tuple[dict[str, tf.Tensor], Extras]:
        names = [field.feature.name for field in fields.images]
        return {**columns, **{name: scale_images(columns[name], options) for name in names}}, extras

    return scale


def make_image_step(fields: Fields, options: Images, *, tracks_moves: bool) -> Step:
    """Return the step that crops, augments and scales the images among the columns of a record, with label maps and masks.

    Args:
        fields: fields that are read of each record.
        options: options for images.
        tracks_moves: whether to return how the image was moved, as an extra, so that boxes and points can follow.
    """

    @without_autograph
    def prepare(columns: dict[str, tf.Tensor], extras: Extras) -> tuple[dict[str, tf.Tensor], Extras]:
        """Return the columns with prepared images, and the extras with the moves of the first image if they are tracked."""
        first_image = next(iter(fields.images), None)
        # Label maps and masks belong to the first image.
        maps = {field.feature.name: (field.feature, columns[field.feature.name]) for field in fields.label_maps}
        masks = {
            field.feature.name: Masks(
                field, columns[field.feature.name], columns[fields.find_count_field(field).feature.name]
            )
            for field in fields.masks
        }
        previous_shape_before_crop = None
        moves: list[tf.Tensor] = []
        for field in fields.images:
            name, channels = field.feature.name, field.feature.shape[2]
            assert channels is not None
            # The seed is the same for all images, and so are the draws for images of one size.
            prepared = prepare_image(
                columns[name],
                channels,
                options,
                extras.get("seed"),
                maps if field is first_image else {},
                masks=masks if field is first_image else {},
                tracks_moves=tracks_moves and field is first_image,
            )
            # One crop window serves all images of a record, so images that differ in size before the crop are rejected.
            image = (
                prepared.image
                if field is first_image
                else _ensure_same_size(field, prepared, previous_shape_before_crop)
            )
            previous_shape_before_crop = prepared.shape_before_crop
            columns = {**columns, name: image, **prepared.maps, **prepared.masks}
            moves += prepared.moves
        return columns, {**extras, _MOVES: tf.stack(moves)} if moves else extras

    return prepare


def _ensure_same_size(field: Field, prepared: PreparedImage, previous_shape_before_crop: tf.Tensor | None) -> tf.Tensor:
    """Return a prepared image; fail at run time if it and the previous image differ in size before the crop.

    Args:
        field: field of the image.
        prepared: the image.
        previous_shape_before_crop: int32 [3], the shape of the previous image; None without a crop.
    """
    if prepared.shape_before_crop is None or previous_shape_before_crop is None:
        return prepared.image
    message = (
        f"Feature {field.feature.name}: a record has images of two sizes, of which a crop takes one window. Store images of one"
        " size, or pass size= in place of the crop."
    )
    return ensure(
        prepared.image, tf.reduce_all(tf.equal(prepared.shape_before_crop[:2], previous_shape_before_crop[:2])), message
    )


def make_move_step(tables: tuple[Table, ...], least_visible: float, *, is_batch: bool) -> Step:
    """Return the step that moves boxes and points with their images.

    Args:
        tables: tables with boxes or points.
        least_visible: minimum visible share of a box's area; boxes with less are dropped.
        is_batch: whether elements are batches. They are, unless a transform takes single records after the move: for one record
            at a time, the 60 small operations of a move take as long as the preparation of a small image.
    """
    move = move_tables if is_batch else move_record

    @without_autograph
    def move_features(element: Element, extras: Extras) -> tuple[Element, Extras]:
        features = move(tables, get_features(element), extras[_MOVES], least_visible)
        # Later steps do not need the moves.
        return replace_features(element, features), {name: extras[name] for name in extras if name != _MOVES}

    return move_features

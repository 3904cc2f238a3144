"""RandAugment: a few operations on each image, drawn at random, all of one strength.

Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space" (2019), with AutoAugment's
sixteen operations as in tensorflow/tpu's efficientnet. It runs on single images after their crop: uint8 in, uint8 out.

Label maps and masks of the image turn, shear and move with it, by the nearest pixel; colours and holes leave them unchanged.
Boxes and points of the image follow the moves that are returned.

Nothing here keeps state: the same image and seed give the same result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from tpudata.checks import check, check_integer, convert_integers, is_number
from tpudata.errors import UsageError
from tpudata.input.image import augment_ops as ops
from tpudata.input.lists.moves import IDENTITY, compute_source_transform

MAX_MAGNITUDE = 10


@dataclasses.dataclass(frozen=True)
class RandAugment:
    """`layers` operations on each image, one after the other, each drawn from `OPERATIONS` with equal chance.

    At magnitude 0, the operations that have a strength leave the image unchanged; at 10 they are as strong as AutoAugment's
    strongest. In between they grow in proportion. (In tensorflow/tpu's code some are weaker at 10 than at 0: there solarize does
    nothing at 10, and color fades at 0.)

    Attributes:
        layers: operations on each image.
        magnitude: strength of all of them, from 0 to 10.
        map_fill: class of the pixels of label maps that an operation brings in from outside of the image, where the image becomes
            grey: an integer from 0 to 65535. Many losses and datasets ignore 255.

    Raises:
        UsageError: an option is out of range or of the wrong type.
    """

    layers: int = 2
    magnitude: float = 10
    map_fill: int = 255

    def __post_init__(self) -> None:
        check_integer("RandAugment.layers", self.layers, 1)
        is_magnitude = is_number(self.magnitude, 0, MAX_MAGNITUDE)
        check("RandAugment.magnitude", self.magnitude, is_magnitude, f"a number from 0 to {MAX_MAGNITUDE}")
        check_integer("RandAugment.map_fill", self.map_fill, 0, (1 << 16) - 1)
        convert_integers(self, "layers", "map_fill")


class Draw(NamedTuple):
    """Randomness that an operation needs.

    Attributes:
        sign: float32 scalar, 1 or -1: which way to turn, to move, or to blend.
        centre: float32 [2], y and x in [0, 1): where to cut out.
    """

    sign: tf.Tensor
    centre: tf.Tensor


# Changes at strength 1, which is magnitude 10. Lengths are shares of the image's side: 100 and 80 pixels of 224, as in
# tensorflow/tpu.
_DEGREES = 30.0
_SLOPE = 0.3
_SHIFT = 100 / 224
_HOLE = 80 / 224
_BITS = 4
_ADDITION = 110
_FACTOR = 0.9


class Operation(Protocol):
    """Operation on an image."""

    def __call__(self, image: tf.Tensor, strength: float, draw: Draw, fill: int = ops.FILL) -> tf.Tensor:
        """Return the changed image.

        Args:
            image: uint8 [height, width, 3], of static shape. The operations of `MOVES` also take label maps and masks.
            strength: strength, from 0 to 1.
            draw: randomness.
            fill: value of the pixels that an operation of `MOVES` brings in from outside of the image.
        """


# Operations that move the pixels of an image and of its label maps, each as a function that returns the sources of the pixels.
MOVES: Mapping[str, Callable[[tf.Tensor, float, Draw], ops.PixelSources]] = {
    "rotate": lambda image, strength, draw: ops.make_rotation(image, draw.sign * (_DEGREES * strength)),
    "shear_x": lambda _, strength, draw: ops.make_x_shear(draw.sign * (_SLOPE * strength)),
    "shear_y": lambda _, strength, draw: ops.make_y_shear(draw.sign * (_SLOPE * strength)),
    "translate_x": lambda image, strength, draw: ops.make_x_translation(
        draw.sign * _count_pixels(_SHIFT * strength, image, axis=1)
    ),
    "translate_y": lambda image, strength, draw: ops.make_y_translation(
        draw.sign * _count_pixels(_SHIFT * strength, image, axis=0)
    ),
}


def _make_move(name: str) -> Operation:
    """Return the operation of a name in `MOVES`, for images and label maps."""

    def move_image(image: tf.Tensor, strength: float, draw: Draw, fill: int = ops.FILL) -> tf.Tensor:
        return ops.transform(image, MOVES[name](image, strength, draw), fill)

    return move_image


OPERATIONS: Mapping[str, Operation] = {
    "autocontrast": lambda image, *_: ops.autocontrast(image),
    "equalize": lambda image, *_: ops.equalize(image),
    "invert": lambda image, *_: ops.invert(image),
    "rotate": _make_move("rotate"),
    "posterize": lambda image, strength, *_: ops.posterize(image, 8 - round(_BITS * strength)),
    "solarize": lambda image, strength, *_: ops.solarize(image, 256 - round(256 * strength)),
    "solarize_add": lambda image, strength, *_: ops.solarize_add(image, round(_ADDITION * strength)),
    "color": lambda image, strength, draw, *_: ops.color(image, 1 + draw.sign * (_FACTOR * strength)),
    "contrast": lambda image, strength, draw, *_: ops.contrast(image, 1 + draw.sign * (_FACTOR * strength)),
    "brightness": lambda image, strength, draw, *_: ops.brightness(image, 1 + draw.sign * (_FACTOR * strength)),
    "sharpness": lambda image, strength, draw, *_: ops.sharpness(image, 1 + draw.sign * (_FACTOR * strength)),
    "shear_x": _make_move("shear_x"),
    "shear_y": _make_move("shear_y"),
    "translate_x": _make_move("translate_x"),
    "translate_y": _make_move("translate_y"),
    "cutout": lambda image, strength, draw, *_: ops.cutout(
        image, _count_pixels(_HOLE * strength, image, axis=0), _find_centre(draw, image)
    ),
}


class AugmentedImage(NamedTuple):
    """An augmented image, with its moved label maps and masks.

    Attributes:
        image: uint8 [height, width, 3].
        maps: its label maps.
        masks: the masks of its objects.
        moves: the move of each layer, float32 [2, 3], see `tpudata.input.lists.moves`; empty unless they are requested.
    """

    image: tf.Tensor
    maps: tuple[tf.Tensor, ...]
    masks: tuple[tf.Tensor, ...]
    moves: tuple[tf.Tensor, ...]


def augment_image(
    image: tf.Tensor,
    options: RandAugment,
    seed: tf.Tensor,
    *,
    maps: Sequence[tf.Tensor] = (),
    masks: Sequence[tf.Tensor] = (),
    tracks_moves: bool = False,
) -> AugmentedImage:
    """Augment one image, and move its label maps and masks with its pixels.

    Args:
        image: uint8 [height, width, 3], of static shape.
        options: number and strength of operations.
        seed: int32 [2]: the same seed gives the same operations. It differs from the crop's, so that the draws are unrelated.
        maps: its label maps: integers [height, width, 1], of its height and width.
        masks: lists of masks of its objects: uint8 [entries, height, width], of its height and width, 0 outside.
        tracks_moves: whether to return how the image was moved, so that boxes and points can follow.

    Raises:
        UsageError: the image is of the wrong dtype or shape.
    """
    if image.dtype != tf.uint8 or image.shape.rank != 3 or image.shape[2] != 3 or not image.shape.is_fully_defined():
        raise UsageError(
            f"RandAugment takes uint8 [height, width, 3] of static shape; this image is {image.dtype.name} {image.shape}."
            " Crop or resize colour images first, and omit RandAugment for others."
        )
    # The masks of a list are channels of one tensor, and so move together.
    tensors = [image, *maps, *(tf.transpose(mask_list, (1, 2, 0)) for mask_list in masks)]
    moves: list[tf.Tensor] = []
    fills = [options.map_fill] * len(maps) + [0] * len(masks)
    branches = _trace_branches(tensors, fills, options.magnitude / MAX_MAGNITUDE, tracks_moves=tracks_moves)
    move_specs = [tf.TensorSpec((2, 3), tf.float32)] if tracks_moves else []
    # Draws of a layer: the operation, its sign, and the y and x of its centre.
    draws = tf.random.stateless_uniform([options.layers, 4], seed)
    for layer in range(options.layers):
        operation_draw, centre = draws[layer, 0], draws[layer, 2:]
        sign = tf.where(draws[layer, 1] < 0.5, 1.0, -1.0)
        # `tf.switch_case` would put the nodes of all operations into the graph of every layer, and visit them all.
        case_results = tf.raw_ops.StatelessCase(
            # A draw is a float32 below 1, and its product with 16 operations is exact, so the index is never 16.
            branch_index=tf.cast(operation_draw * len(OPERATIONS), tf.int32),
            input=[*tensors, sign, centre],
            Tout=[tensor.dtype for tensor in (*tensors, *move_specs)],
            branches=branches,
            output_shapes=[tensor.shape for tensor in (*tensors, *move_specs)],
        )
        tensors = list(case_results[: len(tensors)])
        moves += case_results[len(tensors) :]
    moved_masks = [tf.transpose(mask_list, (2, 0, 1)) for mask_list in tensors[1 + len(maps) :]]
    return AugmentedImage(tensors[0], tuple(tensors[1 : 1 + len(maps)]), tuple(moved_masks), tuple(moves))


def _trace_branches(
    tensors: Sequence[tf.Tensor], fills: Sequence[int], strength: float, *, tracks_moves: bool
) -> list[tf.types.experimental.ConcreteFunction]:
    """Trace each operation: a function of (image, *maps, sign, centre) that returns [image, *maps], and the move if tracked.

    Operations that do not move pixels return the maps unchanged.

    Args:
        tensors: the image, and its maps; masks are maps here.
        fills: for each map the value of pixels from outside of it.
        strength: strength of the operations, from 0 to 1.
        tracks_moves: whether the functions return how the image was moved, so that boxes and points can follow.
    """

    def trace(name: str, operation: Operation) -> tf.types.experimental.ConcreteFunction:
        """Return `change` for an operation, traced for the shapes of `tensors`."""

        def change(image: tf.Tensor, *maps_and_draw: tf.Tensor) -> list[tf.Tensor]:
            """Return [image, *maps] after the operation, and the move if tracked, from (image, *maps, sign, centre)."""
            *maps, sign, centre = maps_and_draw
            draw = Draw(sign, centre)
            if name in MOVES:
                maps = [operation(label_map, strength, draw, fill) for label_map, fill in zip(maps, fills, strict=True)]
            moves = [_find_move(name, image, strength, draw)] if tracks_moves else []
            return [operation(image, strength, draw), *maps, *moves]

        return tf.function(change, autograph=False).get_concrete_function(
            *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors),
            tf.TensorSpec((), tf.float32),
            tf.TensorSpec((2,), tf.float32),
        )

    return [trace(name, operation) for name, operation in OPERATIONS.items()]


def _find_move(name: str, image: tf.Tensor, strength: float, draw: Draw) -> tf.Tensor:
    """Return the transform by which an operation moves pixels, float32 [2, 3]: the identity unless it is one of `MOVES`.

    Args:
        name: name of the operation.
        image: uint8 [height, width, 3], of static shape.
        strength: strength, from 0 to 1.
        draw: the randomness with which the operation is called.
    """
    if name not in MOVES:
        return tf.constant(IDENTITY)
    sources = MOVES[name](image, strength, draw)
    return compute_source_transform(*sources, *image.shape[:2])


def _count_pixels(share: float, image: tf.Tensor, *, axis: int) -> int:
    """Return a share of a side of the image in pixels, rounded."""
    side: int = image.shape[axis]
    return math.floor(share * side + 0.5)


def _find_centre(draw: Draw, image: tf.Tensor) -> tf.Tensor:
    """Return the pixel of the drawn centre, int32 [2], y and x."""
    return tf.cast(draw.centre * tf.constant(image.shape.as_list()[:2], tf.float32), tf.int32)

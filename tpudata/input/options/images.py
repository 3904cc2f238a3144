"""Options for images, checked against the features that a dataset has."""

from __future__ import annotations

import dataclasses
import operator
from types import NoneType

import tensorflow as tf

from tpudata.checks import check, check_argument, convert_integers, is_number
from tpudata.error_text.values import format_value
from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset.fields import Field, Fields
from tpudata.input.image.augment import RandAugment
from tpudata.input.image.crop import CentreCrop, TrainCrop
from tpudata.input.image.mix import CutMix, MixUp
from tpudata.input.image.normalize import Normalize
from tpudata.input.lists.tables import check_movable, has_annotations

_DTYPES = ("uint8", "float32", "bfloat16", "float16")
_AXES = "NHWC"
# Channels of most images; an array of which only the first size is one of them is not [height, width, channels].
_CHANNELS = (1, 3, 4)
# Options that accept only records with one image.
_SINGLE_IMAGE_OPTIONS = ("augment", "mix")
# Pixels of a side.
_MAX_SIZE = 16384


@dataclasses.dataclass(frozen=True)
class Images:
    """Options of `make_input_fn` for images, in the order in which they apply.

    Label maps (features of encoding "label_map") keep their values: `size` and `crop` give them the window and the size of the
    image, each pixel being the nearest one; flips and moves of `augment` are the image's; CutMix pastes the same rectangle, and
    `transpose` also turns them. `normalize` and `dtype` leave them unchanged, and MixUp rejects them.

    Boxes, points and masks that `pad` feeds (`PREFIX/bbox/ymin`, `PREFIX/bbox`, `PREFIX/keypoint/y`, `PREFIX/mask`) move with
    crops, flips and moves of `augment`: docs/feed/lists.md has the rules. `mix` rejects them.

    Several images of a record, such as pairs, get the same steps; a crop takes the same window of each, mirrored or not, and
    rejects records whose images differ in size. `augment` and `mix` are for one image. Label maps, boxes and masks belong to
    the first one.

    Attributes:
        size: (height, width) to resize encoded images to (bilinear, antialiased, aspect ratio not kept). Needed if sizes vary,
            unless `crop` is given.
        crop: `TrainCrop(224)` takes a random window of each image, `CentreCrop(224)` the middle; only this part of a JPEG is
            decoded.
        augment: `RandAugment()` augments each image after its crop. Training only.
        normalize: `Normalize.imagenet()`, or other means and deviations; gives floats, so it needs a `dtype` of floats.
        dtype: dtype of images, uint8 [height, width, channels] as stored: "uint8", values 0 to 255, takes a quarter of float32's
            transfer to the device; the model then normalizes. "float32", "bfloat16" and "float16" yield values 0 to 1, or
            normalized ones. Other uint8 features are numbers, and stay unchanged.
        mix: `MixUp()` or `CutMix()` mixes each image of a batch with another one of it; a class becomes a distribution over the
            classes, float32 [B, classes], and labels of several classes, or floats, become weighted means. Training only.
        transpose: order of the axes of a batch of images, N (images), H, W and C: a TPU takes "HWCN" without
            a relayout. The model transposes back, and the batch is no longer the first axis.
        least_visible: minimum share of a box's area that must stay visible after a crop or `augment`, from 0 to 1; other boxes
            are dropped, with their entries of all lists of their pattern. 0 drops only boxes that leave the image.

    Raises:
        UsageError: an option is out of range or of the wrong type, or does not fit another one.
    """

    size: tuple[int, int] | None = None
    crop: TrainCrop | CentreCrop | None = None
    augment: RandAugment | None = None
    normalize: Normalize | None = None
    dtype: tf.DType | str = "uint8"
    mix: MixUp | CutMix | None = None
    transpose: str | None = None
    least_visible: float = 0.0

    def __post_init__(self) -> None:
        _check_type("crop", self.crop, TrainCrop, CentreCrop)
        _check_type("augment", self.augment, RandAugment)
        _check_type("normalize", self.normalize, Normalize)
        _check_type("mix", self.mix, MixUp, CutMix)
        if self.size is not None:
            _check_size(self.size)
            convert_integers(self, "size")
        if self.size is not None and self.crop is not None:
            raise UsageError(f"size={self.size}: crop={self.crop} has a size, too. Omit one of them.")
        check("least_visible", self.least_visible, is_number(self.least_visible, 0, 1), "a number from 0 to 1")
        if self.dtype_name not in _DTYPES:
            raise UsageError(f"dtype={self.dtype_name}: images are fed as one of {', '.join(_DTYPES)}.")
        if self.normalize is not None and self.dtype_name == "uint8":
            raise UsageError('normalize: it gives floats. Pass dtype="bfloat16" (or float32, float16) with it.')
        axes = self.transpose
        are_axes = axes is None or (isinstance(axes, str) and sorted(axes) == sorted(_AXES))
        check_argument(
            "transpose", axes, are_axes, "the order of a batch's axes N (images), H, W and C, such as 'HWCN'"
        )

    @property
    def dtype_name(self) -> str:
        """Name of `dtype`, such as "uint8"; its repr if TensorFlow has no such type."""
        try:
            return str(tf.as_dtype(self.dtype).name)
        except (TypeError, ValueError):
            return format_value(self.dtype)

    @property
    def draws(self) -> bool:
        """Whether anything is drawn at random."""
        return isinstance(self.crop, TrainCrop) or self.augment is not None or self.mix is not None

    @property
    def moves_pixels(self) -> bool:
        """Whether a step changes the positions of pixels in the image."""
        return self.crop is not None or self.augment is not None

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """For each axis of the transposed images its index in NHWC, as `tf.transpose` takes them; None to keep NHWC."""
        if self.transpose is None or self.transpose == _AXES:
            return None
        return tuple(_AXES.index(axis) for axis in self.transpose)

    def check_mode(self, training: bool) -> None:
        """Check that evaluation draws nothing at random; UsageError names the option that does."""
        if training:
            return
        if isinstance(self.crop, TrainCrop):
            raise UsageError(f"crop=TrainCrop: it is drawn at random. Evaluate with crop=CentreCrop({self.crop.size}).")
        for name in ("augment", "mix"):
            if getattr(self, name) is not None:
                raise UsageError(f"{name}: it is for training. Omit it, or pass training=True.")

    def check_fields(self, fields: Fields) -> None:
        """Check that the features fit the options.

        Raises:
            UsageError: an option needs images, a single image, a different number of channels, or boxes that move; boxes, points,
                masks or label maps cannot follow the image; or the label cannot be mixed.
        """
        if self.dtype_name != "uint8" and not fields.images:
            raise UsageError(
                f"dtype={self.dtype_name}: it is of images, uint8 [height, width, channels], and the features have none. Omit it."
            )
        if self.least_visible and not (self.moves_pixels and has_annotations(fields)):
            raise UsageError(
                f"least_visible={self.least_visible}: it is for boxes that move with a crop or augment. Omit it, or pass crop= and"
                " the boxes in pad=."
            )
        options = [name for name in ("crop", "augment", "normalize", "mix", "transpose") if getattr(self, name)]
        # Without these options, any images are fed unchanged.
        if not options:
            return
        if not fields.images:
            raise UsageError(
                f"{options[0]}: it is for images, uint8 [height, width, channels], and the features have none. Omit it."
            )
        single_image_options = [name for name in options if name in _SINGLE_IMAGE_OPTIONS]
        if len(fields.images) > 1 and single_image_options:
            raise UsageError(
                f"{single_image_options[0]}: it is for one image, uint8 [height, width, channels], and the features have"
                f" {len(fields.images)} ({', '.join(image.name for image in fields.images)}). Name one with features=."
            )
        for image in fields.images:
            self._check_image(image, options[0])
        if self.mix is not None and has_annotations(fields):
            raise UsageError(
                "mix: the boxes, points and masks of two images make no sense in one of them. Omit it, or the boxes."
            )
        self._check_label_maps(fields)
        if self.moves_pixels:
            check_movable(fields, "crop" if self.crop is not None else "augment")
        # CutMix of label maps needs no label.
        if isinstance(self.mix, CutMix) and fields.label_maps and fields.label is None:
            return
        if self.mix is not None and not _can_mix(fields.label):
            got = "no label" if fields.label is None else f"{fields.label.name!r}"
            raise UsageError(
                f"mix: it mixes labels, too (got {got}, expected one class of a known number, several classes, or floats). Omit it."
            )

    def _check_image(self, image: Field, option: str) -> None:
        """Check that an image has the channels that the options need; UsageError if not.

        Args:
            image: field of the image.
            option: an option that needs images; a message about an image with its channels first names it.
        """
        shape = image.feature.shape
        channels = shape[2]
        if channels not in _CHANNELS and shape[0] in _CHANNELS:
            raise UsageError(
                f"{option}: it is for images [height, width, channels], and {image.name!r} of shape {shape} has its channels"
                " first. Omit it, or write records with the channels last."
            )
        if self.augment is not None and channels != 3:
            raise UsageError(f"augment: it is for colour images, and these have {channels} channels. Omit it.")
        if self.normalize is not None and len(self.normalize.mean) not in (1, channels):
            raise UsageError(
                f"normalize has {len(self.normalize.mean)} means, and {image.name!r} has {channels} channels. Pass one for"
                " each, or one for all."
            )

    def _check_label_maps(self, fields: Fields) -> None:
        """Check that label maps can be moved with the image, and that no other feature would have to move; UsageError if not."""
        image, maps = fields.images[0], fields.label_maps
        moving_option = next((name for name in ("crop", "augment", "mix") if getattr(self, name)), None)
        others = [field for field in fields.inputs if field not in (*fields.images, *maps)]
        for field in others:
            size = field.feature.shape[:2]
            if moving_option and len(size) == 2 and size == image.feature.shape[:2]:
                raise UsageError(
                    f"{moving_option}: {field.name!r} has a value for each pixel of {image.name!r}, and would not move with it"
                    f" (got {field.feature.dtype} of shape {field.feature.shape}, expected encoding label_map). Declare it so, or"
                    f" omit {moving_option}."
                )
        if maps and isinstance(self.mix, MixUp):
            raise UsageError(
                f"mix=MixUp: classes have no mean, and {maps[0].name!r} is a label map. Omit it, or pass CutMix()."
            )
        map_fill = 0 if self.augment is None else self.augment.map_fill
        if map_fill > 255 and any(field.feature.dtype == "uint8" for field in maps):
            raise UsageError(
                f"RandAugment.map_fill: too large for label maps of uint8 (got {format_value(map_fill)}, expected up to 255)."
            )
        # With a crop, `crop_map` compares the sizes of each record's image and maps when the record is read.
        for field in maps:
            if self.crop is None and field.shape[:2] != image.shape[:2]:
                raise UsageError(
                    f"images: the label map {field.name!r} is {field.shape[:2]}, and the image {image.shape[:2]}. Store maps of"
                    " the images' sizes, or pass size=(height, width)."
                )


def _check_size(size: tuple[int, int]) -> None:
    """Check that the option `size` is (height, width), each from 1 to `_MAX_SIZE`; UsageError if not."""
    try:
        height, width = (operator.index(side) for side in size)
    except (TypeError, ValueError):
        raise UsageError(f"size={format_value(size)}: pass (height, width).") from None
    if not 1 <= height <= _MAX_SIZE or not 1 <= width <= _MAX_SIZE:
        raise UsageError(f"size={format_value(size)}: height and width are 1 or more, and {_MAX_SIZE} at most.")


def count_label_values(label: Field) -> int:
    """Return the number of values that a label can have, from 0 on: with a label offset of 1, one more than there are classes.

    Raises:
        FeatureError: the number of classes is unknown.
    """
    if label.feature.num_classes is None:
        raise FeatureError(
            f"mix: the number of classes is unknown (got integers for the label {label.name!r}). Let transform return floats."
        )
    return label.feature.num_classes + label.feature.label_offset


def _can_mix(label: Field | None) -> bool:
    """Return whether there are labels that can be mixed: one of a known number of classes, or floats, such as multi-hot classes."""
    if label is None:
        return False
    is_class = label.shape == () and label.dtype == "int32" and label.feature.num_classes is not None
    return is_class or label.dtype == "float32"


def _check_type(name: str, option: object, *types: type) -> None:
    """Check that an option is None or of one of the classes `types`; UsageError if not."""
    # Examples for the classes that need arguments, or have a named preset.
    example = {"crop": "TrainCrop(224)", "normalize": "Normalize.imagenet()"}.get(name, f"{types[0].__name__}()")
    expected = f"None or tpudata.{' or tpudata.'.join(option_type.__name__ for option_type in types)}"
    check(name, option, isinstance(option, (*types, NoneType)), expected, f"Pass one, such as tpudata.{example}.")

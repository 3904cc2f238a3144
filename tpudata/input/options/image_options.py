"""What is done with images: what can be asked for, and whether the dataset has an image to do it with."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Field, Fields
from tpudata.input.image.augment import RandAugment
from tpudata.input.image.crop import CentreCrop, TrainCrop
from tpudata.input.image.mix import CutMix, MixUp
from tpudata.input.image.normalize import Normalize

_DTYPES = ("uint8", "float32", "bfloat16", "float16")
_AXES = "NHWC"


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """What is done with images, in this order; the attributes are the arguments of `make_input_fn`.

    Raises:
        UsageError: an option is of another type, or does not fit another one.
    """

    crop: TrainCrop | CentreCrop | None = None
    augment: RandAugment | None = None
    normalize: Normalize | None = None
    dtype: str = "uint8"
    mix: MixUp | CutMix | None = None
    transpose: str | None = None

    def __post_init__(self) -> None:
        _check_type("crop", self.crop, TrainCrop, CentreCrop)
        _check_type("augment", self.augment, RandAugment)
        _check_type("normalize", self.normalize, Normalize)
        _check_type("mix", self.mix, MixUp, CutMix)
        if self.dtype not in _DTYPES:
            raise UsageError(f"dtype={self.dtype}: images are fed as one of {', '.join(_DTYPES)}.")
        if self.normalize is not None and self.dtype == "uint8":
            raise UsageError('normalize: it gives floats. Pass dtype="bfloat16" (or float32, float16) with it.')
        if self.transpose is not None and (
            not isinstance(self.transpose, str) or sorted(self.transpose) != sorted(_AXES)
        ):
            raise UsageError(
                f"transpose={self.transpose!r}: pass the order of a batch's axes N (images), H, W and C, such as 'HWCN'."
            )

    @property
    def draws(self) -> bool:
        """Whether anything is drawn at random."""
        return isinstance(self.crop, TrainCrop) or self.augment is not None or self.mix is not None

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """`transpose` as numbers of axes, or None where they stay."""
        return None if self.transpose in (None, _AXES) else tuple(_AXES.index(axis) for axis in self.transpose or "")

    def check_mode(self, training: bool) -> None:
        """Checks that nothing is drawn in evaluation; UsageError names what is."""
        if training:
            return
        if isinstance(self.crop, TrainCrop):
            raise UsageError(f"crop=TrainCrop: it is drawn at random. Evaluate with crop=CentreCrop({self.crop.size}).")
        for name in ("augment", "mix"):
            if getattr(self, name) is not None:
                raise UsageError(f"{name}: it is for training. Leave it out, or pass training=True.")

    def check_fields(self, fields: Fields) -> None:
        """Checks that the features have what the options are for.

        Raises:
            UsageError: no image, several, or one of other channels; or a label that cannot be mixed.
        """
        if self.dtype != "uint8" and not any(field.feature.dtype == "uint8" for field in fields.inputs):
            raise UsageError(f"dtype={self.dtype}: it is of images, and the features have none. Leave it out.")
        asked = [name for name in ("crop", "augment", "normalize", "mix", "transpose") if getattr(self, name)]
        if not asked:
            return
        images = fields.images
        if len(images) != 1:
            has = f"{len(images)} ({', '.join(i.name for i in images)}); name one with features=" if images else "none"
            raise UsageError(
                f"{asked[0]}: it is for one image, uint8 [height, width, channels], and the features have {has}."
            )
        channels = images[0].feature.shape[2]
        if self.augment is not None and channels != 3:
            raise UsageError(f"augment: it is for colour images, and these have {channels} channels. Leave it out.")
        if self.normalize is not None and len(self.normalize.mean) not in (1, channels):
            raise UsageError(
                f"normalize has {len(self.normalize.mean)} means, and the images have {channels} channels. Pass one for"
                " each, or one for all."
            )
        if self.mix is not None and (fields.label is None or fields.label.feature.num_classes is None):
            raise UsageError("mix: it mixes labels, too, and the dataset has no labels with a number of classes.")


def label_classes(label: Field) -> int:
    """How many different labels there are as stored: with an offset of 1, one more than classes."""
    assert label.feature.num_classes is not None
    return label.feature.num_classes + label.feature.label_offset


def _check_type(name: str, value: Any, *types: type) -> None:
    if value is not None and not isinstance(value, types):
        example = {"crop": "TrainCrop(224)", "normalize": "Normalize.imagenet()"}.get(name, f"{types[0].__name__}()")
        raise UsageError(
            f"{name}={value!r}: allowed are None and tpudata.{' and tpudata.'.join(kind.__name__ for kind in types)},"
            f" such as tpudata.{example}."
        )

"""Which features of a record are read, what they are called for a model, and what static shape they have.

A layout names the features that a model is fed; the label is set apart; everything else is read only when asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tpudata.errors import DatasetError, FeatureError, UsageError
from tpudata.format import Feature, Manifest, Split

# What a model is fed, by layout; a dataset of another layout feeds every feature that is not its label.
_FED = {
    "imagenet": ("image/encoded",),
    "raw": ("image_raw",),
    "text": ("text",),
    "tokens": ("input_ids", "segment_ids", "positions"),
}
_LABELS = ("image/class/label", "label")
# The channels that `tf.io.decode_image` decodes to.
_CHANNELS = (1, 3, 4)


@dataclasses.dataclass(frozen=True)
class Field:
    """A feature that is read.

    Attributes:
        feature: what stands in the record.
        name: its key in the features that a model is fed.
        shape: static shape of one record's value once decoded.
    """

    feature: Feature
    name: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int | None:
        """Size of one decoded value, or None where it is a string."""
        if self.feature.dtype == "string":
            return None
        # int64 leaves as int32.
        size = 4 if self.feature.dtype == "int64" else np.dtype(self.feature.dtype).itemsize
        return size * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Fields:
    """What is read of each record.

    Attributes:
        inputs: what a model is fed, by name.
        label: the label, or None where records have none.
    """

    inputs: tuple[Field, ...]
    label: Field | None

    @property
    def all(self) -> tuple[Field, ...]:
        """Inputs and label."""
        return self.inputs if self.label is None else (*self.inputs, self.label)

    def record_bytes(self, split: Split) -> int:
        """About what one decoded record of a split takes in memory, in bytes."""
        # A string's decoded size is not known; it cannot be larger than the record that holds it.
        string = math.ceil(split.bytes / split.records)
        sizes = [field.bytes for field in self.all]
        return max(1, sum(size for size in sizes if size is not None) + (string if None in sizes else 0))


def select_fields(
    manifest: Manifest,
    *,
    only: str | None = None,
    extra: Sequence[str] = (),
    image_size: tuple[int, int] | None = None,
) -> Fields:
    """Chooses what is read of each record.

    Args:
        manifest: the dataset's.
        only: name of the one input to read, instead of all that the layout feeds.
        extra: names of further features, as the manifest has them.
        image_size: (height, width) to resize encoded images to.

    Raises:
        FeatureError: a feature is not there, or has no static shape.
        UsageError: `image_size` without an encoded image, or an extra feature that is read anyway.
    """
    label = next((f for f in manifest.features if f.name in _LABELS), None)
    fed = _FED.get(manifest.layout)
    chosen = [f for f in manifest.features if (f is not label if fed is None else f.name in fed)]
    if not chosen:
        raise FeatureError(
            f"Layout {manifest.layout!r} feeds {', '.join(fed or ('any feature but the label',))}, and the dataset has"
            f" {', '.join(f.name for f in manifest.features) or 'no features'}. Convert it again with another layout."
        )
    if only is not None:
        names = [_short_name(f) for f in chosen]
        if only not in names:
            raise FeatureError(f"features={only!r}: the dataset feeds {', '.join(names)}. Name one of these.")
        chosen = [chosen[names.index(only)]]
    for name in extra:
        if name in (f.name for f in (*chosen, label) if f is not None):
            raise UsageError(f"extra_features: {name!r} is read anyway; leave it out.")
        try:
            chosen.append(manifest.feature(name))
        except DatasetError as error:
            raise FeatureError(f"extra_features: {error}") from None
    if image_size is not None and not any(f.encoding == "image" for f in chosen):
        raise UsageError(f"image_size={image_size}: the dataset has no encoded images to resize. Leave it out.")
    # Extra features keep their full names: `image/filename` says more than `filename`.
    inputs = tuple(
        Field(f, f.name if f.name in extra else _short_name(f), _static_shape(f, image_size)) for f in chosen
    )
    names = [field.name for field in inputs]
    if len(set(names)) != len(names):
        raise FeatureError(
            f"Two features would have one name: {', '.join(sorted(names))}. Choose fewer extra_features."
        )
    return Fields(inputs, None if label is None else Field(label, label.name, _label_shape(label)))


def _short_name(feature: Feature) -> str:
    """`image` for `image/encoded` and `image_raw`, otherwise the feature's own name."""
    suffix = {"image": "/encoded", "raw": "_raw"}.get(feature.encoding or "", "")
    return feature.name.removesuffix(suffix) or feature.name


def _static_shape(feature: Feature, image_size: tuple[int, int] | None) -> tuple[int, ...]:
    shape = feature.shape
    if feature.encoding == "image":
        channels = shape[2]
        if channels not in _CHANNELS:
            raise FeatureError(
                f"Feature {feature.name!r}: {channels} channels; images decode to 1, 3 or 4. Convert them again."
            )
        shape = (*(image_size or shape[:2]), channels)
    static = tuple(size for size in shape if size is not None)
    if len(static) == len(shape):
        return static
    if feature.encoding == "image":
        mend = "Pass image_size=(height, width), or --image-size HxW to a command: every image is then resized to it."
    else:
        mend = "Leave it out, or convert the dataset with one size for all records."
    raise FeatureError(
        f"Feature {feature.name!r}: shape {feature.shape} varies between records (None), and a TPU takes one static shape. {mend}"
    )


def _label_shape(feature: Feature) -> tuple[int, ...]:
    if feature.kind != "int64" or feature.shape != ():
        raise FeatureError(
            f"Feature {feature.name!r}: a label is one int64 per record; this is {feature.kind} of shape {feature.shape}."
        )
    return ()

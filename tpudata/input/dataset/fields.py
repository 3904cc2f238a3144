"""Fields of a record: the features that are read, their names for a model, and their static shapes.

A layout names the features that a model is fed; the label is separate; everything else is read only on request.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tpudata.errors import DatasetError, FeatureError, UsageError
from tpudata.format import Feature, Manifest, Split
from tpudata.format.manifest.model_features import FED_BY_LAYOUT, fed_features, is_sequence, label_feature, short_name

# The channels that `tf.io.decode_image` decodes to.
_CHANNELS = (1, 3, 4)
# Marks padding until the model's pad id replaces it: no id is this small.
PADDING = -(2**31)
# Fix for a record that does not match the manifest.
CONVERT_AGAIN = "Convert the dataset again."
# Fix for features that match the manifest and cannot be fed: converted again, they would be the same.
PARSE = "Pass parse= to make_input_fn, which takes records apart itself."


@dataclasses.dataclass(frozen=True)
class Field:
    """A feature that is read.

    Attributes:
        feature: the stored feature.
        name: its key in the features that a model is fed.
        shape: static shape of one record's value once decoded.
        is_encoded: whether an image or a label map stays encoded, so that a crop can decode only its window; its shape is ().
        is_whole: whether the value is the whole record, as bytes.
        pads: whether records have any number of integers, and `PADDING` fills them up to shape; int32 once decoded.
        cuts: whether values longer than shape are truncated instead of an error.
    """

    feature: Feature
    name: str
    shape: tuple[int, ...]
    is_encoded: bool = False
    is_whole: bool = False
    pads: bool = False
    cuts: bool = False

    @property
    def dtype(self) -> str:
        """numpy's name of the decoded value's dtype, or "string"."""
        if self.is_encoded:
            return "string"
        # A TPU takes neither.
        is_narrowed = self.feature.dtype == "int64" or (self.feature.is_label_map and self.feature.dtype == "uint16")
        return "int32" if is_narrowed or self.pads else self.feature.dtype

    @property
    def bytes(self) -> int | None:
        """Size of one decoded value, or None for a string."""
        if self.dtype == "string":
            return None
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Fields:
    """Fields that are read of each record.

    Attributes:
        inputs: fields that a model is fed, by name.
        label: the label, or None without labels.
    """

    inputs: tuple[Field, ...]
    label: Field | None

    @classmethod
    def of_whole_records(cls, name: str) -> Fields:
        """Return the fields for whole records, called `name`."""
        return cls((Field(Feature(name, "bytes", "string"), name, (), is_whole=True),), None)

    @property
    def all(self) -> tuple[Field, ...]:
        """Inputs and label."""
        return self.inputs if self.label is None else (*self.inputs, self.label)

    @property
    def images(self) -> tuple[Field, ...]:
        """The inputs that are images: they alone are cropped, scaled, normalised and mixed."""
        return tuple(field for field in self.inputs if field.feature.is_image)

    @property
    def label_maps(self) -> tuple[Field, ...]:
        """The inputs that are label maps: they are cropped, resized and moved as the image is, and keep their values."""
        return tuple(field for field in self.inputs if field.feature.is_label_map)

    def record_bytes(self, split: Split) -> int:
        """Estimate the memory of one decoded record of a split, in bytes."""
        # A string's decoded size is unknown; it is at most the record's.
        string = math.ceil(split.bytes / split.records)
        sizes = [field.bytes for field in self.all]
        return max(1, sum(size for size in sizes if size is not None) + (string if None in sizes else 0))


def select_fields(
    manifest: Manifest,
    *,
    only: str | None = None,
    extra: Sequence[str] = (),
    image_size: tuple[int, int] | None = None,
    keep_encoded: bool = False,
    label_name: str | None = None,
    sequence_length: int | Mapping[str, int] | None = None,
    truncate: bool = False,
    buckets: Sequence[int] | None = None,
    hint: str = PARSE,
) -> Fields:
    """Choose the fields that are read of each record.

    Args:
        manifest: manifest of the dataset.
        only: name of the one input to read, instead of all that the layout feeds.
        extra: names of further features, as in the manifest.
        image_size: (height, width) to resize encoded images and label maps to.
        keep_encoded: do not decode images and label maps.
        label_name: name of the label, unless it is one of the usual names.
        sequence_length: length to which integer sequences of varying length are padded, or that of each by name.
        truncate: cut longer ones.
        buckets: the bucket lengths, if given; `sequence_length` is then the longest.
        hint: fix if the features cannot be fed as in the manifest.

    Raises:
        FeatureError: a feature is missing, or has no static shape.
        UsageError: `image_size` without an encoded image, `sequence_length` without a sequence whose length varies, or an extra
            feature that is read anyway.
    """
    label = label_feature(manifest, label_name)
    fed = FED_BY_LAYOUT.get(manifest.layout)
    chosen = fed_features(manifest, label)
    if not chosen and label is not None and fed is None:
        raise FeatureError(f"The only feature is the label, {label.name!r}, and a model is fed others. Name one more.")
    if not chosen:
        raise FeatureError(
            f"Layout {manifest.layout!r} feeds {', '.join(fed or ('any feature but the label',))}, and the dataset has"
            f" {', '.join(f.name for f in manifest.features) or 'no features'}. Convert it again with another layout."
        )
    if only is not None:
        names = [short_name(f) for f in chosen]
        if only not in names:
            raise FeatureError(f"features={only!r}: the dataset feeds {', '.join(names)}. Name one of these.")
        chosen = [chosen[names.index(only)]]
    for name in extra:
        if name in (f.name for f in (*chosen, label) if f is not None):
            raise UsageError(f"extra_features: {name!r} is read anyway. Omit it.")
        try:
            chosen.append(manifest.feature(name))
        except DatasetError as error:
            raise FeatureError(f"extra_features: {error}") from None
    if image_size is not None and not any(f.encoding == "image" for f in chosen) and not _are_label_maps(chosen):
        raise UsageError(f"size={image_size}: the dataset has no encoded images to resize. Omit it.")
    if sequence_length is not None and not any(is_sequence(f) for f in chosen):
        asked = f"sequence_length={sequence_length}" if buckets is None else f"buckets={buckets}"
        raise UsageError(
            f"{asked}: it is for sequences of tokens whose length varies, and the features"
            f" {', '.join(f.name for f in chosen)} are none. Omit it."
        )
    named = {short_name(f) for f in chosen if is_sequence(f)}
    lengths = sequence_length if isinstance(sequence_length, Mapping) else dict.fromkeys(named, sequence_length)
    if not lengths.keys() <= named:
        raise UsageError(
            f"sequence_length={sequence_length}: a name is of no sequence whose length varies (got"
            f" {', '.join(sorted(lengths))}, expected {', '.join(sorted(named))}). Change it."
        )
    # Extra features keep their full names: `image/filename` is clearer than `filename`.
    inputs = tuple(
        Field(f, name, (length,), pads=True, cuts=truncate)
        if is_sequence(f) and (length := lengths.get(short_name(f))) is not None
        else _field(f, name, image_size, keep_encoded, hint)
        for f, name in ((f, f.name if f.name in extra else short_name(f)) for f in chosen)
    )
    names = [field.name for field in inputs]
    if len(set(names)) != len(names):
        raise FeatureError(
            f"Two features would have one name: {', '.join(sorted(names))}. Choose fewer extra_features."
        )
    return Fields(inputs, None if label is None else Field(label, label.name, _label_shape(label, hint)))


def _field(feature: Feature, name: str, image_size: tuple[int, int] | None, keep_encoded: bool, hint: str) -> Field:
    if feature.encoding == "image" and feature.shape[2] not in _CHANNELS:
        raise FeatureError(f"Feature {feature.name!r}: {feature.shape[2]} channels; images decode to 1, 3 or 4. {hint}")
    if feature.is_image_file and keep_encoded:
        return Field(feature, name, (), is_encoded=True)
    return Field(feature, name, _static_shape(feature, image_size, hint))


def _are_label_maps(features: Sequence[Feature]) -> bool:
    """Return whether there are label maps without an image, to whose size they would have to keep."""
    return any(f.is_label_map for f in features) and not any(f.is_image for f in features)


def _static_shape(feature: Feature, image_size: tuple[int, int] | None, hint: str) -> tuple[int, ...]:
    shape = feature.shape
    if feature.is_image_file:
        shape = (*(image_size or shape[:2]), shape[2])
    static = tuple(size for size in shape if size is not None)
    if len(static) == len(shape):
        return static
    if feature.is_image_file:
        hint = (
            "Pass images=tpudata.Images(size=(height, width)), or --image-size HxW to a command: every image is then resized to"
            " it. Or pass crop=tpudata.TrainCrop(224) there and, in evaluation, tpudata.CentreCrop(224); --crop 224 to a command."
        )
    elif is_sequence(feature):
        hint = (
            "Pass tokens=tpudata.Tokens(sequence_length=N), or --sequence-length N to a command, to pad all records to N values;"
            " or Tokens(buckets=(64, 128, ...)) for several lengths."
        )
    else:
        hint = f"Omit it, or give all records one size. {hint}"
    raise FeatureError(
        f"Feature {feature.name!r}: shape {feature.shape} varies between records (None), and a TPU takes one static shape. {hint}"
    )


def _label_shape(feature: Feature, hint: str) -> tuple[int, ...]:
    if feature.kind != "int64" or feature.shape != ():
        raise FeatureError(
            f"Feature {feature.name!r}: a label is one int64 per record; this is {feature.kind} of shape {feature.shape}. {hint}"
        )
    return ()

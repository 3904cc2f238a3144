"""From an image to a record, in one of two feature layouts.

`imagenet`, encoded images:

    image/encoded       JPEG or PNG                          image/channels      1 or 3
    image/format        "JPEG" or "PNG"                      image/class/label   int, or a list of them
    image/height        pixels                               image/class/text    the class's name, or a list of them
    image/width         pixels                               image/filename      the key: path below the input
    image/colorspace    "grayscale" or "RGB"

`raw`, pixels of one size:

    image_raw           uint8 [height, width, channels]      label               int, or a list of them

and in both the extra features of the source, under their own names. Without classes there is neither label nor text.

Sources of the keys: tensorflow/tpu, tools/datasets/imagenet_to_gcs.py; TensorFlow's convert_to_records.py for MNIST.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.image_records.options import IMAGENET, RAW, ImageOptions
from beam_jobs.image_records.rules import image_pixels, stored_image
from beam_jobs.image_records.schema import check_one_size, image_schema
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from beam_jobs.references.pack import Pack
from beam_jobs.references.reference import Reference, key_bytes
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import Feature, encode_entries, encode_entry, encode_example_parts, example_around
from tpudata.tables import counted

# What a record takes beside the image's bytes and its texts: keys, tags, and small values.
RECORD_OVERHEAD = 230
_RAW_OVERHEAD = 45

_NAMES = {
    IMAGENET: (
        *("image/encoded", "image/format", "image/height", "image/width", "image/colorspace", "image/channels"),
        *("image/class/label", "image/class/text", "image/filename"),
    ),
    RAW: ("image_raw", "label"),
}


@dataclasses.dataclass(frozen=True)
class ImageConverter:
    """Turns images into records.

    Attributes:
        label_offset: label of the first class.
        options: how images are checked and stored.
        several_labels: a record has any number of classes, as lists; otherwise it has one.
        extra: schema of what `Reference.extra` holds: scalars.

    Raises:
        UsageError: an extra feature is no scalar, or has a name that the layout uses.
    """

    label_offset: int = 0
    options: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()

    def __post_init__(self) -> None:
        used = set(_NAMES[self.options.layout])
        for feature in self.extra:
            if feature.name in used:
                raise UsageError(
                    f"the column {feature.name!r} has the name of a feature that is written already. Rename the column."
                )
            if feature.shape or feature.encoding not in (None, "utf8"):
                raise UsageError(f"the extra feature {feature.name!r} is {feature}; only scalars are written.")
            used.add(feature.name)

    @property
    def record_overhead(self) -> int:
        """About how many bytes a record takes beside the image's bytes and its texts: keys, tags, and small values."""
        fixed = RECORD_OVERHEAD if self.options.layout == IMAGENET else _RAW_OVERHEAD
        return fixed + sum(len(feature.name) + 14 for feature in self.extra)

    def text_bytes(self, pack: Pack) -> npt.NDArray[np.int64]:
        """About how many bytes each record of a pack takes for texts: the file's name, classes, and extra features; int64 [n]."""
        described = [
            len(extra.encode(errors="replace")) + (sum(map(len, labels)) if self.options.layout == IMAGENET else 0)
            for _, labels, _, extra in pack.described()
        ]
        texts = np.broadcast_to(np.array(described, np.int64), len(pack.keys))
        if self.options.layout != IMAGENET:
            return texts
        return texts + np.array([len(key_bytes(key)) for key in pack.keys], np.int64)

    def new_summary(self) -> ImageSummary:
        """A summary that has counted nothing."""
        return ImageSummary()

    def summary_from_json(self, value: dict[str, Any]) -> ImageSummary:
        """The summary that `ImageSummary.to_json` wrote."""
        return ImageSummary.from_json(value)

    def content_size(self, reference: Reference, data: bytes) -> int:
        """Bytes of the image in its record; BadRecordError where it is refused."""
        try:
            if self.options.layout == RAW:
                return len(image_pixels(data, reference.form, self.options)[0])
            return len(stored_image(data, reference.form, self.options).data)
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: ImageSummary) -> list[bytes]:
        """The record of one image, in parts whose concatenation it is: the image itself is not copied.

        Args:
            reference: where the image comes from.
            labels: the classes of the dataset.
            data: the image's bytes.
            summary: counts the image.

        Raises:
            BadRecordError: the bytes are not an image that is read, or its label or an extra value does not fit; names the file.
            SourceError: layout raw, and the size is not that of the image before.
        """
        record = self._extra(reference) if self.extra else {}
        try:
            label = self._label(reference, labels)
            if self.options.layout == RAW:
                pixels, shape = image_pixels(data, reference.form, self.options)
            else:
                stored = stored_image(data, reference.form, self.options)
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None
        if self.options.layout == RAW:
            summary.add(shape, reference.key)
            check_one_size(summary)
            record["image_raw"] = pixels
            if label is not None:
                record["label"] = label
            return encode_example_parts(record)
        image, name, height, width, channels, reason = stored
        summary.add((height, width, channels), reference.key, reason)
        filename = key_bytes(reference.key)
        if not self.extra:
            before, after = _entries_before(channels, label, reference.labels), _entries_after(name, height, width)
            return example_around(before, "image/encoded", image, encode_entry("image/filename", filename) + after)
        record |= _features_before(channels, label, reference.labels) | _features_after(name, height, width)
        record |= {"image/filename": filename, "image/encoded": image}
        return encode_example_parts(record)

    def features(self, summary: ImageSummary, labels: Labels) -> tuple[Feature, ...]:
        """The schema of a dataset whose images `summary` has counted.

        Args:
            summary: of all images.
            labels: the classes; without any, the schema has no labels.

        Raises:
            SourceError: layout raw, and the images are not all of one size.
        """
        return image_schema(
            self.options.layout,
            summary,
            labels,
            several_labels=self.several_labels,
            label_offset=self.label_offset,
            extra=self.extra,
        )

    def _label(self, reference: Reference, labels: Labels) -> int | tuple[int, ...] | None:
        """The label or labels of a record; None where the dataset has no classes. ValueError where they do not fit."""
        if not labels.names and not reference.labels:
            return None
        if self.several_labels:
            return tuple(labels.number(name) + self.label_offset for name in reference.labels)
        if len(reference.labels) != 1:
            raise ValueError(
                f"not exactly one label: {counted(len(reference.labels), 'label')} {list(reference.labels)}"
            )
        return labels.number(reference.labels[0]) + self.label_offset

    def _extra(self, reference: Reference) -> dict[str, Any]:
        """The extra features of a record."""
        values = json.loads(reference.extra) if reference.extra else {}
        try:
            return {feature.name: _extra_value(feature, values.get(feature.name)) for feature in self.extra}
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None


def _features_before(channels: int, label: int | tuple[int, ...] | None, names: tuple[str, ...]) -> dict[str, Any]:
    """The features of layout imagenet whose names sort before the image's."""
    features: dict[str, Any] = {
        "image/channels": channels,
        "image/colorspace": b"grayscale" if channels == 1 else b"RGB",
    }
    if label is not None:
        texts = [key_bytes(name) for name in names]
        features["image/class/label"] = label
        features["image/class/text"] = texts if isinstance(label, tuple) else texts[0]
    return features


def _features_after(name: str, height: int, width: int) -> dict[str, Any]:
    """Those behind the file's name, which is next to the image."""
    return {"image/format": name.encode(), "image/height": height, "image/width": width}


# These recur from record to record: all but the image and its name.
@functools.lru_cache(maxsize=8192)
def _entries_before(channels: int, label: int | tuple[int, ...] | None, names: tuple[str, ...]) -> bytes:
    return encode_entries(_features_before(channels, label, names))


@functools.lru_cache(maxsize=8192)
def _entries_after(name: str, height: int, width: int) -> bytes:
    return encode_entries(_features_after(name, height, width))


def _extra_value(feature: Feature, value: Any) -> bytes | int | float:
    if feature.kind == "bytes" and isinstance(value, str):
        return key_bytes(value)
    if feature.kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if feature.kind == "int64" and isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    got = "no value" if value is None else repr(value)
    raise ValueError(f"no {feature.dtype} in column {feature.name!r}: {got}")

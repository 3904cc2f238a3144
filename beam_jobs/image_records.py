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
import json
from typing import Any

from beam_jobs.image_options import IMAGENET, RAW, ImageOptions
from beam_jobs.image_rules import image_pixels, stored_image
from beam_jobs.image_summary import ImageSummary
from beam_jobs.labels import Labels
from beam_jobs.reference import Reference, key_bytes
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import Feature, encode_example_parts

LAYOUT = IMAGENET
# What a record takes beside the image's bytes: keys, tags, and small values; about 30 bytes of it are the file's and class's names.
RECORD_OVERHEAD = 260
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
        """About how many bytes a record takes beside the image's bytes: keys, tags, and small values."""
        fixed = RECORD_OVERHEAD if self.options.layout == IMAGENET else _RAW_OVERHEAD
        return fixed + sum(len(feature.name) + 20 for feature in self.extra)

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
        label = self._label(reference, labels)
        try:
            if self.options.layout == RAW:
                pixels, shape = image_pixels(data, reference.form, self.options)
            else:
                stored = stored_image(data, reference.form, self.options)
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None
        if self.options.layout == RAW:
            summary.add(shape, reference.key)
            _check_one_size(summary)
            record["image_raw"] = pixels
            if label is not None:
                record["label"] = label
            return encode_example_parts(record)
        summary.add((stored.height, stored.width, stored.channels), reference.key, stored.reason)
        record["image/encoded"] = stored.data
        record["image/format"] = stored.format.encode()
        record["image/height"] = stored.height
        record["image/width"] = stored.width
        record["image/colorspace"] = b"grayscale" if stored.channels == 1 else b"RGB"
        record["image/channels"] = stored.channels
        record["image/filename"] = key_bytes(reference.key)
        if label is not None:
            names = [key_bytes(name) for name in reference.labels]
            record["image/class/label"] = label
            record["image/class/text"] = names if self.several_labels else names[0]
        return encode_example_parts(record)

    def features(self, summary: ImageSummary, labels: Labels) -> tuple[Feature, ...]:
        """The schema of a dataset whose images `summary` has counted.

        Args:
            summary: of all images.
            labels: the classes; without any, the schema has no labels.

        Raises:
            SourceError: layout raw, and the images are not all of one size.
        """
        shape = (_single(summary.heights), _single(summary.widths), (summary.channels or (3, 3))[1])
        # A list of labels is no TFDS ClassLabel, so it does without their number, which the manifest has too.
        number = None if self.several_labels else len(labels.names)
        many: tuple[int | None, ...] = (None,) if self.several_labels else ()
        if self.options.layout == RAW:
            _check_one_size(summary)
            image = Feature("image_raw", "bytes", "uint8", shape, encoding="raw")
            return (image, *((_label("label", many, number, self.label_offset),) if labels.names else ()), *self.extra)
        return (
            Feature("image/encoded", "bytes", "uint8", shape, encoding="image"),
            _text("image/format"),
            _int("image/height"),
            _int("image/width"),
            _text("image/colorspace"),
            _int("image/channels"),
            *((_label("image/class/label", many, number, self.label_offset),) if labels.names else ()),
            *((_text("image/class/text", many),) if labels.names else ()),
            _text("image/filename"),
            *self.extra,
        )

    def _label(self, reference: Reference, labels: Labels) -> int | list[int] | None:
        """The label or labels of a record; None where the dataset has no classes."""
        if not labels.names and not reference.labels:
            return None
        numbers = [labels.number(name, reference.origin) + self.label_offset for name in reference.labels]
        if self.several_labels:
            return numbers
        if len(numbers) != 1:
            raise BadRecordError(reference.origin, f"{len(numbers)} labels {list(reference.labels)}; one is due")
        return numbers[0]

    def _extra(self, reference: Reference) -> dict[str, Any]:
        """The extra features of a record."""
        values = json.loads(reference.extra) if reference.extra else {}
        try:
            return {feature.name: _extra_value(feature, values.get(feature.name)) for feature in self.extra}
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None


def _extra_value(feature: Feature, value: Any) -> bytes | int | float:
    if feature.kind == "bytes" and isinstance(value, str):
        return key_bytes(value)
    if feature.kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if feature.kind == "int64" and isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    got = "no value" if value is None else repr(value)
    raise ValueError(f"{got} in column {feature.name!r}, where {feature.dtype} is due")


def _check_one_size(summary: ImageSummary) -> None:
    if len(summary.examples) < 2:
        return
    (one, first), (two, other) = summary.examples
    raise SourceError(
        f"{other} is {' x '.join(map(str, two))} (height, width, channels), but {first} is {' x '.join(map(str, one))}. Layout raw"
        " needs images of one size: make them so, or use --layout imagenet, which keeps each one's own."
    )


def _label(name: str, shape: tuple[int | None, ...], classes: int | None, offset: int) -> Feature:
    return Feature(
        name, "int64", "int64", shape, num_classes=classes, label_offset=offset if classes is not None else 0
    )


def _text(name: str, shape: tuple[int | None, ...] = ()) -> Feature:
    return Feature(name, "bytes", "string", shape, encoding="utf8")


def _int(name: str) -> Feature:
    return Feature(name, "int64", "int64")


def _single(span: tuple[int, int] | None) -> int | None:
    return span[0] if span and span[0] == span[1] else None

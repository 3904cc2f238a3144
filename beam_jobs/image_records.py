"""From an encoded image to a record: the `imagenet` feature layout.

    image/encoded       the file's bytes, untouched          image/channels      1 or 3
    image/format        "JPEG" or "PNG"                      image/class/label   int
    image/height        pixels                               image/class/text    the class's name
    image/width         pixels                               image/filename      the key: path below the input
    image/colorspace    "grayscale" or "RGB"

Source of the keys: tensorflow/tpu, tools/datasets/imagenet_to_gcs.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from beam_jobs.image_header import read_header
from beam_jobs.labels import Labels
from beam_jobs.reference import Reference, key_bytes
from tpudata.errors import BadRecordError
from tpudata.format import Feature, encode_example

LAYOUT = "imagenet"
# What a record takes beside the image's bytes: keys, tags, and small values.
RECORD_OVERHEAD = 300


@dataclasses.dataclass
class ImageSummary:
    """What the images of a shard, or of a dataset, have in common.

    Attributes:
        decoded_bytes: of all images as uint8.
        heights, widths: smallest and largest, in pixels.
        channels: smallest and largest.
    """

    decoded_bytes: int = 0
    heights: tuple[int, int] | None = None
    widths: tuple[int, int] | None = None
    channels: tuple[int, int] | None = None

    def add(self, height: int, width: int, channels: int) -> None:
        """Counts one image."""
        self.merge(ImageSummary(height * width * channels, (height, height), (width, width), (channels, channels)))

    def merge(self, other: ImageSummary) -> None:
        """Adds what another summary has counted."""
        self.decoded_bytes += other.decoded_bytes
        self.heights = _span(self.heights, other.heights)
        self.widths = _span(self.widths, other.widths)
        self.channels = _span(self.channels, other.channels)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ImageSummary:
        """The summary that `to_json` wrote."""
        spans = {name: value[name] and tuple(value[name]) for name in ("heights", "widths", "channels")}
        return cls(decoded_bytes=value["decoded_bytes"], **spans)


@dataclasses.dataclass(frozen=True)
class ImageConverter:
    """Turns images into records of the `imagenet` layout.

    Attributes:
        label_offset: label of the first class.
    """

    label_offset: int = 0

    def new_summary(self) -> ImageSummary:
        """A summary that has counted nothing."""
        return ImageSummary()

    def summary_from_json(self, value: dict[str, Any]) -> ImageSummary:
        """The summary that `ImageSummary.to_json` wrote."""
        return ImageSummary.from_json(value)

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: ImageSummary) -> bytes:
        """The record of one image.

        Args:
            reference: where the image comes from.
            labels: the classes of the dataset.
            data: its encoded bytes.
            summary: counts the image.

        Raises:
            BadRecordError: the bytes are not an image that is read; names the file.
        """
        try:
            header = read_header(data)
        except ValueError as error:
            raise BadRecordError(reference.path, str(error)) from None
        if header.components == 4:
            raise BadRecordError(reference.path, "a CMYK JPEG; save it as RGB")
        (name,) = reference.labels
        label = labels.number(name, reference.path)
        summary.add(header.height, header.width, header.components)
        return encode_example(
            {
                "image/encoded": data,
                "image/format": header.format.encode(),
                "image/height": header.height,
                "image/width": header.width,
                "image/colorspace": b"grayscale" if header.components == 1 else b"RGB",
                "image/channels": header.components,
                "image/class/label": label + self.label_offset,
                "image/class/text": key_bytes(name),
                "image/filename": key_bytes(reference.key),
            }
        )

    def features(self, summary: ImageSummary, labels: Labels) -> tuple[Feature, ...]:
        """The schema of a dataset whose images `summary` has counted."""
        shape = (_single(summary.heights), _single(summary.widths), (summary.channels or (3, 3))[1])
        return (
            Feature("image/encoded", "bytes", "uint8", shape, encoding="image"),
            _text("image/format"),
            _int("image/height"),
            _int("image/width"),
            _text("image/colorspace"),
            _int("image/channels"),
            Feature(
                "image/class/label",
                "int64",
                "int64",
                num_classes=len(labels.names),
                label_offset=self.label_offset,
            ),
            _text("image/class/text"),
            _text("image/filename"),
        )


def _text(name: str) -> Feature:
    return Feature(name, "bytes", "string", encoding="utf8")


def _int(name: str) -> Feature:
    return Feature(name, "int64", "int64")


def _span(one: Sequence[int] | None, other: Sequence[int] | None) -> tuple[int, int] | None:
    values = [*(one or ()), *(other or ())]
    return (min(values), max(values)) if values else None


def _single(span: Sequence[int] | None) -> int | None:
    return span[0] if span and span[0] == span[1] else None

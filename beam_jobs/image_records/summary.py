"""Summary of the images of a shard, or of a dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tpudata.format import Feature
from tpudata.format.manifest.annotation_features import count_entries

Shape = tuple[int, int, int]


@dataclasses.dataclass
class ImageSummary:
    """Counts and extremes, which can be merged; the order of merging affects only `examples`.

    Attributes:
        decoded_bytes: size of all images as uint8.
        heights: smallest and largest height, in pixels.
        widths: smallest and largest width, in pixels.
        channels: smallest and largest number of channels.
        converted: number of re-encoded images by reason; an image counts once, under the first reason that fits.
        examples: up to two different shapes (height, width, channels), each with the key of the first image that has it.
        maxima: length of the longest list of each list feature, by name.
    """

    decoded_bytes: int = 0
    heights: tuple[int, int] | None = None
    widths: tuple[int, int] | None = None
    channels: tuple[int, int] | None = None
    converted: dict[str, int] = dataclasses.field(default_factory=dict)
    examples: list[tuple[Shape, str]] = dataclasses.field(default_factory=list)
    maxima: dict[str, int] = dataclasses.field(default_factory=dict)
    # Bytes of an image by its shape: only new shapes change more than the counts.
    _sizes: dict[Shape, int] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def add(self, shape: Shape, key: str, reason: str = "") -> None:
        """Count one image.

        Args:
            shape: (height, width, channels).
            key: key of the image, for messages.
            reason: reason for re-encoding; empty if it was not re-encoded.
        """
        size = self._sizes.get(shape)
        if size is None:
            size = self._add_shape(shape, key)
        self.decoded_bytes += size
        if reason:
            self.converted[reason] = self.converted.get(reason, 0) + 1

    def add_lists(self, features: Iterable[Feature], values: Mapping[str, Any]) -> None:
        """Update `maxima` with the lengths of one record's lists."""
        for feature in features:
            count = count_entries(feature, values[feature.name])
            self.maxima[feature.name] = max(count, self.maxima.get(feature.name, 0))

    @property
    def shape(self) -> tuple[int | None, int | None, int]:
        """Height and width, None if they differ, and the largest number of channels, 3 if there are no images."""
        return _find_single(self.heights), _find_single(self.widths), (self.channels or (3, 3))[1]

    def merge(self, other: ImageSummary) -> None:
        """Add another summary."""
        self.decoded_bytes += other.decoded_bytes
        self.heights = _join_spans(self.heights, other.heights)
        self.widths = _join_spans(self.widths, other.widths)
        self.channels = _join_spans(self.channels, other.channels)
        for reason, count in other.converted.items():
            self.converted[reason] = self.converted.get(reason, 0) + count
        for name, count in other.maxima.items():
            self.maxima[name] = max(count, self.maxima.get(name, 0))
        for shape, key in other.examples:
            self._add_example(shape, key)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, without `maxima` if there are none: then a shard's index is the same as in earlier versions."""
        # `_sizes`, the field without `init`, only saves time.
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}
        if not self.maxima:
            del fields["maxima"]
        return fields

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ImageSummary:
        """Return the summary that `to_json` wrote."""
        # Spans are None in a summary of no images. Earlier versions wrote no maxima.
        spans = {
            name: None if value[name] is None else tuple(value[name]) for name in ("heights", "widths", "channels")
        }
        examples = [(_parse_shape(shape), key) for shape, key in value["examples"]]
        maxima = dict(value.get("maxima", {}))
        return cls(
            value["decoded_bytes"], **spans, converted=dict(value["converted"]), examples=examples, maxima=maxima
        )

    def _add_shape(self, shape: Shape, key: str) -> int:
        """Extend the ranges of sides and channels by a new shape; return the number of bytes of an image of this shape."""
        height, width, channels = shape
        self.heights = _join_spans(self.heights, (height, height))
        self.widths = _join_spans(self.widths, (width, width))
        self.channels = _join_spans(self.channels, (channels, channels))
        self._add_example(shape, key)
        self._sizes[shape] = height * width * channels
        return self._sizes[shape]

    def _add_example(self, shape: Shape, key: str) -> None:
        """Keep the first two images of different shapes, which a message names if all must have one shape."""
        if len(self.examples) < 2 and all(shape != other for other, _ in self.examples):
            self.examples.append((shape, key))


def _parse_shape(values: Sequence[int]) -> Shape:
    """Return a shape that JSON holds as a list."""
    height, width, channels = values
    return height, width, channels


def _join_spans(span: tuple[int, int] | None, other_span: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the span (smallest, largest) that holds both spans; None, the span of no images, adds nothing."""
    if span is None or other_span is None:
        return span or other_span
    return min(span[0], other_span[0]), max(span[1], other_span[1])


def _find_single(span: tuple[int, int] | None) -> int | None:
    return span[0] if span and span[0] == span[1] else None

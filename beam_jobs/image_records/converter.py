"""Conversion of an image to a record, in the layout of the options."""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.converter import Columns, InputConverter
from beam_jobs.image_records.layouts import LAYOUTS, ImageLayout, Label
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.image_records.schema import image_schema
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.payload import features_text
from beam_jobs.references.reference import Reference, key_bytes
from beam_jobs.values.column_kinds import float32_problem
from tpudata.console.tables import counted
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import Feature, encode_example_parts


@dataclasses.dataclass(frozen=True)
class ImageConverter(InputConverter):
    """Conversion of images to records.

    Attributes:
        label_offset: label of the first class.
        options: rules for checking and storing images.
        several_labels: whether a record has any number of classes, as lists, instead of exactly one.
        extra: schema of `Reference.extra`: numbers and strings, and arrays of these of a static shape or of one open length.

    Raises:
        UsageError: an extra feature has another shape or encoding, or a name that the layout uses.
    """

    label_offset: int = 0
    options: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()

    def __post_init__(self) -> None:
        used = set(self._layout.names)
        for feature in self.extra:
            if feature.name in used:
                raise UsageError(
                    f"the column {feature.name!r} has the name of a feature that is written already. Rename the column."
                )
            if (None in feature.shape and feature.shape != (None,)) or feature.encoding not in (None, "utf8"):
                shape, encoding = feature.shape, feature.encoding
                raise UsageError(
                    f"the extra feature {feature.name!r}: of another kind (got shape {shape} and encoding {encoding}, expected a"
                    " static shape or (None,), and none or utf8). Store it as numbers or strings."
                )
            used.add(feature.name)

    @property
    def _layout(self) -> ImageLayout:
        return LAYOUTS[self.options.layout]

    @property
    def record_overhead(self) -> int:
        """Approximate bytes of a record without its image and its texts: keys, tags, and small values."""
        return self._layout.overhead + sum(len(feature.name) + 14 for feature in self.extra)

    def with_columns(self, columns: Columns) -> ImageConverter:
        """Return the converter for records of these columns; UsageError as in the constructor."""
        return dataclasses.replace(self, several_labels=columns.several_labels, extra=columns.extra)

    def text_bytes(self, pack: Pack) -> npt.NDArray[np.int64]:
        """Return the approximate bytes of names and extra features in each record of a pack: int64 [n]."""
        sizes = np.zeros(len(pack.keys), np.int64)
        if pack.features:
            sizes += np.array([len(text.encode(errors="replace")) for *_, text in pack.entry_texts()], np.int64)
        if self._layout.has_texts:
            sizes += np.array([sum(map(len, labels)) for labels in pack.labels], np.int64)
            sizes += np.array([len(key_bytes(key)) for key in pack.keys], np.int64)
        return sizes

    def new_summary(self) -> ImageSummary:
        """Return an empty summary."""
        return ImageSummary()

    def summary_from_json(self, value: dict[str, Any]) -> ImageSummary:
        """Return the summary that `ImageSummary.to_json` wrote."""
        return ImageSummary.from_json(value)

    def content_size(self, reference: Reference, data: bytes) -> int:
        """Return the bytes of the image in its record; raise BadRecordError if it is rejected."""
        try:
            return self._layout.content_size(data, reference.payload, self.options)
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: ImageSummary) -> list[bytes]:
        """Return the record of one image, in parts to be concatenated: the image is not copied.

        Args:
            reference: reference to the image.
            labels: classes of the dataset.
            data: bytes of the image.
            summary: counter of images.

        Raises:
            BadRecordError: the bytes are not a supported image, or its label or an extra value is invalid; names the file.
            SourceError: the layout is raw, and the size differs from that of earlier images.
        """
        try:
            label = self._label(reference, labels)
            # First, since rejected images do not count.
            extra = self._extra(reference) if self.extra else {}
            values = self._layout.values(reference, label, data, self.options, summary) | extra
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None
        return encode_example_parts(values)

    def features(self, summary: ImageSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema of a dataset whose images `summary` has counted.

        Args:
            summary: summary of all images.
            labels: classes; without any, the schema has no labels.

        Raises:
            SourceError: the layout is raw, and the images differ in size.
        """
        return image_schema(
            self._layout,
            summary,
            labels,
            several_labels=self.several_labels,
            label_offset=self.label_offset,
            extra=self.extra,
        )

    def _label(self, reference: Reference, labels: Labels) -> Label:
        """Return the label or labels of a record; None if the dataset has no classes. ValueError if they are invalid."""
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
        """Return the extra features of a record; ValueError if one is invalid."""
        values = json.loads(features_text(reference.features, is_escaped=True) or "{}")
        return {feature.name: _extra_value(feature, values.get(feature.name)) for feature in self.extra}


def _extra_value(feature: Feature, value: Any) -> bytes | int | float | list[Any]:
    """Return the values of an extra feature as a record stores them; ValueError if they are of another kind or shape."""
    if not feature.shape:
        return _scalar(feature, value)
    items = _flatten(value, feature.shape)
    if items is None:
        got = "no value" if value is None else reprlib.repr(value)
        raise ValueError(f"no {feature.dtype} of shape {feature.shape} in column {feature.name!r}: {got}")
    return [_scalar(feature, item) for item in items]


def _flatten(value: Any, shape: Sequence[int | None]) -> list[Any] | None:
    """Return the items of nested lists in order; None if the lists have another shape."""
    if not shape:
        return None if isinstance(value, list) else [value]
    if not isinstance(value, list) or shape[0] not in (None, len(value)):
        return None
    items: list[Any] = []
    for part in value:
        inner = _flatten(part, shape[1:])
        if inner is None:
            return None
        items += inner
    return items


def _scalar(feature: Feature, value: Any) -> bytes | int | float:
    if feature.kind == "bytes" and isinstance(value, str):
        return key_bytes(value)
    if feature.kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        problem = float32_problem(value, rounds=True)
        if problem:
            raise ValueError(f"{reprlib.repr(value)} in column {feature.name!r} {problem}")
        return float(value)
    if feature.kind == "int64" and isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    got = "no value" if value is None else reprlib.repr(value)
    raise ValueError(f"no {feature.dtype} in column {feature.name!r}: {got}")

"""Conversion of an image to a record, in the layout of the options."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from beam_jobs.converter import InputConverter, RecordColumns, check_extra, estimate_overhead
from beam_jobs.image_records.annotated.frame import Frame, make_frame, place_map
from beam_jobs.image_records.layouts import LAYOUTS, TARGET, ImageLayout, Label
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.input_values import convert_value, count_bytes
from beam_jobs.references.labels import Labels
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.ranged_map import RangedMap
from beam_jobs.references.reading import read_references
from beam_jobs.references.reference import Reference, key_bytes
from tpudata.console.option import drop_empty_options
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, FeatureError
from tpudata.format import Feature, encode_example_parts

_Read: TypeAlias = Callable[[Iterable[Reference]], Iterator[tuple[Reference, bytes | BadRecordError]]]


@dataclasses.dataclass(frozen=True)
class ImageConverter(InputConverter):
    """Conversion of images to records.

    Attributes:
        label_offset: label of the first class.
        options: rules for checking and storing images.
        several_labels: whether a record may have several classes or none, as lists, instead of exactly one.
        extra: schema of `Reference.features`: values of a static shape, lists of any length, or images and label maps of any size.
            Part of the digests of inputs, by which a resumed run recognizes its shards: do not rename this field.

    Raises:
        UsageError: an extra feature has the wrong shape, or a name that is used already.
    """

    label_offset: int = 0
    options: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()

    def __post_init__(self) -> None:
        check_extra(self.extra, {*self._layout.names, *(feature.name for feature in self._pair_features)})

    @property
    def _layout(self) -> ImageLayout:
        return LAYOUTS[self.options.layout]

    @property
    def _pair_features(self) -> tuple[Feature, ...]:
        """Feature of the second image of a pair, if the options make pairs."""
        return () if self.options.target_half is None else (TARGET,)

    @property
    def record_overhead(self) -> int:
        """Approximate bytes of a record without its image and its texts: keys, tags, and small values."""
        return self._layout.overhead + estimate_overhead(self.extra)

    def apply_columns(self, columns: RecordColumns) -> ImageConverter:
        """Return the converter for records of these columns; UsageError if the constructor rejects them."""
        return dataclasses.replace(self, several_labels=columns.several_labels, extra=columns.features)

    def deciding_fields(self) -> dict[str, Any]:
        """Return the fields that determine the records; unset newer options are omitted, so that old shards keep their digest."""
        fields = super().deciding_fields()
        return {**fields, "options": drop_empty_options(self.options, fields["options"])}

    def extra_bytes(self, pack: Pack) -> npt.NDArray[np.int64]:
        """Return the approximate bytes of the file and class names and the extra features in each record of a pack: int64 [n]."""
        # A column has one entry if all records share its value (`entry_texts` too); numpy broadcasts its size to all records.
        sizes = np.zeros(len(pack.keys), np.int64)
        if pack.features:
            # The JSON of all features, which has digests in place of bytes; these are added below.
            sizes += np.array([len(text.encode(errors="replace")) for *_, text in pack.entry_texts()], np.int64)
        for column in pack.features.values():
            sizes += np.array(list(map(count_bytes, column)), np.int64)
        if self._layout.has_texts:
            sizes += np.array([sum(map(len, labels)) for labels in pack.labels], np.int64)
            sizes += np.array([len(key_bytes(key)) for key in pack.keys], np.int64)
        return sizes

    def new_summary(self) -> ImageSummary:
        """Return an empty summary."""
        return ImageSummary()

    def summary_from_json(self, value: dict[str, Any]) -> ImageSummary:
        """Return the summary that `ImageSummary.to_json` has made."""
        return ImageSummary.from_json(value)

    def measure_content(self, reference: Reference, data: bytes) -> int:
        """Return the number of bytes of the image in its record; raise BadRecordError if it is rejected."""
        try:
            return self._layout.measure_content(data, reference.payload, self.options)
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: ImageSummary) -> list[bytes]:
        """Return the record of one image, in parts to be concatenated: the image is not copied.

        Args:
            reference: reference to the image.
            labels: classes of the dataset.
            data: bytes of the image.
            summary: summary to which the image is added.

        Raises:
            BadRecordError: the bytes are not a supported image, or its label, its label map or an extra value is invalid; the
                message names the file.
            SourceError: the layout is raw, and the size differs from that of earlier images.
        """
        maps = self._select_maps(reference) if self._map_features else {}
        # A rejected image must not count. With maps, which may not fit the image, it is counted apart and added last.
        image_summary = self.new_summary() if maps else summary
        try:
            label = self._resolve_label(reference, labels)
            # Converted before the layout counts the image, since an invalid value rejects the image.
            extra = self._convert_extra(reference) if self.extra else {}
            values = self._layout.make_values(reference, label, data, self.options, image_summary) | extra
            if maps:
                values |= _place_maps(maps, make_frame(data, values["image/width"], values["image/height"]))
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None
        if maps:
            summary.merge(image_summary)
        if self._features_of_lists:
            summary.add_lists(self._features_of_lists, values)
        return encode_example_parts(values)

    def features(self, summary: ImageSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema of a dataset whose images `summary` has counted.

        Args:
            summary: summary of all images.
            labels: classes; without any, the schema has no labels.

        Raises:
            SourceError: the layout is raw, and the images differ in size.
        """
        extra = (*self._pair_features, *self.extra)
        if not labels.names:
            return (*self._layout.features(summary, ()), *extra)
        # A list of labels is not a TFDS ClassLabel, so its feature has neither the number of classes nor the offset: the manifest's
        # labels and options have them.
        num_classes = None if self.several_labels else len(labels.names)
        shape: tuple[int | None, ...] = (None,) if self.several_labels else ()
        offset = 0 if self.several_labels else self.label_offset
        classes = [
            Feature(self._layout.label_name, "int64", "int64", shape, num_classes=num_classes, label_offset=offset)
        ]
        if self._layout.has_texts:
            classes.append(Feature("image/class/text", "bytes", "string", shape, encoding="utf8"))
        return (*self._layout.features(summary, tuple(classes)), *extra)

    def maxima(self, summary: ImageSummary) -> dict[str, int]:
        """Return the length of the longest list of each list feature, by name."""
        return summary.maxima

    @functools.cached_property
    def _features_of_lists(self) -> tuple[Feature, ...]:
        """Extra features that are lists of any length."""
        return tuple(feature for feature in self.extra if feature.is_list)

    def _resolve_label(self, reference: Reference, labels: Labels) -> Label:
        """Return the label or labels of a record, None if the dataset has no classes; ValueError if they are invalid."""
        if not labels.names and not reference.labels:
            return None
        if self.several_labels:
            return tuple(labels.find_label(name) + self.label_offset for name in reference.labels)
        if len(reference.labels) != 1:
            raise ValueError(
                f"not exactly one label: {count_text(len(reference.labels), 'label')} {list(reference.labels)}"
            )
        return labels.find_label(reference.labels[0]) + self.label_offset

    def _convert_extra(self, reference: Reference) -> dict[str, Any]:
        """Return the extra features of a record, without label maps that lie in an archive; ValueError if one is invalid."""
        values = reference.features
        return {
            feature.name: convert_value(feature, values.get(feature.name))
            for feature in self.extra
            if not isinstance(values.get(feature.name), RangedMap)
        }

    @functools.cached_property
    def _map_features(self) -> tuple[Feature, ...]:
        return tuple(feature for feature in self.extra if feature.is_label_map)

    def _select_maps(self, reference: Reference) -> dict[Feature, RangedMap]:
        """Return, by feature, the label maps that lie next to the image in an archive."""
        values = ((feature, reference.features.get(feature.name)) for feature in self._map_features)
        return {feature: value for feature, value in values if isinstance(value, RangedMap)}


def _place_maps(maps: Mapping[Feature, RangedMap], frame: Frame) -> dict[str, bytes]:
    """Return label maps, by name of their features, turned and resized like their image; ValueError if one does not fit it."""
    try:
        return {feature.name: place_map(feature, ranged_map.read(), frame) for feature, ranged_map in maps.items()}
    except FeatureError as error:
        raise ValueError(str(error)) from None


def estimate_ratio(converter: ImageConverter, references: Iterable[Reference], read: _Read = read_references) -> float:
    """Estimate the ratio of bytes of stored images to bytes of input, for the plan.

    Rejected images are skipped here; writing the shards reports them.

    Args:
        converter: converter of images to records.
        references: a sample of all images.
        read: yields each reference, in order, with its bytes or its error.

    Returns:
        The ratio; 1.0 if no image of the sample can be converted.
    """
    input_bytes = stored_bytes = 0
    for reference, data in read(references):
        if isinstance(data, BadRecordError):
            continue
        try:
            stored_size = converter.measure_content(reference, data)
        except BadRecordError:
            continue
        input_bytes += reference.size
        stored_bytes += stored_size
    return stored_bytes / input_bytes if input_bytes else 1.0

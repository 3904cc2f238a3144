"""Conversion of a picture with its annotation to a record."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.annotations.annotation import ImageAnnotation
from beam_jobs.converter import Input, Record, RecordColumns, ShardContext
from beam_jobs.image_records.annotated.frame import make_frame
from beam_jobs.image_records.annotated.schema import AnnotationSchema
from beam_jobs.image_records.annotated.values import list_annotation_values
from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.image_records.layouts import TARGET, Label
from beam_jobs.image_records.options import IMAGENET
from beam_jobs.image_records.rules import make_stored_image
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import SELF_DESCRIBING, Reference
from beam_jobs.references.rejection import RejectInput
from tpudata.errors import BadRecordError, StorageError, StorageUnavailableError, UsageError
from tpudata.format import Feature, encode_example_parts
from tpudata.storage import storage_for

# Name of the annotation among the features of a reference; records have the features of the schema instead.
ANNOTATION = "annotation"
# Approximate bytes of an object in a record without its mask, and of the PNG of a mask.
_OBJECT_BYTES, _MASK_BYTES = 40, 400


@dataclasses.dataclass(frozen=True)
class CarriedAnnotation:
    """The annotation of a picture as a value of its reference.

    Attributes:
        annotation: annotation of the picture.
    """

    annotation: ImageAnnotation

    def tolist(self) -> list[Any]:
        """Return the annotation's fields for an input's entry: all but names, paths, ids and places in files, which may change.

        `features_text` calls this method for values that JSON cannot hold, such as NumPy's arrays.
        """
        omitted_fields = ("place", "picture", "map_file", "target", "source_id")
        return [value for name, value in self.annotation._asdict().items() if name not in omitted_fields]


@dataclasses.dataclass(frozen=True)
class AnnotatedConverter(ImageConverter):
    """Conversion of pictures with annotations to records. The other attributes are those of ImageConverter.

    Attributes:
        schema: features of the annotations; None until they are scanned.

    Raises:
        UsageError: the constructor of ImageConverter raises it; the layout or the options exclude annotations; or a value has the
            name of another feature.
    """

    schema: AnnotationSchema | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.options.layout != IMAGENET:
            raise UsageError(
                f"--layout {self.options.layout} has no place for annotations. Omit it, or the annotations."
            )
        if self.options.target_half is not None:
            raise UsageError("--target-half: annotations are of whole pictures. Omit it, or the annotations.")
        if self.schema is not None:
            names = [feature.name for feature in self.schema.features]
            taken_name = next((name for name in names if name in self._layout.names or names.count(name) > 1), None)
            if taken_name is not None:
                raise UsageError(
                    f"the annotations have a column {taken_name!r}, and records a feature of that name. Rename it."
                )

    def apply_columns(self, columns: RecordColumns) -> AnnotatedConverter:
        """Return the converter for records of these columns."""
        return dataclasses.replace(self, several_labels=columns.several_labels, schema=columns.annotations)

    def features(self, summary: ImageSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema of a dataset whose images `summary` has counted.

        Args:
            summary: summary of all images.
            labels: classes of pictures, or of objects if pictures have none.
        """
        if self.schema is None:
            # Before the scan, neither classes nor features of annotations are known.
            return super().features(summary, Labels(()))
        schema = self._replace_labels(labels).schema
        assert schema is not None
        return (*self._layout.features(summary, schema.class_features), *schema.features)

    def records(
        self, inputs: Iterable[Input], context: ShardContext, summary: ImageSummary, reject: RejectInput
    ) -> Iterator[Record]:
        """Yield a record for each input that is not rejected."""
        # Classes are numbered once for the shard, by a converter that has the labels in its schema.
        converter = self._replace_labels(context.labels)
        # The method of the base class, called on `converter`: `converter.records` would be this method again.
        return super(AnnotatedConverter, converter).records(inputs, context, summary, reject)

    def convert(self, reference: Reference, labels: Labels, data: bytes, summary: ImageSummary) -> list[bytes]:
        """Return the record of one picture, as ImageConverter does.

        Raises:
            BadRecordError: the bytes are not a supported image, the annotation does not fit them, or the label map or the target
                cannot be read.
        """
        del labels
        assert self.schema is not None
        annotation = _unwrap_annotation(reference)
        # Added to `summary` last, since a rejected image must not count.
        image_summary = self.new_summary()
        try:
            # The layout gets no label, since the classes are among the values of the annotation.
            values = self._layout.make_values(
                reference, label=None, data=data, options=self.options, summary=image_summary
            )
            frame = make_frame(data, values["image/width"], values["image/height"])
        except ValueError as error:
            raise BadRecordError(reference.origin, str(error)) from None
        values |= list_annotation_values(self.schema, annotation, frame, _read_map(annotation))
        if self.schema.has_targets:
            values[TARGET.name] = self._read_target(annotation)
        image_summary.add_lists(self._features_of_lists, values)
        summary.merge(image_summary)
        return encode_example_parts(values)

    def measure_content(self, reference: Reference, data: bytes) -> int:
        """Return the approximate number of bytes of the picture, its maps, its masks and its target in its record.

        Raises:
            BadRecordError: the picture is rejected, or its map or its target cannot be read.
        """
        annotation = _unwrap_annotation(reference)
        mask_count = sum(annotated_object.segmentation is not None for annotated_object in annotation.objects)
        map_bytes = len(_read_map(annotation) or b"") + _MASK_BYTES * mask_count
        target_bytes = len(self._read_target(annotation)) if annotation.target else 0
        return super().measure_content(reference, data) + map_bytes + target_bytes

    def _read_target(self, annotation: ImageAnnotation) -> bytes:
        """Return the second image of a pair as its record stores it; BadRecordError if it is missing or rejected."""
        if not annotation.target:
            raise annotation.place.make_error("no target", annotation.picture)
        data = _read_file(annotation.target, annotation, kind="target")
        try:
            return make_stored_image(data, SELF_DESCRIBING, self.options).data
        except ValueError as error:
            raise annotation.place.make_error(f"its target: {error}", annotation.picture) from None

    @functools.cached_property
    def _features_of_lists(self) -> tuple[Feature, ...]:
        """Features of lists of any length."""
        assert self.schema is not None
        return tuple(feature for feature in (*self.schema.class_features, *self.schema.features) if feature.is_list)

    def extra_bytes(self, pack: Pack) -> npt.NDArray[np.int64]:
        """Return the approximate bytes of names and annotations in each record of a pack, without maps: int64 [n]."""
        # The annotation, the only feature of the references, is not a feature of records, so it is estimated separately.
        sizes = super().extra_bytes(dataclasses.replace(pack, features={}))
        carried_annotations = pack.features[ANNOTATION]
        return sizes + np.array(
            [_estimate_annotation_bytes(carried.annotation) for carried in carried_annotations], np.int64
        )

    def _resolve_label(self, reference: Reference, labels: Labels) -> Label:
        """Return None: the classes are among the values of the annotation."""
        del reference, labels
        return None

    def _replace_labels(self, labels: Labels) -> AnnotatedConverter:
        """Return the converter that numbers classes as in `labels`; this one if there are none."""
        if self.schema is None or not labels.names:
            return self
        return dataclasses.replace(self, schema=self.schema.replace_labels(labels))


def _unwrap_annotation(reference: Reference) -> ImageAnnotation:
    """Return the annotation that a picture's reference carries as a feature."""
    carried: CarriedAnnotation = reference.features[ANNOTATION]
    return carried.annotation


def _read_map(annotation: ImageAnnotation) -> bytes | None:
    """Return the bytes of a picture's label map, None if it has none; BadRecordError if it cannot be read."""
    return None if annotation.map_file is None else _read_file(annotation.map_file.path, annotation, kind="label map")


def _read_file(path: str, annotation: ImageAnnotation, kind: str) -> bytes:
    """Return the bytes of a file that belongs to a picture.

    Args:
        path: path of the file.
        annotation: annotation of the picture, for messages.
        kind: what the file is, for messages.

    Raises:
        BadRecordError: the file cannot be read.
        StorageUnavailableError: an outage of the storage.
    """
    try:
        return storage_for(path).read(path)
    except StorageUnavailableError:
        # An outage aborts the job; --on-bad-record=skip never counts it as a bad record.
        raise
    except StorageError as error:
        raise annotation.place.make_error(f"its {kind} cannot be read: {error}", annotation.picture) from None


def _estimate_annotation_bytes(annotation: ImageAnnotation) -> int:
    """Return the approximate number of bytes of an annotation's objects and captions in its record."""
    # Keypoints have 8 bytes a number here, and 4 or fewer in a record.
    name_and_keypoint_bytes = sum(
        len(annotated_object.class_name) + len(annotated_object.keypoints) // 2
        for annotated_object in annotation.objects
    )
    return _OBJECT_BYTES * len(annotation.objects) + name_and_keypoint_bytes + sum(map(len, annotation.captions))

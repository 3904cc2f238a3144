"""The values of a picture's annotation in its record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from beam_jobs.annotations import contents as kinds
from beam_jobs.annotations.annotation import ImageAnnotation, ObjectAnnotation
from beam_jobs.annotations.segmentation import Segments
from beam_jobs.feature_values.label_maps import encode_label_map
from beam_jobs.feature_values.png import encode_png
from beam_jobs.feature_values.values import make_empty_list
from beam_jobs.image_records.annotated.frame import Frame, View, make_view, place_map
from beam_jobs.image_records.annotated.schema import SOURCE_ID, AnnotationSchema
from beam_jobs.values.column_kinds import fits_int64, float32_problem
from tpudata.error_text.values import shorten_value
from tpudata.errors import FeatureError
from tpudata.format import Feature
from tpudata.format.label_map import png_kind
from tpudata.images.header import check_png_checksums, read_header
from tpudata.images.image_format import PNG
from tpudata.images.pillow_files import load_image, open_image

# PNG's number for red, green and blue without alpha.
_COLOUR = 2
# Factors of red, green and blue in the id of a segment.
_ID_FACTORS = np.array([1, 1 << 8, 1 << 16], np.uint32)


def list_annotation_values(
    schema: AnnotationSchema, annotation: ImageAnnotation, frame: Frame, map_data: bytes | None = None
) -> dict[str, Any]:
    """Return the values of a schema's features in a picture's record, except for the target, as `encode_example` takes them.

    Args:
        schema: features of the annotations of the dataset.
        annotation: annotation of the picture.
        frame: the picture in its file and in its record.
        map_data: bytes of `annotation.map_file`, if there is one.

    Raises:
        BadRecordError: a value does not fit the picture or the schema; the message names the annotation.
    """
    try:
        view = make_view(frame, annotation.width, annotation.height, is_upright=schema.is_upright)
        values: dict[str, Any] = {}
        segments = None
        if schema.map_feature is not None:
            if annotation.map_file is None or map_data is None:
                raise ValueError("no label map")
            if annotation.map_file.holds_segments:
                segments = _read_segments(map_data, view)
                classes = _draw_class_map(schema, annotation, view, segments)
                values[schema.map_feature.name] = encode_label_map(schema.map_feature, view.convert_pixels(classes))[0]
            else:
                placed_map = place_map(schema.map_feature, map_data, frame, is_upright=schema.is_upright)
                values[schema.map_feature.name] = placed_map
        values |= _list_object_values(schema, annotation, view, segments)
        values |= _list_class_values(schema, annotation)
        if kinds.CAPTIONS in schema.kinds:
            values["image/caption"] = list(map(_encode_text, annotation.captions))
        if kinds.SOURCE_IDS in schema.kinds:
            values[SOURCE_ID.name] = _encode_text(annotation.source_id)
        extra_values = dict(annotation.values)
        values |= {
            feature.name: _convert_extra_value(feature, extra_values.get(feature.name)) for feature in schema.further
        }
        # `encode_example` infers the kind of a list from its elements, so an empty list is passed as an array of the feature's
        # dtype.
        if [] in values.values():
            features = {feature.name: feature for feature in (*schema.features, *schema.class_features)}
            values = {name: make_empty_list(features[name]) if value == [] else value for name, value in values.items()}
        return values
    except (ValueError, FeatureError) as error:
        raise annotation.place.make_error(str(error), annotation.picture) from None


def _list_object_values(
    schema: AnnotationSchema, annotation: ImageAnnotation, view: View, segments: Segments | None
) -> dict[str, Any]:
    """Return the lists of a picture's objects, by feature.

    Args:
        schema: features of the annotations of the dataset.
        annotation: annotation of the picture.
        view: the picture as it was annotated, and in its record.
        segments: ids of the picture's segments, uint32 [height, width]; None if it has no PNG of segments.

    Raises:
        ValueError: an object does not fit the picture; the message names the object.
    """
    lists: dict[str, list[Any]] = {feature.name: [] for feature in schema.object_features}
    for number, annotated_object in enumerate(annotation.objects, start=1):
        try:
            for name, values in _yield_object_values(
                schema, annotated_object, view, segments, annotation.is_normalized
            ):
                lists[name] += values
        except ValueError as error:
            class_text = f" ({annotated_object.class_name})" if annotated_object.class_name else ""
            raise ValueError(f"object {number}{class_text}: {error}") from None
    return lists


def _yield_object_values(
    schema: AnnotationSchema,
    annotated_object: ObjectAnnotation,
    view: View,
    segments: Segments | None,
    is_normalized: bool,
) -> Iterator[tuple[str, list[Any]]]:
    """Yield (name of a feature, values that one object adds to its list); ValueError if the object does not fit the picture.

    Args:
        schema: features of the annotations of the dataset.
        annotated_object: annotation of the object.
        view: the picture as it was annotated, and in its record.
        segments: ids of the picture's segments, uint32 [height, width]; None if it has no PNG of segments.
        is_normalized: whether coordinates are fractions of the sides, instead of pixels.
    """
    box = view.convert_box(annotated_object.box, is_normalized=is_normalized)
    for edge, value in zip(("ymin", "xmin", "ymax", "xmax"), box, strict=True):
        yield f"image/object/bbox/{edge}", [value]
    if kinds.OBJECT_CLASSES in schema.kinds:
        label = schema.object_labels.find(annotated_object.class_name)
        yield "image/object/class/label", [label + schema.label_offset]
        yield "image/object/class/text", [_encode_text(schema.object_labels.names[label])]
    if kinds.CROWDS in schema.kinds:
        yield "image/object/is_crowd", [int(bool(annotated_object.is_crowd))]
    if kinds.DIFFICULT in schema.kinds:
        yield "image/object/difficult", [int(bool(annotated_object.is_difficult))]
    if kinds.AREAS in schema.kinds:
        yield "image/object/area", [_compute_area(annotated_object, view, is_normalized)]
    if kinds.MASKS in schema.kinds:
        yield "image/object/mask", [_encode_mask(annotated_object, view, segments)]
    if schema.keypoints:
        yield from _place_keypoints(schema, annotated_object, view, is_normalized)


def _compute_area(annotated_object: ObjectAnnotation, view: View, is_normalized: bool) -> float:
    """Return the area of an object in pixels of the stored picture; the area of its box if the annotation has no area.

    Raises:
        ValueError: the area is negative, or not a number that float32 holds; or there is no area, and the box is invalid.
    """
    if annotated_object.area is None:
        ymin, xmin, ymax, xmax = view.convert_box(annotated_object.box, is_normalized=is_normalized)
        return (ymax - ymin) * (xmax - xmin) * view.stored_width * view.stored_height
    # Unlike `area < 0`, this also rejects NaN.
    if not annotated_object.area >= 0 or float32_problem(annotated_object.area, rounds=True):
        raise ValueError(f"an area of {annotated_object.area}")
    return annotated_object.area * view.area_scale


def _encode_mask(annotated_object: ObjectAnnotation, view: View, segments: Segments | None) -> bytes:
    """Return the PNG of an object's mask, as large as the stored picture; all 0 if the object has no segmentation."""
    if annotated_object.segmentation is None:
        mask = np.zeros((view.height, view.width), np.bool_)
    else:
        mask = annotated_object.segmentation.draw_mask(view.height, view.width, segments)
    return encode_png(view.convert_pixels(mask).astype(np.uint8))


def _place_keypoints(
    schema: AnnotationSchema, annotated_object: ObjectAnnotation, view: View, is_normalized: bool
) -> Iterator[tuple[str, list[Any]]]:
    """Yield (name of a feature, list of the x, y or visibility of keypoints in the stored image).

    Args:
        schema: features of the annotations of the dataset, with the number of keypoints.
        annotated_object: annotation of the object.
        view: the picture as it was annotated, and in its record.
        is_normalized: whether coordinates are fractions of the sides, instead of pixels.

    Raises:
        ValueError: a keypoint is invalid, or the object has too many or too few.
    """
    # An object without keypoints gets invisible ones, since the lists of all objects have the same length.
    points = annotated_object.keypoint_array.tolist() or [(0.0, 0.0, 0.0)] * schema.keypoints
    if len(points) != schema.keypoints:
        raise ValueError(f"{len(points)} keypoints (expected {schema.keypoints})")
    placed_points = []
    for x, y, visibility in points:
        if visibility not in (0, 1, 2):
            raise ValueError(f"a keypoint with visibility {visibility:g} (expected 0, 1 or 2)")
        point = view.convert_point(x, y, is_normalized=is_normalized) if visibility else (0.0, 0.0)
        placed_points.append((*point, int(visibility)))
    for name, values in zip(("x", "y", "visibility"), zip(*placed_points, strict=True), strict=True):
        yield f"image/object/keypoint/{name}", list(values)


def _list_class_values(schema: AnnotationSchema, annotation: ImageAnnotation) -> dict[str, Any]:
    """Return the values of a picture's classes by feature; none if the dataset has no classes.

    Raises:
        ValueError: the dataset needs exactly one class of each picture, and this one has none or several.
    """
    if not schema.class_features:
        return {}
    labels = list(map(schema.class_labels.find, annotation.classes))
    numbers = [label + schema.label_offset for label in labels]
    texts = [_encode_text(schema.class_labels.names[label]) for label in labels]
    if schema.several_classes:
        return {"image/class/label": numbers, "image/class/text": texts}
    if len(numbers) != 1:
        raise ValueError(f"not exactly one class: {', '.join(annotation.classes) or 'none'}")
    return {"image/class/label": numbers[0], "image/class/text": texts[0]}


def _read_segments(data: bytes, view: View) -> Segments:
    """Return the ids in a PNG of segments: red + 256 green + 65,536 blue; ValueError if its kind or its size is wrong."""
    if png_kind(data) != (8, _COLOUR):
        raise ValueError("its PNG of segments is not a PNG of colours with 8 bits")
    header = read_header(data, PNG)
    if (header.width, header.height) != (view.width, view.height):
        raise ValueError(
            f"its PNG of segments has {header.width} x {header.height} pixels (expected {view.width} x {view.height})"
        )
    check_png_checksums(data)
    segments: Segments = np.asarray(load_image(open_image(data, PNG), PNG)).astype(np.uint32) @ _ID_FACTORS
    return segments


def _draw_class_map(schema: AnnotationSchema, annotation: ImageAnnotation, view: View, segments: Segments) -> Segments:
    """Return the label of each pixel's segment, [height, width]; the largest number of the map's dtype for other pixels.

    Args:
        schema: features of the annotations, with the dtype of the map.
        annotation: annotation whose objects are segments.
        view: the picture as it was annotated, and in its record.
        segments: ids of the picture's segments, uint32 [height, width].

    Raises:
        ValueError: a label does not fit the map's dtype, or a segment has no pixel.
    """
    no_label = np.iinfo(schema.map_dtype).max
    classes = np.full(segments.shape, no_label, np.uint32)
    for annotated_object in annotation.objects:
        if annotated_object.segmentation is None:
            continue
        label = schema.object_labels.find(annotated_object.class_name) + schema.label_offset
        if label >= no_label:
            raise ValueError(f"label {label} does not fit a label map of {schema.map_dtype}")
        classes[annotated_object.segmentation.draw_mask(view.height, view.width, segments)] = label
    return classes


def _convert_extra_value(feature: Feature, value: Any) -> Any:
    """Return an extra value as a record stores it; ValueError if it does not fit its feature."""
    if feature.shape:
        if not isinstance(value, list | tuple):
            raise ValueError(f"no list in {feature.name!r}: {shorten_value(value)}")
        return [_convert_scalar(feature, scalar) for scalar in value]
    return _convert_scalar(feature, value)


def _convert_scalar(feature: Feature, value: Any) -> Any:
    """Return a value of an annotation in the type of its feature: bytes, int or float; ValueError if it does not fit."""
    if feature.kind == "bytes" and isinstance(value, str):
        return _encode_text(value)
    if feature.kind == "int64" and isinstance(value, int) and fits_int64(value):
        return int(value)
    if feature.kind == "float" and isinstance(value, int | float) and not float32_problem(value, rounds=True):
        return float(value)
    raise ValueError(f"no {feature.dtype} in {feature.name!r}: {shorten_value(value)}")


def _encode_text(text: str) -> bytes:
    """Return a string as UTF-8; ValueError if it has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a text that is not UTF-8: {shorten_value(text)}") from None

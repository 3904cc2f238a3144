"""The rows of COCO JSON: images and annotations, in the form that coco.py describes."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from beam_jobs.annotations.annotation import (
    Annotated,
    ImageAnnotation,
    MapFile,
    ObjectAnnotation,
    Place,
    make_box,
    pack_keypoints,
)
from beam_jobs.annotations.segmentation import Polygons, RunLengths, Segmentation, SegmentId, pack_counts, pack_polygon
from beam_jobs.file_names import find_parent
from beam_jobs.values.json_elements import Element
from tpudata.json_values import abbreviate_json, convert_json_number
from tpudata.storage import storage_for

IMAGES, ANNOTATIONS = "images", "annotations"
# Key of the picture's id in the rows of each array.
_PICTURE_ID_KEYS = {IMAGES: "id", ANNOTATIONS: "image_id"}


class SegmentFolder:
    """The folder with the PNGs of a panoptic file: next to it and named like it or, if there is none, the file's own folder."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = ""

    def find_path(self, name: str) -> str:
        """Return the path of a PNG by its name, which may have folders."""
        storage = storage_for(self._path)
        # The folder is looked for once, since a file names thousands of PNGs.
        if not self._folder:
            parent = find_parent(self._path) or "."
            named_folder = storage.join(parent, self._path.rpartition("/")[2].partition(".")[0])
            entry = storage.stat(named_folder)
            self._folder = named_folder if entry is not None and entry.is_folder else parent
        return storage.join(self._folder, *name.split("/"))


def find_picture_id(element: Element) -> Hashable:
    """Return the id of a row's picture; for an invalid row, a value that no other row has."""
    if _find_row_problem(element.value, element.key):
        return element.key, element.offset
    picture_id: Hashable = element.value[_PICTURE_ID_KEYS[element.key]]
    return picture_id


def format_category_key(category_id: Any) -> str:
    """Return the id of a category as a string that differs for 1 and "1", and for any two strings.

    Other JSON values are no ids of categories; their keys are only for messages.
    """
    if isinstance(category_id, str):
        return json.dumps(category_id)
    return str(category_id) if isinstance(category_id, int) else abbreviate_json(category_id)


def _find_row_problem(row: Any, array_key: str) -> str:
    """Return why a row of an array, `IMAGES` or `ANNOTATIONS`, belongs to no picture; an empty string if it belongs to one."""
    if not isinstance(row, dict):
        return f"not a JSON object in {array_key!r}: {abbreviate_json(row)}"
    id_key = _PICTURE_ID_KEYS[array_key]
    picture_id = row.get(id_key)
    is_id = isinstance(picture_id, int | str) and not isinstance(picture_id, bool)
    return "" if is_id else f"no {id_key!r} in {array_key!r}: {abbreviate_json(row)}"


def parse_image_row(row: Any, place: Place) -> Annotated:
    """Return a row of "images" as a part of its picture's annotation, or the row's error."""
    problem = _find_row_problem(row, IMAGES)
    if problem:
        return place.make_error(problem)
    name = row.get("file_name")
    if name is None and isinstance(row.get("coco_url"), str):
        # LVIS has only the URL, such as http://images.cocodataset.org/train2017/000000391895.jpg.
        name = "/".join(row["coco_url"].split("/")[-2:])
    if not isinstance(name, str) or not name:
        return place.make_error(f"an image without 'file_name': {abbreviate_json(row)}")
    try:
        width, height = (_parse_side(row, side) for side in ("width", "height"))
    except ValueError as error:
        return place.make_error(str(error), name)
    return ImageAnnotation(name, place, width, height, source_id=str(row["id"]))


def _parse_side(row: Mapping[str, Any], name: str) -> int:
    """Return a side of an image in pixels, 0 if it is missing; ValueError if it is not a number of pixels."""
    value = row.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name!r} is not a number of pixels: {abbreviate_json(value)}")
    return value


def parse_annotation_row(row: Any, place: Place, segments: SegmentFolder) -> Annotated:
    """Return a row of "annotations" as a part of its picture's annotation, or the row's error.

    Its objects have the keys of categories as their classes, since the categories may come later in the file. Its `picture` is
    empty: only rows of "images" name the picture.
    """
    problem = _find_row_problem(row, ANNOTATIONS)
    if problem:
        return place.make_error(problem)
    try:
        segment_infos = row.get("segments_info")
        if segment_infos is not None:
            name = row.get("file_name")
            if not isinstance(name, str) or not isinstance(segment_infos, list):
                raise ValueError("no 'file_name' of a PNG, or no list 'segments_info'")
            objects = tuple(_parse_object(info, SegmentId(_parse_integer(info, "id"))) for info in segment_infos)
            return ImageAnnotation(
                "", place, objects=objects, map_file=MapFile(segments.find_path(name), holds_segments=True)
            )
        caption = row.get("caption")
        # A row with a category is an object, even if it also has a caption.
        if caption is not None and "category_id" not in row:
            if not isinstance(caption, str):
                raise ValueError(f"'caption' is not a text: {abbreviate_json(caption)}")
            return ImageAnnotation("", place, captions=(caption,))
        return ImageAnnotation("", place, objects=(_parse_object(row, _parse_segmentation(row.get("segmentation"))),))
    except (ValueError, TypeError, OverflowError) as error:
        return place.make_error(f"annotation {abbreviate_json(row.get('id'))}: {error}")


def _parse_object(row: Any, segmentation: Segmentation | None) -> ObjectAnnotation:
    """Return the object of a row with the key of its category as its class; ValueError if it is invalid.

    Args:
        row: a row of "annotations", or of "segments_info" in a panoptic file.
        segmentation: pixels of the object; polygons stand in for a missing "bbox".
    """
    if not isinstance(row, dict) or "category_id" not in row:
        raise ValueError(f"no object with a 'category_id': {abbreviate_json(row)}")
    numbers = row.get("bbox")
    if numbers is not None:
        if not isinstance(numbers, list) or len(numbers) != 4:
            raise ValueError(f"'bbox' is not [x, y, width, height]: {abbreviate_json(numbers)}")
        x, y, width, height = (convert_json_number(number, "bbox") for number in numbers)
        box = make_box(x, y, width, height)
    elif isinstance(segmentation, Polygons):
        box = segmentation.bounds
    else:
        raise ValueError("no 'bbox'")
    area = row.get("area")
    keypoints = row.get("keypoints")
    if keypoints is not None and not isinstance(keypoints, list):
        raise ValueError(f"'keypoints' is not a list: {abbreviate_json(keypoints)}")
    return ObjectAnnotation(
        box,
        format_category_key(row["category_id"]),
        is_crowd=row.get("iscrowd") not in (None, 0, False),
        area=None if area is None else convert_json_number(area, "area"),
        segmentation=segmentation,
        keypoints=pack_keypoints(convert_json_number(number, "keypoints") for number in keypoints or ()),
    )


def _parse_segmentation(value: Any) -> Segmentation | None:
    """Return the segmentation of an object; None if it is missing or empty.

    Raises:
        ValueError, TypeError, OverflowError: the value is damaged.
    """
    if not value:
        return None
    if isinstance(value, list):
        if not all(isinstance(polygon, list) for polygon in value):
            raise ValueError(f"'segmentation' is not a list of polygons: {abbreviate_json(value)}")
        return Polygons(tuple(pack_polygon(polygon) for polygon in value))
    counts, size = (value.get("counts"), value.get("size")) if isinstance(value, dict) else (None, None)
    if isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size):
        if isinstance(counts, str) and counts.isascii():
            return RunLengths(size[0], size[1], counts.encode())
        if isinstance(counts, list):
            return RunLengths(size[0], size[1], pack_counts(counts), is_text=False)
    raise ValueError(f"'segmentation' is neither polygons nor run lengths with their size: {abbreviate_json(value)}")


def _parse_integer(row: Any, name: str) -> int:
    """Return the integer `name` of a row; ValueError if it is missing or another value."""
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name!r} is not a whole number: {abbreviate_json(row)}")
    return value

"""COCO JSON: instances, keypoints, captions and panoptic, as in https://cocodataset.org/#format-data.

    {"images":      [{"id": 9, "file_name": "000000000009.jpg", "width": 640, "height": 480}, ...],
     "annotations": [{"id": 1, "image_id": 9, "category_id": 18, "bbox": [x, y, width, height], "area": 702.1, "iscrowd": 0,
                      "segmentation": [[x, y, x, y, ...], ...] or {"counts": ..., "size": [height, width]},
                      "keypoints": [x, y, visibility, ...], "caption": "..."}, ...],
     "categories":  [{"id": 18, "name": "dog"}, ...]}

The arrays come in any order, and so do the annotations of a picture; all but the id, the image's name and what belongs to the
annotation's kind may be missing. Classes are numbered in the order of the ids of their categories; categories of one name are
one class. In panoptic files an annotation has a PNG, in the folder of the JSON's name, and the segments in it.
"""

from __future__ import annotations

import array
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from beam_jobs.annotations.annotation import (
    Annotated,
    ImageAnnotation,
    MapFile,
    ObjectAnnotation,
    Place,
    box_of,
    pack_keypoints,
)
from beam_jobs.annotations.files.grouped import PictureParts, joined
from beam_jobs.annotations.files.json_elements import Element, array_elements
from beam_jobs.annotations.files.rows import open_annotations
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.segmentation import Polygons, RunLengths, Segmentation, SegmentId, pack_counts, pack_polygon
from beam_jobs.values.json_values import json_number, shown_json
from tpudata.errors import SourceError
from tpudata.storage import storage_for

IMAGES, ANNOTATIONS, CATEGORIES = "images", "annotations", "categories"
# Some files begin with a long description.
_HEAD = re.compile(rb'\s*\{(?:\s*"(?:info|licenses)"|.*"(?:images|annotations|categories)"\s*:\s*\[)', re.DOTALL)
_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class CocoForm(AnnotationForm):
    """A COCO JSON file.

    Attributes:
        path: the file.
    """

    path: str
    title = "COCO JSON"

    @classmethod
    def find_file(cls, path: str, head: bytes) -> CocoForm | None:
        """Return the form of a JSON object with an array of images, annotations or categories."""
        return cls(path) if _HEAD.match(head.removeprefix(_BOM)) else None

    def parts(self) -> Iterable[str]:
        """Yield the file."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield what the file says of each picture, in the order in which they come first in it."""
        categories = _Categories(part)
        ids = _AnnotationIds()
        segments = _SegmentFolder(part)
        has_images = False
        with PictureParts() as parts:
            with open_annotations(part) as file:
                for element in array_elements(file, part, (IMAGES, ANNOTATIONS, CATEGORIES)):
                    place = Place(part, offset=element.offset)
                    has_images = has_images or element.key == IMAGES
                    if not isinstance(element.value, dict):
                        reason = f"no JSON object in {element.key!r}: {shown_json(element.value)}"
                        parts.add(_no_picture(element), place.rejected(reason))
                    elif element.key == CATEGORIES:
                        categories.add(element.value, place)
                    else:
                        row = element.value
                        if element.key == ANNOTATIONS and "id" in row:
                            ids.add(row["id"], element.offset)
                        name = "id" if element.key == IMAGES else "image_id"
                        picture = row.get(name)
                        if not isinstance(picture, int | str) or isinstance(picture, bool):
                            reason = f"no {name!r} in {element.key!r}: {shown_json(row)}"
                            parts.add(_no_picture(element), place.rejected(reason))
                            continue
                        parts.add(
                            picture,
                            _image(row, place) if element.key == IMAGES else _annotation(row, place, segments),
                        )
            if not has_images:
                raise SourceError(f'{part}: COCO JSON without images. Pass a file that lists them in "images".')
            names.objects, names.keypoints = categories.names, categories.keypoints
            doubled = ids.doubled()
            for _, found in parts.take():
                yield _picture(found, categories, doubled)


class _Categories:
    """The categories of a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._names: dict[int | str, str] = {}
        self._by_key: dict[str, str] = {}
        self.keypoints: tuple[str, ...] = ()

    def add(self, row: Mapping[str, Any], place: Place) -> None:
        """Add a row; SourceError if it is damaged: classes of any picture may depend on it."""
        number, name = row.get("id"), row.get("name")
        if not isinstance(number, int | str) or isinstance(number, bool) or not isinstance(name, str):
            raise SourceError(
                f"{place.path} at byte {place.offset}: a category without id or name: {shown_json(row)}. Fix it."
            )
        if self._names.setdefault(number, name) != name:
            raise SourceError(
                f"{place.path} at byte {place.offset}: two categories have the id {number!r}: {self._names[number]!r} and {name!r}."
                " Give each its own."
            )
        self._by_key[_category_key(number)] = name
        points = row.get("keypoints")
        if isinstance(points, list) and points:
            self.keypoints = self.keypoints or tuple(map(str, points))

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, in the order of the ids; texts come after numbers."""
        ordered = sorted(self._names, key=lambda number: (isinstance(number, str), number))
        return tuple(dict.fromkeys(self._names[number] for number in ordered))

    def named(self, item: ObjectAnnotation) -> ObjectAnnotation:
        """Return an object whose class is the key of a category with the category's name; ValueError if there is none."""
        name = self._by_key.get(item.class_name)
        if name is None:
            raise ValueError(f"unknown category_id {item.class_name}: {len(self._by_key)} categories are listed")
        return item._replace(class_name=name)


class _AnnotationIds:
    """The ids of annotations, in 16 bytes each: a set of millions of numbers would take 100."""

    def __init__(self) -> None:
        self._hashes = array.array("q")
        self._offsets = array.array("q")

    def add(self, number: Any, offset: int) -> None:
        """Add the id of the annotation at an offset. Hashes of whole numbers below 2**61 are the numbers."""
        self._hashes.append(hash(repr(number)) if isinstance(number, list | dict) else hash(number))
        self._offsets.append(offset)

    def doubled(self) -> frozenset[int]:
        """Return the offsets of the annotations whose id another one has, too."""
        hashes = np.frombuffer(self._hashes, np.int64)
        _, places, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        return frozenset(np.frombuffer(self._offsets, np.int64)[counts[places] > 1].tolist())


class _SegmentFolder:
    """The folder with the PNGs of a panoptic file: that of its name, or the one it is in."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = ""

    def __call__(self, name: str) -> str:
        """Return the path of a PNG."""
        storage = storage_for(self._path)
        if not self._folder:
            above, _, base = self._path.rpartition("/")
            own = storage.join(above, base.partition(".")[0]) if above else base.partition(".")[0]
            found = storage.stat(own)
            self._folder = own if found is not None and found.is_folder else above or "."
        return storage.join(self._folder, *name.split("/"))


def _no_picture(element: Element) -> tuple[str, int]:
    return element.key, element.offset


def _category_key(number: Any) -> str:
    return shown_json(number)


def _image(row: Mapping[str, Any], place: Place) -> Annotated:
    name = row.get("file_name")
    if name is None and isinstance(row.get("coco_url"), str):
        # As in LVIS: http://images.cocodataset.org/train2017/000000391895.jpg.
        name = "/".join(row["coco_url"].split("/")[-2:])
    if not isinstance(name, str) or not name:
        return place.rejected(f"an image without 'file_name': {shown_json(row)}")
    try:
        width, height = (_side(row, side) for side in ("width", "height"))
    except ValueError as error:
        return place.rejected(f"image {name!r}: {error}")
    return ImageAnnotation(name, place, width, height)


def _side(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name!r} is no number of pixels: {shown_json(value)}")
    return value


def _annotation(row: Mapping[str, Any], place: Place, segments: _SegmentFolder) -> Annotated:
    """Return the part of a picture that a row of "annotations" is. Its objects' classes are keys of categories."""
    try:
        infos = row.get("segments_info")
        if infos is not None:
            name = row.get("file_name")
            if not isinstance(name, str) or not isinstance(infos, list):
                raise ValueError("no 'file_name' of a PNG, or no list 'segments_info'")
            objects = tuple(_object(info, SegmentId(_whole(info, "id"))) for info in infos)
            return ImageAnnotation("", place, objects=objects, map_file=MapFile(segments(name), holds_segments=True))
        caption = row.get("caption")
        if caption is not None and "category_id" not in row:
            if not isinstance(caption, str):
                raise ValueError(f"'caption' is no text: {shown_json(caption)}")
            return ImageAnnotation("", place, captions=(caption,))
        return ImageAnnotation("", place, objects=(_object(row, _segmentation(row.get("segmentation"))),))
    except (ValueError, TypeError, OverflowError) as error:
        return place.rejected(f"annotation {shown_json(row.get('id'))}: {error}")


def _object(row: Any, segmentation: Segmentation | None) -> ObjectAnnotation:
    if not isinstance(row, dict) or "category_id" not in row:
        raise ValueError(f"no object with a 'category_id': {shown_json(row)}")
    numbers = row.get("bbox")
    if numbers is not None:
        if not isinstance(numbers, list) or len(numbers) != 4:
            raise ValueError(f"'bbox' is not [x, y, width, height]: {shown_json(numbers)}")
        x, y, width, height = (json_number(number, "bbox") for number in numbers)
        box = box_of(x, y, width, height)
    elif isinstance(segmentation, Polygons):
        box = segmentation.bounds
    else:
        raise ValueError("no 'bbox'")
    area = row.get("area")
    keypoints = row.get("keypoints")
    if keypoints is not None and not isinstance(keypoints, list):
        raise ValueError(f"'keypoints' is no list: {shown_json(keypoints)}")
    return ObjectAnnotation(
        box,
        _category_key(row["category_id"]),
        is_crowd=row.get("iscrowd") not in (None, 0, False),
        area=None if area is None else json_number(area, "area"),
        segmentation=segmentation,
        keypoints=pack_keypoints(json_number(number, "keypoints") for number in keypoints or ()),
    )


def _segmentation(value: Any) -> Segmentation | None:
    """Return the segmentation of an object; None if it is missing or empty."""
    if not value:
        return None
    if isinstance(value, list):
        if not all(isinstance(polygon, list) for polygon in value):
            raise ValueError(f"'segmentation' is no list of polygons: {shown_json(value)}")
        return Polygons(tuple(pack_polygon(polygon) for polygon in value))
    counts, size = (value.get("counts"), value.get("size")) if isinstance(value, dict) else (None, None)
    if isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size):
        if isinstance(counts, str) and counts.isascii():
            return RunLengths(size[0], size[1], counts.encode())
        if isinstance(counts, list):
            return RunLengths(size[0], size[1], pack_counts(counts), is_text=False)
    raise ValueError(f"'segmentation' is neither polygons nor run lengths with their size: {shown_json(value)}")


def _whole(row: Any, name: str) -> int:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name!r} is no whole number: {shown_json(row)}")
    return value


def _picture(parts: list[Annotated], categories: _Categories, doubled: frozenset[int]) -> Annotated:
    """Return the annotation of a picture from its row of "images" and its annotations; an error if one is damaged."""
    known = [part for part in parts if isinstance(part, ImageAnnotation)]
    if len(known) < len(parts):
        return joined(parts)
    images, others = ([part for part in known if bool(part.picture) is is_image] for is_image in (True, False))
    if not images:
        return others[0].place.rejected("an annotation of an image that the file does not list")
    if len(images) > 1:
        return images[1].place.rejected(f"another image has the same id: {images[0].picture!r}")
    for part in others:
        if part.place.offset in doubled:
            return part.place.rejected(f"another annotation has the same id; this one is of {images[0].picture!r}")
    whole = images[0].joined(others)
    try:
        return whole._replace(objects=tuple(map(categories.named, whole.objects)))
    except ValueError as error:
        return whole.place.rejected(f"{whole.picture!r}: {error}")

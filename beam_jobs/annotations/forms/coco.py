"""COCO JSON: instances, keypoints, captions and panoptic, as in https://cocodataset.org/#format-data.

    {"images":      [{"id": 9, "file_name": "000000000009.jpg", "width": 640, "height": 480}, ...],
     "annotations": [{"id": 1, "image_id": 9, "category_id": 18, "bbox": [x, y, width, height], "area": 702.1, "iscrowd": 0,
                      "segmentation": [[x, y, x, y, ...], ...] or {"counts": ..., "size": [height, width]},
                      "keypoints": [x, y, visibility, ...], "caption": "..."}, ...],
     "categories":  [{"id": 18, "name": "dog"}, ...]}

The arrays come in any order, and so do the annotations of a picture; all but the id, the image's name and what belongs to the
annotation's kind may be missing. Classes are numbered in the order of the ids of their categories; categories of the same name are
one class. In panoptic files an annotation has a PNG, in the folder of the JSON's name, and the segments in it.
"""

from __future__ import annotations

import array
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, ObjectAnnotation, Place
from beam_jobs.annotations.files.picture_parts import PictureParts
from beam_jobs.annotations.files.rows import open_annotations
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.forms.coco_rows import (
    ANNOTATIONS,
    IMAGES,
    SegmentFolder,
    find_picture_id,
    format_category_key,
    parse_annotation_row,
    parse_image_row,
)
from beam_jobs.references.rejection import add_key
from beam_jobs.values.column_kinds import fits_int64
from beam_jobs.values.json_elements import Element, array_elements
from tpudata.errors import BadRecordError, SourceError
from tpudata.json_values import abbreviate_json

CATEGORIES = "categories"
# A file that begins with `info` or `licenses` counts as well: these may be longer than the head.
_HEAD = re.compile(rb'\s*\{(?:\s*"(?:info|licenses)"|.*"(?:images|annotations|categories)"\s*:\s*\[)', re.DOTALL)
_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class CocoForm(AnnotationForm):
    """A COCO JSON file.

    Attributes:
        path: path of the JSON file.
    """

    path: str
    title = "COCO JSON"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> CocoForm | None:
        """Return the form of a JSON object that has an array of images, annotations or categories, or begins with `info` or
        `licenses`; None for any other file.
        """
        return cls(path) if _HEAD.match(head.removeprefix(_BOM)) else None

    def list_parts(self) -> Iterable[str]:
        """Return the file, the only part."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the annotation of each picture, in the order of first appearance, once all rows are read and `names` is filled.

        Raises:
            SourceError: the file is not JSON, lists no images, or has a damaged category or gives one id two names.
        """
        categories = _Categories()
        annotation_ids = _AnnotationIds()
        segments = SegmentFolder(part)
        has_images = False
        with PictureParts() as parts:
            with open_annotations(part) as file:
                for element in array_elements(file, part, (IMAGES, ANNOTATIONS, CATEGORIES)):
                    place = Place(part, offset=element.offset)
                    if element.key == CATEGORIES:
                        categories.add(element.value, place)
                        continue
                    picture = find_picture_id(element)
                    if element.key == IMAGES:
                        has_images = True
                        parts.add(picture, parse_image_row(element.value, place))
                    else:
                        annotation_ids.add(element)
                        parts.add(picture, parse_annotation_row(element.value, place, segments))
            if not has_images:
                raise SourceError(f'{part}: COCO JSON without images. Pass a file that lists them in "images".')
            # The names are known only here, since the categories may come after the rows that refer to them.
            names.objects, names.keypoints = categories.names, categories.keypoints
            repeated_offsets = annotation_ids.find_repeated_offsets()
            for _, picture_parts in parts.read_groups():
                yield _join_picture(picture_parts, categories, repeated_offsets)


class _Categories:
    """The categories of a file."""

    def __init__(self) -> None:
        self._names_by_id: dict[int | str, str] = {}
        self._names_by_key: dict[str, str] = {}
        self.keypoints: tuple[str, ...] = ()

    def add(self, row: Any, place: Place) -> None:
        """Add a row; SourceError if it is damaged or gives an earlier id another name: any picture's classes may depend on it."""
        category_id, name = (row.get("id"), row.get("name")) if isinstance(row, dict) else (None, None)
        if not isinstance(category_id, int | str) or isinstance(category_id, bool) or not isinstance(name, str):
            raise SourceError(
                f"{place.path} at byte {place.offset}: a category without id or name: {abbreviate_json(row)}. Fix it."
            )
        first_name = self._names_by_id.setdefault(category_id, name)
        if first_name != name:
            raise SourceError(
                f"{place.path} at byte {place.offset}: two categories have the id {category_id!r}: {first_name!r} and"
                f" {name!r}. Give each its own."
            )
        self._names_by_key[format_category_key(category_id)] = name
        # The first category with keypoints names them for all objects, since all objects of a record have the same number.
        points = row.get("keypoints")
        if isinstance(points, list) and points:
            self.keypoints = self.keypoints or tuple(map(str, points))

    @property
    def names(self) -> tuple[str, ...]:
        """The classes in the order of their ids, numbers before strings; categories of the same name are one class."""
        ordered_ids = sorted(self._names_by_id, key=lambda category_id: (isinstance(category_id, str), category_id))
        return tuple(dict.fromkeys(self._names_by_id[category_id] for category_id in ordered_ids))

    def name_class(self, annotated_object: ObjectAnnotation) -> ObjectAnnotation:
        """Return an object whose class is the name of its category instead of the key; ValueError for an unknown key."""
        name = self._names_by_key.get(annotated_object.class_name)
        if name is None:
            raise ValueError(
                f"unknown category_id {annotated_object.class_name:.80}: {len(self._names_by_key)} categories are listed"
            )
        return annotated_object._replace(class_name=name)


class _AnnotationIds:
    """The ids of annotations, as numbers: 16 bytes each with their offsets, where a set would take 100."""

    def __init__(self) -> None:
        self._ids = array.array("q")
        self._offsets = array.array("q")

    def add(self, element: Element) -> None:
        """Add the id of an annotation, if it has one: an int64 as itself, strings and longer integers as hashes of 64 bits."""
        annotation_id = element.value.get("id") if isinstance(element.value, dict) else None
        if isinstance(annotation_id, int | str):
            # Python's hashes of integers collide, such as those of -1 and -2; hashes of strings are as good as random.
            if isinstance(annotation_id, int) and fits_int64(annotation_id):
                self._ids.append(annotation_id)
            else:
                self._ids.append(hash(repr(annotation_id)))
            self._offsets.append(element.offset)

    def find_repeated_offsets(self) -> frozenset[int]:
        """Return the byte offsets of the annotations whose id occurs more than once."""
        if not self._ids:
            return frozenset()
        _, id_indices, counts = np.unique(np.frombuffer(self._ids, np.int64), return_inverse=True, return_counts=True)
        return frozenset(np.frombuffer(self._offsets, np.int64)[counts[id_indices] > 1].tolist())


def _join_picture(parts: list[Annotated], categories: _Categories, repeated_offsets: frozenset[int]) -> Annotated:
    """Return the annotation of a picture from its row of "images" and its annotations; an error if one is damaged, repeats an id
    or has an unknown category, or if "images" does not list the picture.
    """
    annotations = [part for part in parts if isinstance(part, ImageAnnotation)]
    # Only rows of "images" name a picture.
    images = [part for part in annotations if part.picture]
    annotation_rows = [part for part in annotations if not part.picture]
    first_error = next((part for part in parts if isinstance(part, BadRecordError)), None)
    if first_error is not None:
        return add_key(first_error, images[0].picture) if images else first_error
    if not images:
        return annotation_rows[0].place.make_error("an annotation of an image that the file does not list")
    if len(images) > 1:
        return images[1].place.make_error("another image has the same id", images[0].picture)
    for part in annotation_rows:
        if part.place.offset in repeated_offsets:
            return part.place.make_error("another annotation has the same id", images[0].picture)
    joined_picture = images[0].join(annotation_rows)
    try:
        return joined_picture._replace(objects=tuple(map(categories.name_class, joined_picture.objects)))
    except ValueError as error:
        return joined_picture.place.make_error(str(error), joined_picture.picture)

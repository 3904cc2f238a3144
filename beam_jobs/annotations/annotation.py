"""Annotations of a picture, in one form for all kinds of annotation files.

Coordinates are those of the annotation file: pixels of the picture, as it is stored or as a viewer turns it, or fractions of its
sides. x grows to the right and y downwards, both from the top left corner; the first pixel spans 0 to 1.
`beam_jobs.image_records.annotated` converts annotations to the features of a record. An annotation file may describe millions of
objects, so the types are small: lists of numbers are packed in bytes.
"""

from __future__ import annotations

import array
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from beam_jobs.annotations.segmentation import Segmentation
from tpudata.errors import BadRecordError

# ymin, xmin, ymax, xmax.
Box: TypeAlias = tuple[float, float, float, float]
# x, y and visibility.
_NUMBERS_PER_KEYPOINT = 3


class Place(NamedTuple):
    """Position of an annotation in its file, for messages.

    Attributes:
        path: path of the annotation file.
        line: number of its line, counted from 1; 0 in a form without lines.
        offset: byte offset in the file; None if unknown.
    """

    path: str
    line: int = 0
    offset: int | None = None

    def make_error(self, reason: str, picture: str = "") -> BadRecordError:
        """Return the error of a bad annotation; the error's `key` is the name of the picture.

        Args:
            reason: why it is bad.
            picture: name of the picture as the file gives it; empty if unknown, which leaves the `key` None.
        """
        source = f"{self.path} line {self.line}" if self.line else self.path
        statement = f"{picture!r}: {reason}" if picture else reason
        return BadRecordError(source, f"bad annotation: {statement}", self.offset, picture or None)


class ObjectAnnotation(NamedTuple):
    """One object of a picture.

    Attributes:
        box: ymin, xmin, ymax and xmax: the edges of the box.
        class_name: name of its class; empty in a form without classes of objects.
        is_crowd: whether it is a group of objects; None if the file does not state it.
        is_difficult: whether it is marked as hard to recognize; None if the file does not state it.
        area: area in pixels of the picture as annotated; None if the file does not state it.
        segmentation: the pixels that it covers; None if the file does not state them.
        keypoints: float64 (x, y, visibility) of each keypoint, from `pack_keypoints`. Visibility is 0 for an unplaced keypoint,
            1 for a hidden and 2 for a visible one, as in COCO.
    """

    box: Box
    class_name: str = ""
    is_crowd: bool | None = None
    is_difficult: bool | None = None
    area: float | None = None
    segmentation: Segmentation | None = None
    keypoints: bytes = b""

    @property
    def keypoint_array(self) -> npt.NDArray[np.float64]:
        """The keypoints, float64 [n, 3]."""
        return np.frombuffer(self.keypoints, np.float64).reshape(-1, _NUMBERS_PER_KEYPOINT)


class MapFile(NamedTuple):
    """A PNG with a number for each pixel.

    Attributes:
        path: path of the PNG.
        holds_segments: whether the numbers are the ids of segments, as in COCO panoptic; otherwise they are classes.
        is_wide: whether the numbers have 16 bits.
    """

    path: str
    holds_segments: bool = False
    is_wide: bool = False


class ImageAnnotation(NamedTuple):
    """Annotation of one picture, or a part of it: several rows of a file may describe one picture.

    Attributes:
        picture: the picture's path or name as the file gives it, perhaps without extension; see `beam_jobs.annotations.pictures`.
        place: position of the annotation in its file.
        width: width in pixels of the picture as annotated; 0 if the file does not state it.
        height: height in pixels of the picture as annotated; 0 if the file does not state it.
        is_normalized: whether coordinates are fractions of the sides, instead of pixels.
        objects: the objects, in the order of the file.
        captions: texts that describe the picture.
        classes: names of the classes of the whole picture.
        map_file: label map of the picture; None if it has none.
        values: extra values by name: numbers, strings, and lists of these.
        target: path of the second image of a pair; empty if pictures are not in pairs.
        source_id: the picture's id in the file, or empty in a form without ids.
    """

    picture: str
    place: Place
    width: int = 0
    height: int = 0
    is_normalized: bool = False
    objects: tuple[ObjectAnnotation, ...] = ()
    captions: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    map_file: MapFile | None = None
    values: tuple[tuple[str, Any], ...] = ()
    target: str = ""
    source_id: str = ""

    def join(self, parts: Iterable[ImageAnnotation]) -> ImageAnnotation:
        """Return this annotation merged with later parts: lists are concatenated, and a value that this one lacks comes from the
        first part that has it. `picture`, `place` and `is_normalized` stay those of this annotation.
        """
        all_parts = [self, *parts]
        return self._replace(
            width=next((part.width for part in all_parts if part.width), 0),
            height=next((part.height for part in all_parts if part.height), 0),
            objects=tuple(annotated_object for part in all_parts for annotated_object in part.objects),
            captions=tuple(text for part in all_parts for text in part.captions),
            classes=tuple(name for part in all_parts for name in part.classes),
            map_file=next((part.map_file for part in all_parts if part.map_file), None),
            values=tuple(pair for part in all_parts for pair in part.values),
            target=next((part.target for part in all_parts if part.target), ""),
            source_id=next((part.source_id for part in all_parts if part.source_id), ""),
        )


# An annotation of a picture or of a part of it, or the error of a damaged one.
Annotated: TypeAlias = ImageAnnotation | BadRecordError


def make_box(x: float, y: float, width: float, height: float) -> Box:
    """Return the edges of a box from its top left corner and its size."""
    return y, x, y + height, x + width


def pack_keypoints(numbers: Iterable[float]) -> bytes:
    """Return x, y and visibility of keypoints, packed as in `ObjectAnnotation.keypoints`; ValueError if they are not triples."""
    packed = array.array("d", numbers)
    if len(packed) % _NUMBERS_PER_KEYPOINT:
        raise ValueError(f"keypoints are not triples of x, y and visibility: {len(packed)} numbers")
    return packed.tobytes()

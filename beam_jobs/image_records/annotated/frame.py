"""Coordinates of annotations, moved from a picture's file to its record: turned by its Exif orientation, and resized.

The coordinates of an annotation belong either to the pixels as the file stores them, or to the picture as viewers show it, turned
upright. Its width and height tell which, if the orientation exchanges the sides. Otherwise `is_upright` tells; by default, the
stored pixels are assumed, which TensorFlow and pycocotools read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.annotations.annotation import Box
from beam_jobs.annotations.segmentation import MAX_OUTSIDE
from beam_jobs.feature_values.label_maps import decode_label_map, encode_label_map
from tpudata.format import Feature
from tpudata.images.header import UPRIGHT, read_header
from tpudata.images.image_format import JPEG, PNG, detect_format
from tpudata.images.pillow_files import open_image
from tpudata.images.pixels import find_exif_orientation

# Orientations that exchange rows and columns.
_SIDEWAYS = (5, 6, 7, 8)
_BOX_FIX = "remove or correct it, or pass --on-bad-record=skip to omit its picture"
# By Exif orientation, functions that turn a point (x, y), in fractions of the sides, upright, as PIL.ImageOps.exif_transpose turns
# pixels.
_POINT_TURNS: dict[int, Callable[[float, float], tuple[float, float]]] = {
    1: lambda x, y: (x, y),
    2: lambda x, y: (1 - x, y),
    3: lambda x, y: (1 - x, 1 - y),
    4: lambda x, y: (x, 1 - y),
    5: lambda x, y: (y, x),
    6: lambda x, y: (1 - y, x),
    7: lambda x, y: (1 - y, 1 - x),
    8: lambda x, y: (y, 1 - x),
}
# The same turns of pixels, [height, width].
_PIXEL_TURNS: dict[int, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.T,
    6: lambda pixels: pixels.T[:, ::-1],
    7: lambda pixels: pixels[::-1, ::-1].T,
    8: lambda pixels: pixels.T[::-1],
}


class Frame(NamedTuple):
    """The sides of a picture in its file and in its record.

    Attributes:
        width: width in pixels of the picture in its file, before its orientation is applied.
        height: height in pixels of the picture in its file, before its orientation is applied.
        orientation: Exif orientation, 1 to 8.
        stored_width: width in pixels of the record's picture, which is upright.
        stored_height: height in pixels of the record's picture.
    """

    width: int
    height: int
    orientation: int
    stored_width: int
    stored_height: int

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height of the file's picture, turned upright."""
        return (self.height, self.width) if self.orientation in _SIDEWAYS else (self.width, self.height)


class View(NamedTuple):
    """The sides of a picture as it was annotated, and in its record.

    Attributes:
        width: width in pixels of the picture as annotated.
        height: height in pixels of the picture as annotated.
        orientation: Exif orientation that turns the annotated picture upright, 1 to 8.
        stored_width: width in pixels of the record's picture, which is upright.
        stored_height: height in pixels of the record's picture.
    """

    width: int
    height: int
    orientation: int
    stored_width: int
    stored_height: int

    @property
    def area_scale(self) -> float:
        """Pixels of the record's picture for each annotated pixel."""
        return self.stored_width * self.stored_height / (self.width * self.height)

    def convert_box(self, box: Box, *, is_normalized: bool) -> Box:
        """Return a box in fractions of the sides of the record's picture.

        Args:
            box: ymin, xmin, ymax and xmax.
            is_normalized: whether the coordinates are fractions of the sides, instead of pixels.

        Raises:
            ValueError: the box has no area, or is outside of the picture by more than a pixel.
        """
        scale_x, scale_y = (1, 1) if is_normalized else (self.width, self.height)
        ymin, xmin, ymax, xmax = box
        if not (xmin < xmax and ymin < ymax):  # Also rejects NaN.
            raise ValueError(f"a box without area: {_format_box(box)}; {_BOX_FIX}")
        corners = [(xmin / scale_x, ymin / scale_y), (xmax / scale_x, ymax / scale_y)]
        if not all(self._is_inside(x, y) for x, y in corners):
            raise ValueError(
                f"a box outside of its picture of {self.width} x {self.height} pixels: {_format_box(box)}; {_BOX_FIX}"
            )
        turn = _POINT_TURNS[self.orientation]
        xs, ys = zip(*(turn(_clip(x), _clip(y)) for x, y in corners), strict=True)
        # Compared in the dtype of records, in which a narrow box may have no area.
        edges = np.array([min(ys), min(xs), max(ys), max(xs)], np.float32)
        if not (edges[0] < edges[2] and edges[1] < edges[3]):
            raise ValueError(
                f"a box without area in its picture of {self.width} x {self.height} pixels: {_format_box(box)}; {_BOX_FIX}"
            )
        ymin, xmin, ymax, xmax = edges.tolist()
        return ymin, xmin, ymax, xmax

    def convert_point(self, x: float, y: float, *, is_normalized: bool) -> tuple[float, float]:
        """Return a point as x and y in fractions of the record's sides; ValueError if it is outside by more than a pixel."""
        x_fraction, y_fraction = (x, y) if is_normalized else (x / self.width, y / self.height)
        if not self._is_inside(x_fraction, y_fraction):
            raise ValueError(
                f"a keypoint outside of its picture of {self.width} x {self.height} pixels: x {x:g}, y {y:g}"
            )
        return _POINT_TURNS[self.orientation](_clip(x_fraction), _clip(y_fraction))

    def convert_pixels(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a map or a mask, [height, width], resized to the record's picture by nearest pixels, and turned upright."""
        sides = (self.stored_height, self.stored_width)
        # Resized first, so these are the sides before the turn.
        height, width = sides[::-1] if self.orientation in _SIDEWAYS else sides
        rows, columns = _pick_nearest(height, self.height), _pick_nearest(width, self.width)
        return np.ascontiguousarray(_PIXEL_TURNS[self.orientation](pixels[rows][:, columns]))

    def _is_inside(self, x: float, y: float) -> bool:
        """Return whether a point, in fractions of the sides, is inside of the picture or outside by at most a pixel."""
        margin_x, margin_y = MAX_OUTSIDE / self.width, MAX_OUTSIDE / self.height
        return -margin_x <= x <= 1 + margin_x and -margin_y <= y <= 1 + margin_y


def make_frame(data: bytes, stored_width: int, stored_height: int) -> Frame:
    """Return the sides of a picture in its file and in its record.

    Args:
        data: bytes of the file: an image of any supported format.
        stored_width: width of the record's picture in pixels.
        stored_height: height of the record's picture in pixels.

    Raises:
        ValueError: the bytes are not an image that can be read; the message completes `rejected: ...`.
    """
    format_name = detect_format(data)
    if format_name in (JPEG, PNG):
        header = read_header(data, format_name)
        return Frame(header.width, header.height, header.orientation, stored_width, stored_height)
    image = open_image(data, format_name)
    return Frame(*image.size, find_exif_orientation(image, format_name), stored_width, stored_height)


def make_view(frame: Frame, width: int, height: int, *, is_upright: bool = False) -> View:
    """Return the sides of a picture as it was annotated, and in its record.

    Args:
        frame: sides of the picture in its file and in its record.
        width: width in pixels of the picture as annotated; 0 if that is not known.
        height: height in pixels of the picture as annotated; 0 if that is not known.
        is_upright: whether the upright picture was annotated if the sides fit both that and the pixels of the file.

    Raises:
        ValueError: the annotated sides fit neither the pixels of the file nor the upright picture.
    """
    upright_width, upright_height = frame.upright_size
    fits_file = width in (0, frame.width) and height in (0, frame.height)
    fits_upright = width in (0, upright_width) and height in (0, upright_height)
    if not fits_file and not fits_upright:
        raise ValueError(
            f"annotated as {width} x {height} pixels, but the picture has {frame.width} x {frame.height} pixels"
        )
    if fits_upright and (is_upright or not fits_file):
        return View(upright_width, upright_height, UPRIGHT, frame.stored_width, frame.stored_height)
    return View(frame.width, frame.height, frame.orientation, frame.stored_width, frame.stored_height)


def place_map(feature: Feature, data: bytes, frame: Frame, *, is_upright: bool = False) -> bytes:
    """Return a label map for the record of a picture: the map's bytes, or a new PNG if it is turned, resized or recoded.

    Args:
        feature: a feature of the encoding "label_map".
        data: the map's PNG, as large as the picture.
        frame: sides of the picture in its file and in its record.
        is_upright: whether the upright picture was annotated if the sides fit both that and the pixels of the file.

    Raises:
        ValueError: the map and the picture differ in size.
        FeatureError: the bytes are not a label map as PNG, or a class does not fit the feature's dtype.
    """
    stored, (height, width, _) = encode_label_map(feature, data)
    view = make_view(frame, width, height, is_upright=is_upright)
    is_unmoved = view == View(width, height, UPRIGHT, width, height)
    if is_unmoved:
        return stored
    return encode_label_map(feature, view.convert_pixels(decode_label_map(feature, data)))[0]


def _pick_nearest(size: int, source_size: int) -> npt.NDArray[np.int64]:
    """Return, for each pixel of a side, the index of the source's pixel in which its centre lies: int64 [size].

    Args:
        size: length of the side in pixels.
        source_size: length of the same side of the source, before it is resized.
    """
    return ((2 * np.arange(size, dtype=np.int64) + 1) * source_size) // (2 * size)


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _format_box(box: Box) -> str:
    return "ymin {:g}, xmin {:g}, ymax {:g}, xmax {:g}".format(*box)

"""The pixels of an object: polygons, run lengths, or an id in a PNG of segments.

COCO's formats, and the order of pixels in run lengths (by column): https://cocodataset.org/#format-data and
cocoapi/common/maskApi.c. pycocotools draws the polygons, by COCO's rule for the pixels at an edge. Run lengths are decoded here:
pycocotools 2.0.11 returns uninitialized memory for run lengths that end early.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.errors import MissingExtraError

# [height, width].
Mask: TypeAlias = npt.NDArray[np.bool_]
# Ids of the segments of a picture, [height, width].
Segments: TypeAlias = npt.NDArray[np.uint32]
# Pixels by which a point may lie outside of its picture: rounding may have moved it.
MAX_OUTSIDE = 1.0
# x and y of the 3 points that a polygon has at least.
_MIN_NUMBERS = 6
# A run length of 32 bits has 7 digits of 5 bits.
_MAX_DIGITS = 7
# Bits of a digit of COCO's text: the digit itself, its sign if it is a number's last, and whether another digit follows.
_DIGIT, _SIGN, _MORE = 31, 16, 32


class Segmentation(Protocol):
    """The pixels that an object covers."""

    def draw_mask(self, height: int, width: int, segments: Segments | None) -> Mask:
        """Return the pixels as booleans, [height, width].

        Args:
            height: height in pixels of the picture as annotated.
            width: width in pixels of the picture as annotated.
            segments: ids of the segments of the picture, if it has a PNG of them.

        Raises:
            ValueError: the segmentation does not fit the picture, or is damaged; the message completes `rejected: ...`.
            MissingExtraError: drawing polygons needs an extra that is not installed.
        """


class Polygons(NamedTuple):
    """Polygons whose union an object covers.

    Attributes:
        points: float64 x and y of each point, for each polygon, from `pack_polygon`.
        is_normalized: whether they are fractions of the sides.
    """

    points: tuple[bytes, ...]
    is_normalized: bool = False

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """The smallest box around all points: ymin, xmin, ymax, xmax."""
        points = np.frombuffer(b"".join(self.points), np.float64).reshape(-1, 2)
        (xmin, ymin), (xmax, ymax) = points.min(0).tolist(), points.max(0).tolist()
        return ymin, xmin, ymax, xmax

    def draw_mask(self, height: int, width: int, segments: Segments | None = None) -> Mask:
        """Return the pixels inside of the polygons; see `Segmentation`."""
        del segments
        coco = load_pycocotools()
        sides = np.array([width, height], np.float64)
        polygons = []
        for packed_points in self.points:
            points = np.frombuffer(packed_points, np.float64).reshape(-1, 2) * (sides if self.is_normalized else 1.0)
            # These comparisons also reject NaN. An edge to a point far outside would take memory for each of its pixels.
            if not ((points >= -MAX_OUTSIDE) & (points <= sides + MAX_OUTSIDE)).all():
                raise ValueError(
                    f"a polygon with a point outside of its picture: x {points[:, 0].min():g} to {points[:, 0].max():g}, y"
                    f" {points[:, 1].min():g} to {points[:, 1].max():g}; the picture has {width} x {height} pixels"
                )
            polygons.append(points.ravel().tolist())
        # The counts are not decoded by pycocotools: 2.0.11 warns of NumPy 2 when it returns arrays.
        counts: bytes = coco.merge(coco.frPyObjects(polygons, height, width))["counts"]
        return RunLengths(height, width, counts).draw_mask(height, width)


class RunLengths(NamedTuple):
    """Lengths of runs of pixels, column by column, alternately outside and inside of the object.

    Attributes:
        height: height of the mask in pixels.
        width: width of the mask in pixels.
        counts: the lengths, as packed uint32 or as COCO's text.
        is_text: whether `counts` is COCO's text.
    """

    height: int
    width: int
    counts: bytes
    is_text: bool = True

    def draw_mask(self, height: int, width: int, segments: Segments | None = None) -> Mask:
        """Return the mask that the runs describe; see `Segmentation`."""
        del segments
        if (self.height, self.width) != (height, width):
            raise ValueError(f"a mask of {self.width} x {self.height} pixels in a picture of {width} x {height} pixels")
        counts = (
            _decode_coco_text(self.counts) if self.is_text else np.frombuffer(self.counts, np.uint32).astype(np.int64)
        )
        if int(counts.sum()) != height * width or (counts < 0).any():
            raise ValueError(
                f"a mask whose run lengths are damaged: {int(counts.sum())} pixels, and the picture has {height * width}"
            )
        is_inside = (np.arange(len(counts)) % 2).astype(np.bool_)
        mask: Mask = np.repeat(is_inside, counts).reshape(width, height).T
        return mask


class SegmentId(NamedTuple):
    """The pixels with an id in the PNG of a picture's segments.

    Attributes:
        number: the id.
    """

    number: int

    def draw_mask(self, height: int, width: int, segments: Segments | None = None) -> Mask:
        """Return the pixels with the id; see `Segmentation`."""
        del height, width
        mask: Mask = np.zeros((0, 0), np.bool_) if segments is None else segments == self.number
        if not mask.any():
            raise ValueError(f"segment {self.number} has no pixel in the PNG of segments")
        return mask


def load_pycocotools() -> Any:
    """Return pycocotools.mask; MissingExtraError if it is not installed."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise MissingExtraError("Drawing polygons as masks", "annotations") from error
    return mask


def pack_polygon(numbers: Iterable[float]) -> bytes:
    """Return x and y of each point of a polygon as bytes; ValueError for fewer than 3 points or an odd number of coordinates."""
    packed = array.array("d", numbers)
    if len(packed) < _MIN_NUMBERS or len(packed) % 2:
        raise ValueError(f"a polygon of {len(packed)} numbers (expected x and y of 3 points or more)")
    return packed.tobytes()


def pack_counts(counts: Sequence[int]) -> bytes:
    """Return run lengths packed as uint32, for `RunLengths.counts`; ValueError if one is not a length."""
    try:
        return array.array("I", counts).tobytes()
    except (TypeError, OverflowError):
        raise ValueError("a mask with a run length that is not a whole number from 0 to 4,294,967,295") from None


def _decode_coco_text(text: bytes) -> npt.NDArray[np.int64]:
    """Return the run lengths in COCO's text, int64 [n]; ValueError if it is damaged.

    A number is a sequence of digits of 5 bits, the lowest first; a sixth bit is set if another digit follows. From the fourth
    number on, each is the difference from the number two before it.
    """
    digits = np.frombuffer(text, np.uint8).astype(np.int64) - ord("0")
    if not digits.size or digits.min() < 0 or digits.max() >= 2 * _MORE or digits[-1] & _MORE:
        raise ValueError("a mask whose run lengths are not COCO text, or are truncated")
    ends = np.flatnonzero((digits & _MORE) == 0)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _MAX_DIGITS:
        raise ValueError("a mask with a run length of more than 32 bits")
    powers = 5 * (np.arange(len(digits)) - np.repeat(starts, lengths))
    numbers = np.add.reduceat((digits & _DIGIT) << powers, starts)
    # The highest bit of the last digit is the sign, as in two's complement.
    numbers -= np.where(digits[ends] & _SIGN, np.int64(1) << (5 * lengths), 0)
    # The first three numbers are not differences, so numbers 1, 3, ... and 2, 4, ... are added up, and number 0 stays.
    for differences in (numbers[1::2], numbers[2::2]):
        np.cumsum(differences, out=differences)
    return numbers

"""Masks of polygons and run lengths compared with pycocotools, and damaged ones.

Tests decode masks directly: they compare thousands of masks, in sizes that no test picture has.
"""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pycocotools import mask as coco_mask

from beam_jobs.annotations.segmentation import (
    Polygons,
    RunLengths,
    Segmentation,
    SegmentId,
    pack_counts,
    pack_polygon,
)
from tpudata.errors import MissingExtraError

# Of pycocotools 2.0.11 with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIDES = st.integers(1, 40)


@given(mask=SIDES.flatmap(lambda height: SIDES.flatmap(lambda width: arrays(np.bool_, (height, width)))))
def test_decodes_run_lengths_as_pycocotools_does(mask: np.ndarray) -> None:
    counts = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    height, width = mask.shape
    np.testing.assert_array_equal(RunLengths(height, width, counts).draw_mask(height, width), mask)


def test_decodes_long_runs() -> None:
    rows, columns = 3_000, 5_000
    mask = np.zeros((rows, columns), np.uint8, order="F")
    mask[100:2_900, 7:4_999] = 1
    mask[500, 600] = 0
    counts = coco_mask.encode(mask)["counts"]
    np.testing.assert_array_equal(RunLengths(rows, columns, counts).draw_mask(rows, columns), mask.astype(np.bool_))


@given(data=st.data(), height=st.integers(1, 60), width=st.integers(1, 60))
def test_fills_polygons_as_pycocotools_does(data: st.DataObject, height: int, width: int) -> None:
    point = st.tuples(st.floats(-1, width + 1), st.floats(-1, height + 1))
    polygons = data.draw(st.lists(st.lists(point, min_size=3, max_size=9), min_size=1, max_size=3))
    numbers = [[number for pair in polygon for number in pair] for polygon in polygons]
    expected = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(numbers, height, width)))
    found = Polygons(tuple(map(pack_polygon, numbers))).draw_mask(height, width)
    np.testing.assert_array_equal(found, expected.astype(np.bool_))
    sides = np.tile([width, height], 3)
    triangle = np.clip(numbers[0][:6], 0, sides)
    scaled = Polygons((pack_polygon(triangle / sides),), is_normalized=True).draw_mask(height, width)
    again = coco_mask.decode(coco_mask.frPyObjects([(triangle / sides * sides).tolist()], height, width))[:, :, 0]
    np.testing.assert_array_equal(scaled, again.astype(np.bool_))


@pytest.mark.parametrize(
    ("segmentation", "reason"),
    [
        (RunLengths(3, 4, b""), "truncated"),
        (RunLengths(3, 4, b"5"), "damaged"),
        (RunLengths(3, 4, b"0P"), "truncated"),
        (RunLengths(3, 4, b"\xff\xff"), "not COCO text"),
        (RunLengths(3, 4, b"oooooooooo0"), "32 bits"),
        (RunLengths(3, 4, b"O<"), "damaged"),
        (RunLengths(4, 3, b"<"), "a mask of 3 x 4 pixels in a picture of 4 x 3"),
        (RunLengths(3, 4, pack_counts([5, 8]), is_text=False), "damaged"),
        (RunLengths(3, 4, pack_counts([]), is_text=False), "damaged"),
        (Polygons((pack_polygon([0, 0, 3, 0, 3, 1e9]),)), "outside"),
        (Polygons((pack_polygon([0, 0, 3, 0, 3, float("nan")]),)), "outside"),
        (Polygons((pack_polygon([0, 0, 3, 0, 3, float("inf")]),)), "outside"),
        (Polygons((pack_polygon([0, 0, 1, 0, 1, 2]),), is_normalized=True), "outside"),
        (SegmentId(7), "segment 7"),
    ],
)
def test_rejects_segmentations_that_do_not_fit_the_picture(segmentation: Segmentation, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        segmentation.draw_mask(3, 4, np.zeros((3, 4), np.uint32))


@pytest.mark.parametrize("numbers", [[], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]])
def test_rejects_polygons_of_fewer_than_three_points(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match="polygon of"):
        pack_polygon(numbers)


@given(text=st.binary(max_size=40))
def test_decodes_any_bytes_as_pycocotools_does_or_raises_value_error(text: bytes) -> None:
    try:
        mask = RunLengths(5, 7, text).draw_mask(5, 7)
    except ValueError:
        return
    assert mask.shape == (5, 7)
    np.testing.assert_array_equal(mask, coco_mask.decode({"size": [5, 7], "counts": text}).astype(np.bool_))


def test_polygons_require_the_annotations_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(MissingExtraError, match=r"\[annotations\]"):
        Polygons((pack_polygon([0, 0, 1, 0, 1, 1]),)).draw_mask(3, 4)
    # Run lengths do not.
    assert not RunLengths(3, 4, b"<").draw_mask(3, 4).any()


def test_segmentations_can_be_pickled() -> None:
    for segmentation in (RunLengths(3, 4, b"<"), Polygons((pack_polygon([0, 0, 1, 0, 1, 1]),)), SegmentId(3)):
        assert pickle.loads(pickle.dumps(segmentation)) == segmentation

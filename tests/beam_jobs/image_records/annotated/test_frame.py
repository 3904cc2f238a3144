"""Coordinates of annotations in turned and resized pictures, next to Pillow."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from beam_jobs.image_records.annotated.frame import Frame, frame_of, view_of
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.image_records.rules import stored_image
from beam_jobs.references.payload import SELF_DESCRIBING
from tests.beam_jobs.images import encode, exif
from tpudata.images.header import read_header
from tpudata.images.image_format import PNG
from tpudata.images.pixels import decode_image

ORIENTATIONS = range(1, 9)
SIDE = st.integers(1, 30)


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """What Pillow makes of a picture with an Exif orientation."""
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


def same_size(height: int, width: int, orientation: int) -> Frame:
    """A picture that keeps its size."""
    upright = turned(np.zeros((height, width), np.uint8), orientation).shape
    return Frame(width, height, orientation, upright[1], upright[0])


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@given(data=st.data(), height=SIDE, width=SIDE)
def test_boxes_turn_with_their_pictures(orientation: int, data: st.DataObject, height: int, width: int) -> None:
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))
    pixels = np.zeros((height, width), np.uint8)
    pixels[top:bottom, left:right] = 255
    rows, columns = np.nonzero(upright := turned(pixels, orientation))
    expected = rows.min(), columns.min(), rows.max() + 1, columns.max() + 1
    view = view_of(same_size(height, width, orientation), width, height)
    found = np.array(view.box((top, left, bottom, right), is_normalised=False)) * np.tile(upright.shape, 2)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    fractions = (top / height, left / width, bottom / height, right / width)
    np.testing.assert_allclose(
        np.array(view.box(fractions, is_normalised=True)) * np.tile(upright.shape, 2), expected, atol=1e-4
    )


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_corners_turn_with_their_pictures(orientation: int) -> None:
    height, width = 6, 9
    view = view_of(same_size(height, width, orientation), width, height)
    for row, column in ((0, 0), (0, width - 1), (height - 1, 0), (height - 1, width - 1), (2, 3)):
        pixels = np.zeros((height, width), np.uint8)
        pixels[row, column] = 255
        upright = turned(pixels, orientation)
        ((found_row, found_column),) = np.argwhere(upright)
        x, y = view.point(column + 0.5, row + 0.5, is_normalised=False)
        assert (x * upright.shape[1], y * upright.shape[0]) == pytest.approx((found_column + 0.5, found_row + 0.5))
        np.testing.assert_array_equal(view.pixels(pixels), upright)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_maps_turn_and_shrink_with_their_pictures(orientation: int) -> None:
    """A picture of flat quarters, shrunk by the converter, has the same quarters as its map."""
    pixels = np.zeros((80, 120), np.uint8)
    pixels[:40, 60:], pixels[40:, :60], pixels[40:, 60:] = 80, 160, 240
    data = encode(pixels, "PNG", exif=exif(orientation))
    stored = np.asarray(decode_image(data, PNG, read_header(data, PNG), shorter=20).image)
    assert min(stored.shape) == 20
    frame = Frame(120, 80, orientation, stored.shape[1], stored.shape[0])
    found = view_of(frame, 120, 80).pixels(pixels)
    assert found.shape == stored.shape
    assert set(np.unique(found)) == {0, 80, 160, 240}
    # Except near the edges, where the picture's filter mixes values.
    middle = np.zeros(stored.shape, bool)
    for rows in (slice(2, stored.shape[0] // 2 - 3), slice(stored.shape[0] // 2 + 3, -2)):
        for columns in (slice(2, stored.shape[1] // 2 - 3), slice(stored.shape[1] // 2 + 3, -2)):
            middle[rows, columns] = True
    np.testing.assert_allclose(found[middle].astype(int), stored[middle].astype(int), atol=2)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "BMP"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_frames_are_those_of_the_converter(name: str, orientation: int) -> None:
    """A corner that was marked in the file is where the converter puts it."""
    pixels = np.zeros((40, 64, 3), np.uint8)
    pixels[:20, :32] = 255
    data = encode(pixels, name, **({} if name == "BMP" else {"exif": exif(orientation)}))
    stored = stored_image(data, SELF_DESCRIBING, ImageOptions(resize_shorter=20))
    image = np.asarray(Image.open(io.BytesIO(stored.data)).convert("L"))
    frame = frame_of(data, stored.width, stored.height)
    assert (frame.stored_height, frame.stored_width) == image.shape
    # Pillow turns a TIFF as it opens it, so that annotations of such a file are of the upright picture.
    turn = orientation if name == "TIFF" else 1
    upright = turned(pixels[:, :, 0], turn)
    rows, columns = np.nonzero(upright)
    height, width = upright.shape
    box = (rows.min(), columns.min(), rows.max() + 1, columns.max() + 1)
    ymin, xmin, ymax, xmax = view_of(frame, width, height).box(box, is_normalised=False)
    top, left, bottom, right = np.round([ymin, xmin, ymax, xmax] * np.tile(image.shape, 2)).astype(int)
    inside = np.zeros(image.shape, bool)
    inside[top:bottom, left:right] = True
    assert (image[inside] > 128).mean() > 0.95
    assert (image[~inside] < 128).mean() > 0.95


@given(height=SIDE, width=SIDE, new_height=SIDE, new_width=SIDE)
def test_resized_maps_are_those_of_pillow(height: int, width: int, new_height: int, new_width: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width), np.uint8)
    expected = Image.fromarray(pixels).resize((new_width, new_height), Image.Resampling.NEAREST)
    found = view_of(Frame(width, height, 1, new_width, new_height), width, height).pixels(pixels)
    assert found.shape == (new_height, new_width)
    # Of a centre on the edge of two pixels, Pillow takes one or the other, as its sums of fractions are rounded.
    rows, columns = (
        (2 * np.arange(size) + 1) * source % (2 * size) != 0
        for size, source in ((new_height, height), (new_width, width))
    )
    np.testing.assert_array_equal(found[rows][:, columns], np.asarray(expected)[rows][:, columns])


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_size_tells_whether_the_upright_picture_was_annotated(orientation: int) -> None:
    frame = same_size(60, 100, orientation)
    sideways = orientation >= 5
    assert view_of(frame, 100, 60).orientation == orientation
    assert view_of(frame, 0, 0).orientation == orientation
    assert view_of(frame, 0, 0, is_upright=True).orientation == 1
    assert view_of(frame, 100, 60, is_upright=True).orientation == (orientation if sideways else 1)
    if sideways:
        view = view_of(frame, 60, 100)
        assert (view.width, view.height, view.orientation) == (60, 100, 1)
        assert view.box((0, 0, 50, 30), is_normalised=False) == (0, 0, 0.5, 0.5)
    else:
        with pytest.raises(ValueError, match="annotated as 60 x 100 pixels, but the picture has 100 x 60"):
            view_of(frame, 60, 100)


@pytest.mark.parametrize("box", [(-0.9, -1, 61, 100.5), (-1, -0.01, 60.0001, 101)])
def test_rounding_is_clipped(box: tuple[float, float, float, float]) -> None:
    assert view_of(Frame(100, 60, 1, 100, 60), 100, 60).box(box, is_normalised=False) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    "box",
    [
        (-1.01, 0, 10, 10),
        (0, -2, 10, 10),
        (0, 0, 61.5, 10),
        (0, 0, 10, 102),
        (0, 0, 10, math.inf),
        (5, 5, 5, 10),
        (5, 5, 10, 5),
        (10, 5, 5, 10),
        (math.nan, 0, 10, 10),
        (0, 0, 10, math.nan),
        (60.1, 0, 60.9, 10),
        (-0.9, 0, -0.1, 10),
        (0, 50, 1, 50 + 1e-9),
    ],
)
def test_rejects_boxes_outside_and_without_area(box: tuple[float, float, float, float]) -> None:
    view = view_of(Frame(100, 60, 1, 100, 60), 100, 60)
    with pytest.raises(ValueError, match=r"a box (outside|without area)"):
        view.box(box, is_normalised=False)
    fractions = (box[0] / 60, box[1] / 100, box[2] / 60, box[3] / 100)
    with pytest.raises(ValueError, match=r"a box (outside|without area)"):
        view.box(fractions, is_normalised=True)


@given(
    box=st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 4),
    orientation=st.integers(1, 8),
    is_normalised=st.booleans(),
)
def test_any_box_is_inside_or_an_error(
    box: tuple[float, float, float, float], orientation: int, is_normalised: bool
) -> None:
    view = view_of(same_size(60, 100, orientation), 100, 60)
    try:
        ymin, xmin, ymax, xmax = map(np.float32, view.box(box, is_normalised=is_normalised))
    except ValueError:
        return
    assert 0 <= ymin < ymax <= 1
    assert 0 <= xmin < xmax <= 1

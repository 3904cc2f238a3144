from __future__ import annotations

import io
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image
from PIL.JpegImagePlugin import get_sampling

from beam_jobs.image_records.options import ImageOptions
from beam_jobs.image_records.rules import make_stored_image
from beam_jobs.references.payload import SELF_DESCRIBING
from tests.beam_jobs.images import as_ycck, encode, exif
from tpudata.images.modern_formats import iso_chroma_step

# Columns of red and blue, a pixel wide and two pixels wide: colours that 4:2:0 cannot hold, and colours that it can.
STRIPES = np.where(np.arange(64)[None, :, None] % 2, [0, 0, 255], [255, 0, 0]).repeat(48, 0).astype(np.uint8)
WIDE = np.where(np.arange(64)[None, :, None] // 2 % 2, [0, 0, 255], [255, 0, 0]).repeat(48, 0).astype(np.uint8)
ALPHA = np.concatenate([STRIPES, np.full((48, 64, 1), 255, np.uint8)], -1)
ALPHA[::2, ::2, 3] = 0
FULL, HALF_ACROSS, HALF = 0, 1, 2


def stored(data: bytes, **options: Any) -> tuple[Image.Image, int]:
    """Return the image of a record, and Pillow's number of its sampling."""
    image = Image.open(io.BytesIO(make_stored_image(data, SELF_DESCRIBING, ImageOptions(**options)).data))
    return image, get_sampling(image)


def loss(image: Image.Image, expected: Any) -> float:
    return float(np.abs(np.asarray(image.convert("RGB")).astype(int) - np.asarray(expected)).mean())


def heic(pixels: Any, chroma: int, **options: Any) -> bytes:
    out = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(out, quality=95, chroma=chroma, **options)
    return out.getvalue()


def turned(sampling: str, orientation: int) -> bytes:
    return encode(STRIPES, "JPEG", quality=95, subsampling=sampling, exif=exif(orientation))


def test_one_pixel_stripes_keep_their_colours() -> None:
    upright = STRIPES[::-1, ::-1]
    for data, expected, options in (
        (turned("4:4:4", 3), upright, {}),
        (encode(Image.fromarray(STRIPES).convert("CMYK"), "JPEG", quality=95), STRIPES, {}),
        (encode(STRIPES, "WEBP", lossless=True), STRIPES, {"quality": 95}),
        (encode(STRIPES, "PNG"), STRIPES, {"jpeg_only": True}),
        (encode(STRIPES, "AVIF", quality=95, subsampling="4:4:4"), STRIPES, {}),
        (heic(STRIPES, 444), STRIPES, {}),
        (encode(STRIPES, "JPEG2000", irreversible=True), STRIPES, {}),
    ):
        image, sampling = stored(data, **options)
        assert sampling == FULL
        assert loss(image, expected) < 6


@pytest.mark.parametrize(
    ("data", "sampling"),
    [
        (turned("4:2:0", 3), HALF),
        (turned("4:2:0", 6), HALF),
        (turned("4:2:2", 2), HALF_ACROSS),
        # Turned, halved columns become halved rows, which Pillow does not write.
        (turned("4:2:2", 6), FULL),
        (encode(STRIPES, "WEBP", quality=95), HALF),
        (encode(STRIPES, "AVIF", quality=95), HALF),
        (encode(STRIPES, "AVIF", quality=95, subsampling="4:2:2"), HALF_ACROSS),
        (encode(STRIPES, "AVIF", quality=95, subsampling="4:2:2", exif=exif(6)), FULL),
        (heic(STRIPES, 420), HALF),
        (heic(STRIPES, 422), HALF_ACROSS),
        (as_ycck(encode(Image.fromarray(STRIPES).convert("CMYK"), "JPEG")), FULL),
        # Laid on white, every pixel is an edge.
        (encode(ALPHA, "WEBP", quality=95), FULL),
        (encode(ALPHA, "AVIF", quality=95), FULL),
    ],
    ids=range(13),
)
def test_reencoding_keeps_the_sources_chroma_sampling(data: bytes, sampling: int) -> None:
    assert stored(data)[1] == sampling


def test_a_jpeg_stored_as_rgb_gets_full_chroma() -> None:
    assert stored(encode(STRIPES, "JPEG", keep_rgb=True, exif=exif(3)))[1] == FULL


@pytest.mark.parametrize(("sampling", "kept"), [("4:4:4", FULL), ("4:2:0", HALF)])
def test_shrinking_keeps_the_sources_chroma_sampling(sampling: str, kept: int) -> None:
    data = encode(WIDE, "JPEG", quality=95, subsampling=sampling)
    image, found = stored(data, resize_shorter=24, check="decode")
    assert (found, image.size) == (kept, (32, 24))


def test_a_grey_image_gets_default_jpeg_settings() -> None:
    grey = Image.fromarray(STRIPES[..., 0])
    data = make_stored_image(encode(grey, "PNG"), SELF_DESCRIBING, ImageOptions(jpeg_only=True)).data
    assert data == encode(grey, "JPEG", quality=95)


def test_a_source_with_halved_chroma_gets_default_jpeg_settings() -> None:
    data = encode(WIDE, "JPEG", quality=90, exif=exif(3))
    upright = Image.open(io.BytesIO(data)).transpose(Image.Transpose.ROTATE_180)
    assert make_stored_image(data, SELF_DESCRIBING, ImageOptions()).data == encode(upright, "JPEG", quality=95)


@pytest.mark.parametrize(("size", "step"), [(0, (2, 1)), (1, (1, 1)), (7, (1, 1)), (2**31, (2, 1))])
def test_boxes_with_wrong_sizes_end_the_search(size: int, step: tuple[int, int]) -> None:
    data = bytearray(encode(STRIPES, "AVIF", quality=95, subsampling="4:2:2"))
    assert iso_chroma_step(bytes(data), "AVIF") == (2, 1)
    place = data.index(b"meta") - 4
    data[place : place + 4] = size.to_bytes(4, "big")
    assert iso_chroma_step(bytes(data), "AVIF") == step
    assert all(iso_chroma_step(bytes(data[:end]), "AVIF") in ((1, 1), (2, 1)) for end in range(len(data)))

"""The chroma sampling of stored JPEGs, and the colours that it keeps.

One test reads boxes of AVIF directly, because it cuts a file at each byte.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image
from PIL.JpegImagePlugin import get_sampling

from tests.beam_jobs.images import as_ycck, encode, exif
from tests.beam_jobs.outcomes import convert_pictures
from tpudata.images.modern_formats import find_iso_chroma_step

# Columns of red and blue, a pixel wide and two pixels wide: colours that 4:2:0 cannot hold, and colours that it can.
STRIPES = np.where(np.arange(64)[None, :, None] % 2, [0, 0, 255], [255, 0, 0]).repeat(48, 0).astype(np.uint8)
WIDE = np.where(np.arange(64)[None, :, None] // 2 % 2, [0, 0, 255], [255, 0, 0]).repeat(48, 0).astype(np.uint8)
ALPHA = np.concatenate([STRIPES, np.full((48, 64, 1), 255, np.uint8)], -1)
ALPHA[::2, ::2, 3] = 0
FULL, HALF_ACROSS, HALF = 0, 1, 2


def convert_files(folder: Path, *files: bytes, **options: Any) -> list[Image.Image]:
    """The images of the records of files."""
    outcome = convert_pictures(folder, {f"{number}": data for number, data in enumerate(files)}, **options)
    return [Image.open(io.BytesIO(outcome.records[f"{number}"]["image/encoded"])) for number in range(len(files))]


def loss(image: Image.Image, expected: Any) -> float:
    return float(np.abs(np.asarray(image.convert("RGB")).astype(int) - np.asarray(expected)).mean())


def heic(pixels: Any, chroma: int, **options: Any) -> bytes:
    out = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(out, quality=95, chroma=chroma, **options)
    return out.getvalue()


def turned(sampling: str, orientation: int) -> bytes:
    return encode(STRIPES, "JPEG", quality=95, subsampling=sampling, exif=exif(orientation))


def test_one_pixel_stripes_keep_their_colours(tmp_path: Path) -> None:
    upright = STRIPES[::-1, ::-1]
    files = [
        turned("4:4:4", 3),
        encode(Image.fromarray(STRIPES).convert("CMYK"), "JPEG", quality=95),
        encode(STRIPES, "WEBP", lossless=True),
        encode(STRIPES, "PNG"),
        encode(STRIPES, "AVIF", quality=95, subsampling="4:4:4"),
        heic(STRIPES, 444),
        encode(STRIPES, "JPEG2000", irreversible=True),
    ]
    first, *others = convert_files(tmp_path, *files, jpeg_only=True)
    assert loss(first, upright) < 6
    for image in others:
        assert loss(image, STRIPES) < 6
    assert [get_sampling(image) for image in (first, *others)] == [FULL] * len(files)


def test_reencoding_keeps_the_sources_chroma_sampling(tmp_path: Path) -> None:
    files = [
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
        (encode(STRIPES, "JPEG", keep_rgb=True, exif=exif(3)), FULL),
    ]
    images = convert_files(tmp_path, *(data for data, _ in files))
    assert [get_sampling(image) for image in images] == [sampling for _, sampling in files]


def test_shrinking_keeps_the_sources_chroma_sampling(tmp_path: Path) -> None:
    files = [encode(WIDE, "JPEG", quality=95, subsampling=sampling) for sampling in ("4:4:4", "4:2:0")]
    images = convert_files(tmp_path, *files, resize_shorter=24, check="decode")
    assert [(get_sampling(image), image.size) for image in images] == [(FULL, (32, 24)), (HALF, (32, 24))]


def test_grey_images_and_sources_with_halved_chroma_get_default_jpeg_settings(tmp_path: Path) -> None:
    grey, wide = Image.fromarray(STRIPES[..., 0]), encode(WIDE, "JPEG", quality=90, exif=exif(3))
    upright = Image.open(io.BytesIO(wide)).transpose(Image.Transpose.ROTATE_180)
    files = {"grey": encode(grey, "PNG"), "wide": wide}
    records = convert_pictures(tmp_path, files, jpeg_only=True).records
    assert records["grey"]["image/encoded"] == encode(grey, "JPEG", quality=95)
    assert records["wide"]["image/encoded"] == encode(upright, "JPEG", quality=95)


@pytest.mark.parametrize(("size", "step"), [(0, (2, 1)), (1, (1, 1)), (7, (1, 1)), (2**31, (2, 1))])
def test_boxes_with_wrong_sizes_end_the_search(size: int, step: tuple[int, int]) -> None:
    data = bytearray(encode(STRIPES, "AVIF", quality=95, subsampling="4:2:2"))
    assert find_iso_chroma_step(bytes(data), "AVIF") == (2, 1)
    place = data.index(b"meta") - 4
    data[place : place + 4] = size.to_bytes(4, "big")
    assert find_iso_chroma_step(bytes(data), "AVIF") == step
    assert all(find_iso_chroma_step(bytes(data[:end]), "AVIF") in ((1, 1), (2, 1)) for end in range(len(data)))


@pytest.mark.parametrize(("turns", "step"), [(None, (2, 1)), (0, (2, 1)), (1, (1, 2)), (2, (2, 1)), (3, (1, 2))])
def test_quarter_turns_of_a_heic_exchange_its_chroma_steps(turns: int | None, step: tuple[int, int]) -> None:
    def box(kind: bytes, content: bytes) -> bytes:
        return (8 + len(content)).to_bytes(4, "big") + kind + content

    # 4:2:2 is the format 2 of chroma.
    properties = box(b"hvcC", bytes(16) + b"\2") + (b"" if turns is None else box(b"irot", bytes([turns])))
    data = box(b"meta", bytes(4) + box(b"iprp", box(b"ipco", properties)))
    assert find_iso_chroma_step(data, "HEIC") == step
    # Pillow turns an AVIF after decoding.
    assert find_iso_chroma_step(data, "AVIF") == (2, 1)

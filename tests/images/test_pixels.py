"""Stored pixels compared with Pillow's, and which files count as lossless or as decodable.

Tests call the functions directly: they try sides of any length, and damage files at many bytes.
tests/beam_jobs/image_records/test_rules.py converts a file of each kind.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from beam_jobs.image_records.options import ImageOptions
from beam_jobs.image_records.pixels import Pixels
from beam_jobs.image_records.rules import StoredImage, make_stored_image
from beam_jobs.references.reference import SELF_DESCRIBING, Payload
from tests.beam_jobs.images import chunk, encode, exif, picture, png
from tpudata.images.header import read_header
from tpudata.images.image_format import detect_format
from tpudata.images.pillow_files import load_image, open_image
from tpudata.images.pixels import check_decodes, is_lossless


def stored(data: bytes, payload: Payload = SELF_DESCRIBING, **options: Any) -> StoredImage:
    return make_stored_image(data, payload, ImageOptions(**options))


def opened(image: StoredImage) -> Image.Image:
    return Image.open(io.BytesIO(image.data))


def difference(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one).astype(float) - np.asarray(other)).mean())


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 200), st.sampled_from(["header", "decode"]))
@settings(max_examples=60)
def test_shrinks_the_shorter_side_and_keeps_the_aspect(height: int, width: int, shorter: int, check: str) -> None:
    data = encode(np.zeros((height, width), np.uint8), "JPEG")
    image = stored(data, resize_shorter=shorter, check=check)
    if min(height, width) <= shorter:
        assert image == StoredImage(data, "JPEG", height, width, 1)
        return
    assert image.reason == "resized"
    assert opened(image).size == (image.width, image.height)
    assert min(image.height, image.width) == shorter
    assert abs(max(image.height, image.width) - max(height, width) * shorter / min(height, width)) <= 0.5
    # Sides are not exchanged; rounding may make a near-square a square.
    assert image.height == image.width or (image.height < image.width) == (height < width)


@pytest.mark.parametrize("check", ["header", "decode"])
def test_shrinks_a_jpeg_to_the_means_of_its_pixels(check: str) -> None:
    large = picture(600, 900)
    image = stored(encode(large, "JPEG", quality=95), resize_shorter=40, check=check)
    expected = Image.fromarray(large).resize((60, 40), Image.Resampling.BOX)
    assert image.format == "JPEG"
    assert difference(opened(image), expected) < 4


def test_shrinks_a_full_decode_exactly_as_pillow_does() -> None:
    data = encode(picture(600, 900), "JPEG")
    image = stored(data, resize_shorter=40, check="decode", quality=90)
    expected = Image.open(io.BytesIO(data)).resize((60, 40), Image.Resampling.LANCZOS)
    assert image.data == encode(expected, "JPEG", quality=90)


def test_shrinks_an_unchecked_jpeg_from_pillows_draft() -> None:
    data = encode(picture(600, 900), "JPEG")
    draft = Image.open(io.BytesIO(data))
    draft.draft(None, (180, 120))
    assert draft.size == (225, 150)
    expected = draft.resize((60, 40), Image.Resampling.LANCZOS)
    assert stored(data, resize_shorter=40, check="header", quality=90).data == encode(expected, "JPEG", quality=90)


def test_shrinks_a_turned_jpeg_upright() -> None:
    image = stored(encode(picture(60, 90), "JPEG", exif=exif(6)), resize_shorter=30)
    expected = Image.fromarray(picture(60, 90)).rotate(-90, expand=True).resize((30, 45), Image.Resampling.BOX)
    assert (image.height, image.width, image.reason) == (45, 30, "EXIF orientation")
    assert difference(opened(image), expected) < 6


def test_lossless_images_stay_lossless_until_a_quality_is_given() -> None:
    large = picture(60, 90)
    png = encode(large, "PNG")
    shrunk = stored(png, resize_shorter=30)
    np.testing.assert_array_equal(opened(shrunk), Image.fromarray(large).resize((45, 30), Image.Resampling.LANCZOS))
    assert shrunk.format == "PNG"
    assert stored(png, resize_shorter=30, quality=80).format == "JPEG"
    assert stored(encode(large, "BMP"), quality=80).format == "JPEG"
    # A quality alone re-encodes nothing.
    assert stored(png, quality=80).data == png


def test_quality_decides_the_bytes() -> None:
    turned = encode(picture(), "JPEG", exif=exif(3))
    assert len(stored(turned, quality=30).data) < len(stored(turned).data) < len(stored(turned, quality=100).data)
    assert stored(turned).data == stored(turned, quality=95).data


def test_stores_only_jpegs_with_jpeg_only() -> None:
    image = stored(encode(picture(), "PNG"), jpeg_only=True)
    assert (image.format, image.reason, detect_format(image.data)) == ("JPEG", "PNG to JPEG", "JPEG")
    assert difference(opened(image), picture()) < 4
    grey = stored(encode(picture()[..., 0], "PNG"), jpeg_only=True)
    assert (grey.channels, read_header(grey.data, "JPEG").components) == (1, 1)
    assert stored(encode(picture(), "GIF"), jpeg_only=True).format == "JPEG"
    jpeg = encode(picture(), "JPEG")
    assert stored(jpeg, jpeg_only=True).data == jpeg


def test_rejects_images_too_long_for_a_jpeg() -> None:
    data = encode(np.zeros((1, 65_501), np.uint8), "PNG")
    assert stored(data).width == 65_501
    with pytest.raises(ValueError, match="65501 x 1 pixels; a JPEG may have 65,500 a side"):
        stored(data, jpeg_only=True)


def test_stores_bare_pixels_as_png() -> None:
    grey, rgb = picture()[..., 0], picture()
    image = stored(grey.tobytes(), Pixels((24, 40)))
    assert image[1:] == ("PNG", 24, 40, 1, "bare pixels")
    np.testing.assert_array_equal(opened(image), grey)
    np.testing.assert_array_equal(opened(stored(rgb.tobytes(), Pixels((24, 40, 3)))), rgb)
    assert stored(grey.tobytes(), Pixels((24, 40, 1)), resize_shorter=12)[2:4] == (12, 20)
    with pytest.raises(ValueError, match=r"got 100 bytes, expected 24 x 40 x 1\); the file is truncated"):
        stored(b"\0" * 100, Pixels((24, 40)))
    with pytest.raises(ValueError, match=r"got \(24, 40, 2\), expected \(height, width\) or \(height, width, 1 or 3\)"):
        stored(b"", Pixels((24, 40, 2)))


def boxed(data: bytes, kind: bytes, content: bytes, size: int | None = None) -> bytes:
    """Put a box after the two that every JP2 begins with."""
    place = data.index(b"ftyp") - 4
    place += int.from_bytes(data[place : place + 4], "big")
    head = (len(content) + 8).to_bytes(4, "big") + kind
    if size == 64:
        head = (1).to_bytes(4, "big") + kind + (len(content) + 16).to_bytes(8, "big")
    return data[:place] + head + content + data[place:]


@pytest.mark.parametrize("size", [None, 64])
@pytest.mark.parametrize("reversible", [True, False])
def test_metadata_do_not_decide_whether_a_jpeg_2000_is_lossless(reversible: bool, size: int | None) -> None:
    data = encode(picture(24, 32), "JPEG2000", irreversible=not reversible)
    for wrong in (0, 1):
        cod = b"\xff\x52" + bytes([wrong]) * 20
        for content in (cod, b"\xff\x4f\xff\x51" + cod):
            assert is_lossless(boxed(data, b"xml ", content, size), "JPEG 2000") == reversible


@pytest.mark.parametrize("size", [2, 7, 20])
def test_a_wrong_size_of_its_box_does_not_make_a_jpeg_2000_lossy(size: int) -> None:
    data = encode(picture(24, 32), "JPEG2000", irreversible=False)
    place = data.index(b"jp2c") - 4
    assert is_lossless(data[:place] + size.to_bytes(4, "big") + data[place + 4 :], "JPEG 2000")


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("reversible", [True, False])
def test_a_comment_does_not_decide_whether_a_jpeg_2000_is_lossless(reversible: bool, bare: bool) -> None:
    data = encode(picture(24, 32), "JPEG2000", irreversible=not reversible, no_jp2=bare)
    place = data.index(b"\xff\x52", data.index(b"\xff\x4f\xff\x51"))
    comment = b"\0\1\xff\x52" + bytes([not reversible]) * 20
    commented = data[:place] + b"\xff\x64" + (len(comment) + 2).to_bytes(2, "big") + comment + data[place:]
    assert is_lossless(commented, "JPEG 2000") == reversible
    assert not is_lossless(data[: place + 13], "JPEG 2000")


def test_scales_all_rows_of_a_large_16_bit_picture_alike() -> None:
    # More samples than are scaled at once, in rows of which each has other values.
    values = (np.arange(1500)[:, None] * 43 + np.arange(800)[None, :] * 7).astype(np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    np.testing.assert_array_equal(
        np.asarray(opened(stored(buffer.getvalue()))), (values.astype(np.int64) * 255 + 32767) // 65535
    )


def test_rejects_a_tiff_whose_tile_exceeds_the_pixel_limit() -> None:
    # Width, height, bits, Deflate, grey, one sample; a tile of 30,000 x 30,000 at byte 8, of 8 bytes.
    tags = [
        (256, 16),
        (257, 16),
        (258, 8),
        (259, 8),
        (262, 1),
        (277, 1),
        (322, 30_000),
        (323, 30_000),
        (324, 8),
        (325, 8),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    data = b"II*\0" + struct.pack("<I", 16) + b"\0" * 8 + struct.pack("<H", len(tags)) + entries + b"\0" * 4
    with pytest.raises(ValueError, match="a TIFF with tiles of too many pixels: 30000 x 30000 pixels"):
        stored(data)


def verdict(check: Any) -> str:
    try:
        check()
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("RGB", {"progressive": True}),
        ("RGB", {"subsampling": "4:4:4", "restart_marker_blocks": 3}),
        ("L", {"optimize": True}),
        ("CMYK", {"progressive": True}),
    ],
)
def test_check_decodes_agrees_with_a_full_decode(mode: str, options: dict[str, Any]) -> None:
    random = np.random.default_rng(7)
    noise = random.integers(0, 256, (90, 130, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(out, "JPEG", **options)
    whole, found = out.getvalue(), []
    for number in range(60):
        data, place = bytearray(whole), int(random.integers(len(whole)))
        if number % 3 == 0:
            del data[max(place, 300) :]
        elif number % 3 == 1:
            data[place] ^= 1 << int(random.integers(8))
        else:
            data[place : place + 12] = bytes(12)
        broken = bytes(data)
        found.append(verdict(lambda broken=broken: check_decodes(broken, "JPEG")))
        assert found[-1] == verdict(lambda broken=broken: load_image(open_image(broken, "JPEG"), "JPEG"))
    assert 15 < sum(map(bool, found)) < 60


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_transparent_grey_of_a_png_counts_in_its_own_bits(bits: int) -> None:
    samples = np.arange(2**bits).reshape(1, -1, 1)
    for grey in range(2**bits):
        data = png(samples, bits, chunk(b"tRNS", struct.pack(">H", grey)))
        expected = samples[..., 0] * (255 // (2**bits - 1))
        np.testing.assert_array_equal(opened(stored(data)), np.where(samples[..., 0] == grey, 255, expected))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_shrinks_a_turned_tiff_upright(orientation: int) -> None:
    data = encode(picture(60, 90), "TIFF", exif=exif(orientation))
    image = stored(data, resize_shorter=30)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert (image.width, image.height) == ((30, 45) if orientation > 4 else (45, 30))
    np.testing.assert_array_equal(opened(image), upright.resize((image.width, image.height), Image.Resampling.LANCZOS))


def test_the_size_of_a_shrunk_jpeg_follows_from_its_own() -> None:
    # The decoder halves it first, and 495 x 166 has another aspect: it would become 89 x 30.
    image = stored(encode(np.zeros((331, 990), np.uint8), "JPEG"), resize_shorter=30)
    assert (image.height, image.width) == (30, 90)


@pytest.mark.parametrize(("name", "position", "layout"), [("GIF", 6, "<HH"), ("BMP", 18, "<II"), ("PPM", 3, "")])
def test_rejects_other_formats_that_claim_too_many_pixels(
    name: str, position: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Programs may lift Pillow's limit.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    data = encode(Image.new("RGB", (2, 2)), name)
    size = struct.pack(layout, 20_000, 20_000) if layout else b"20000 20000"
    claiming = data[:position] + size + data[position + (len(size) if layout else len(b"2 2")) :]
    with pytest.raises(ValueError, match=f"^a {name} of too many pixels: 20000 x 20000 pixels"):
        stored(claiming)

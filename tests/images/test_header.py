"""Headers of JPEG and PNG as Pillow reads them.

Tests read headers directly: any sizes, orientations and stray bytes, and parts of headers that no record holds.
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

from tests.beam_jobs.images import big_endian_exif, encode, exif, png
from tpudata.images.header import parse_exif_orientation, read_header
from tpudata.images.image_format import detect_format


@given(
    st.sampled_from(["L", "RGB", "CMYK"]),
    st.integers(1, 80),
    st.integers(1, 80),
    st.sampled_from([{}, {"progressive": True}, {"subsampling": 0}, {"comment": b"\xff\xd9" * 9}, {"optimize": True}]),
)
@settings(max_examples=60)
def test_reads_the_jpeg_header_that_pillow_wrote(mode: str, width: int, height: int, options: dict[str, Any]) -> None:
    data = encode(Image.new(mode, (width, height)), "JPEG", **options)
    header = read_header(data, detect_format(data))
    assert (header.width, header.height, header.components) == (width, height, len(mode) if mode != "L" else 1)
    assert header.has_adobe_marker == (mode == "CMYK")
    assert (header.format, header.bits, header.has_alpha, header.orientation) == ("JPEG", 8, False, 1)


@given(
    st.sampled_from(
        [("1", 1, 1), ("L", 1, 8), ("LA", 1, 8), ("P", 3, None), ("RGB", 3, 8), ("RGBA", 3, 8), ("I;16", 1, 16)]
    ),
    st.integers(1, 80),
    st.integers(1, 80),
)
@settings(max_examples=60)
def test_reads_the_png_header_that_pillow_wrote(mode: tuple[str, int, int | None], width: int, height: int) -> None:
    name, components, bits = mode
    data = encode(Image.new(name, (width, height)), "PNG")
    header = read_header(data, detect_format(data))
    assert (header.width, header.height, header.components) == (width, height, components)
    assert bits is None or header.bits == bits
    assert header.has_alpha == (name in ("LA", "RGBA"))


def test_ignores_a_thumbnail_in_the_exif_block() -> None:
    block = exif(3).tobytes() + encode(np.zeros((7, 5, 3), np.uint8), "JPEG")
    header = read_header(encode(np.zeros((20, 30, 3), np.uint8), "JPEG", exif=block), "JPEG")
    assert (header.height, header.width, header.orientation) == (20, 30, 3)


@pytest.mark.parametrize("orientation", [0, *range(1, 10), 65535])
def test_reads_the_orientation_that_pillow_applies(orientation: int) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    for block in (exif(orientation).tobytes(), big_endian_exif(orientation)):
        found = parse_exif_orientation(block.removeprefix(b"Exif\0\0"))
        data = encode(pixels, "PNG", exif=block)
        assert read_header(data, "PNG").orientation == found
        upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        assert np.array_equal(upright, pixels) == (found == 1)


def test_accepts_an_exif_block_that_ends_with_its_last_entry() -> None:
    # Exif's header, two entries of 12 bytes (the second is the orientation, a SHORT), and no offset of a next directory.
    block = b"II*\0" + struct.pack("<IH HHII HHIHH", 8, 2, 0x0100, 4, 1, 7, 0x0112, 3, 1, 6, 0)
    assert parse_exif_orientation(block) == parse_exif_orientation(block + bytes(4)) == 6
    assert parse_exif_orientation(block[:-1]) == 1


@given(st.binary(max_size=60))
def test_any_bytes_give_an_orientation_from_1_to_8(tail: bytes) -> None:
    for head in (b"", b"II*\0", b"MM\0*", b"II*\0\x08\0\0\0"):
        assert 1 <= parse_exif_orientation(head + tail) <= 8


def test_skips_fill_bytes_and_lone_markers() -> None:
    data = encode(np.zeros((8, 8, 3), np.uint8), "JPEG")
    padded = data[:2] + b"\xff\xff\xff\x01" + data[2:]
    assert read_header(padded, "JPEG") == read_header(data, "JPEG")


def test_stray_bytes_before_a_marker_make_a_header_irregular() -> None:
    data = encode(np.zeros((8, 16, 3), np.uint8), "JPEG", exif=exif(6))
    frame = data.index(b"\xff\xc0")
    for place in (data.index(b"\xff\xdb"), frame):
        for stray in (b"\0", b"\x12\x34\x56", b"\xff\0\xff\0", b"\0\xff"):
            header = read_header(data[:place] + stray + data[place:], "JPEG")
            assert not header.is_regular
            assert header._replace(is_regular=True) == read_header(data, "JPEG")
    with pytest.raises(ValueError, match="JPEG cut inside its header"):
        read_header(data[:frame] + b"\0" * 50, "JPEG")
    with pytest.raises(ValueError, match=r"without a marker after its start \(at byte 2\)"):
        read_header(data[:2] + b"\0" + data[2:], "JPEG")


def test_markers_that_decoders_may_reject_make_a_header_irregular() -> None:
    data = encode(np.zeros((8, 16, 3), np.uint8), "JPEG")
    frame = data.index(b"\xff\xc0")
    again = data[frame : frame + 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")]
    for segment in (b"\xff\x02\0\2", again):
        assert not read_header(data[:frame] + segment + data[frame:], "JPEG").is_regular
    assert read_header(data, "JPEG").is_regular


@given(
    st.sampled_from([("4:4:4", (1, 1)), ("4:2:2", (2, 1)), ("4:2:0", (2, 2))]),
    st.sampled_from(["RGB", "L", "CMYK"]),
    st.booleans(),
)
def test_reads_the_chroma_step_that_pillow_wrote(
    sampling: tuple[str, tuple[int, int]], mode: str, keep_rgb: bool
) -> None:
    is_rgb = keep_rgb and mode == "RGB"
    data = encode(Image.new(mode, (20, 12)), "JPEG", subsampling=sampling[0] if not is_rgb else 0, keep_rgb=is_rgb)
    assert read_header(data, "JPEG").chroma_step == (sampling[1] if mode == "RGB" and not is_rgb else (1, 1))


def test_rejects_bit_depths_that_png_does_not_allow() -> None:
    with pytest.raises(ValueError, match="colour type 2 with 4 bits"):
        read_header(png(np.zeros((4, 4, 3), int), 4), "PNG")


def test_does_not_read_an_orientation_beyond_the_exif_segment() -> None:
    # An Exif block whose directory is in the comment that follows.
    data = encode(np.zeros((8, 16, 3), np.uint8), "JPEG")
    directory = struct.pack("<HHHIHH", 1, 0x0112, 3, 1, 6, 0)
    block = b"Exif\0\0II*\0" + struct.pack("<I", 14) + b"\0\0"
    segments = b"\xff\xe1" + struct.pack(">H", 2 + len(block)) + block
    segments += b"\xff\xfe" + struct.pack(">H", 2 + len(directory)) + directory
    inside = block + b"\0" * 4 + directory
    whole = b"\xff\xe1" + struct.pack(">H", 2 + len(inside)) + inside
    assert read_header(data[:2] + segments + data[2:], "JPEG").orientation == 1
    assert read_header(data[:2] + whole + data[2:], "JPEG").orientation == 6


@pytest.mark.parametrize(("transform", "step"), [(b"\0", (1, 1)), (b"\1", (2, 2)), (b"", (2, 2))])
def test_adobes_marker_decides_whether_samples_are_chroma(transform: bytes, step: tuple[int, int]) -> None:
    data = encode(Image.new("RGB", (20, 12)), "JPEG", subsampling="4:2:0")
    content = b"Adobe\0\x64\0\0\0\0" + transform
    marked = data[:2] + b"\xff\xee" + struct.pack(">H", 2 + len(content)) + content + data[2:]
    header = read_header(marked, "JPEG")
    assert (header.has_adobe_marker, header.chroma_step) == (True, step)


def test_rejects_a_jpeg_that_ends_before_its_pixels() -> None:
    data = encode(np.zeros((8, 16, 3), np.uint8), "JPEG")
    frame = data.index(b"\xff\xc0")
    end = frame + 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")
    with pytest.raises(ValueError, match="JPEG cut inside its header"):
        read_header(data[:end] + b"\xff\xd9", "JPEG")


def test_compatible_brands_decide_between_avif_and_heic() -> None:
    avif = encode(np.zeros((16, 16, 3), np.uint8), "AVIF")
    for main_brand in (b"avif", b"avis", b"mif1", b"msf1"):
        assert detect_format(avif.replace(b"ftypavif", b"ftyp" + main_brand, 1)) == "AVIF"
    # The box of brands: its size, its kind, the main brand, a version, compatible brands; then another box.
    brands = b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + b"\0\0\0\x0cavifavif"
    assert detect_format(brands) == "HEIC"

from __future__ import annotations

import contextlib
import io
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pillow_heif
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import WHOLE_FILE, Reference
from tests.beam_jobs.images import (
    Pixels,
    as_ycck,
    big_endian_exif,
    chunk,
    encode,
    exif,
    picture,
    png,
    with_frame,
    without_adobe,
)
from tpudata.errors import BadRecordError
from tpudata.format import decode_example

RGB = picture()
GREY = RGB[..., :1]
ALPHA = np.linspace(0, 255, RGB[..., 0].size).astype(np.uint8).reshape(*RGB.shape[:2], 1)
NOISE = np.random.default_rng(0).integers(0, 65536, (13, 11, 4))
JPEG_RGB = encode(RGB, "JPEG", quality=95)
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()

KEPT = "kept"


class Row(NamedTuple):
    """A kind of image: its encoding, and what its record must hold."""

    case: str
    data: bytes
    outcome: str  # KEPT, the format that it is re-encoded to, or the reason it is rejected for
    reason: str = ""
    pixels: Any = None  # of the record; where None, what TensorFlow decodes from the source


def tf_pixels(data: bytes, channels: int = 0) -> Any:
    return tf.io.decode_image(data, channels=channels, expand_animations=False).numpy()


def on_white(pixels: Pixels, alpha: Pixels) -> Pixels:
    share = alpha / 255.0
    shown: Pixels = np.floor(pixels * share + 255 * (1 - share) + 0.5).astype(np.uint8)
    return shown


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """Exif 2.3, section 4.6.4: where row 0 and column 0 of the stored pixels are on the upright picture."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def scaled(samples: Any) -> Pixels:
    out: Pixels = np.rint(samples / 65535 * 255).astype(np.uint8)
    return out


def image(pixels: Pixels, mode: str) -> Image.Image:
    return Image.fromarray(pixels).convert(mode)


def palette(**options: Any) -> tuple[bytes, Pixels]:
    quantized = Image.fromarray(RGB).quantize(16)
    return encode(quantized, "PNG", **options), np.asarray(quantized.convert("RGB"))


def palette_on_white() -> Pixels:
    """Of a palette whose entry 3 is transparent."""
    quantized = Image.fromarray(RGB).quantize(16)
    index = np.asarray(quantized)[..., None]
    return np.where(index == 3, 255, np.asarray(quantized.convert("RGB"))).astype(np.uint8)


def gif_frames(*frames: Pixels, **options: Any) -> bytes:
    first, *rest = (Image.fromarray(frame).quantize(64) for frame in frames)
    return encode(first, "GIF", **(options | ({"save_all": True, "append_images": rest} if rest else {})))


def two_frames() -> dict[str, Any]:
    return {"save_all": True, "append_images": [Image.fromarray(255 - RGB)]}


def transparent_gif() -> bytes:
    return encode(Image.fromarray(RGB).quantize(16), "GIF", transparency=3)


def heic(first: Pixels, *others: Pixels, **options: Any) -> bytes:
    """Return a HEIC by libheif's encoder."""
    file = pillow_heif.HeifFile()
    for pixels in (first, *others):
        file.add_from_pillow(Image.fromarray(pixels))
    out = io.BytesIO()
    if "exif" in options:
        options["exif"] = options["exif"].tobytes()
    file.save(out, quality=95, **options)
    return out.getvalue()


def sixteen_bit_tiff() -> bytes:
    return encode(Image.fromarray(SIXTEEN[..., 0]), "TIFF")


def color_tiff(order: str) -> bytes:
    """Return a TIFF of RGB with 16 bits a sample, by hand (TIFF 6.0, section 6)."""
    height, width, channels = DEEP.shape
    data = DEEP.astype(f"{order}u2").tobytes()
    place = 8 + 2 + 12 * 9 + 4
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, place), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [(273, 4, 1, place + 6), (277, 3, 1, channels), (278, 4, 1, height), (279, 4, 1, len(data))]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(tags))
    for tag, kind, count, value in tags:
        inline = struct.pack(f"{order}HH", value, 0) if kind == 3 and count == 1 else struct.pack(f"{order}I", value)
        head += struct.pack(f"{order}HHI", tag, kind, count) + inline
    return head + bytes(4) + struct.pack(f"{order}3H", 16, 16, 16) + data


DEEP = np.random.default_rng(17).integers(0, 65536, (7, 9, 3))
SIXTEEN = np.random.default_rng(16).integers(0, 65536, (9, 13, 1)).astype(np.uint16)
CMYK = encode(image(RGB, "CMYK"), "JPEG", quality=95)
LEVELS = {bits: np.random.default_rng(bits).integers(0, 2**bits, (9, 13, 1)) for bits in (1, 2, 4)}

ROWS = [
    # JPEG
    Row("JPEG, baseline", JPEG_RGB, KEPT),
    Row("JPEG, progressive", encode(RGB, "JPEG", progressive=True), KEPT),
    Row("JPEG, greyscale", encode(GREY[..., 0], "JPEG"), KEPT),
    Row("JPEG, stored as RGB", encode(RGB, "JPEG", keep_rgb=True), KEPT),
    Row("JPEG with a colour profile", encode(RGB, "JPEG", icc_profile=PROFILE), KEPT),
    Row("JPEG, upright by Exif", encode(RGB, "JPEG", exif=exif(1)), KEPT),
    Row("JPEG, several pictures (MPO)", encode(RGB, "MPO", **two_frames()), KEPT),
    Row("JPEG with bytes after its end", JPEG_RGB + b"\0" * 100, KEPT),
    Row("JPEG, stray bytes before a marker", JPEG_RGB[:20] + b"\0\1\xff\0\2" + JPEG_RGB[20:], KEPT),
    Row(
        "JPEG, turned by Exif",
        encode(RGB, "JPEG", quality=95, exif=exif(6)),
        "JPEG",
        "EXIF orientation",
        turned(RGB, 6),
    ),
    Row("JPEG, CMYK", CMYK, "JPEG", "CMYK"),
    Row("JPEG, CMYK without Adobe's marker", without_adobe(CMYK), "JPEG", "CMYK"),
    Row("JPEG, YCCK", as_ycck(CMYK), "JPEG", "CMYK"),
    Row("JPEG, cut in its header", JPEG_RGB[:60], "JPEG cut inside its header"),
    Row("JPEG, cut in its pixels", JPEG_RGB[:-20], "it has no end"),
    Row(
        "JPEG, stray bytes before its first marker",
        *(JPEG_RGB[:2] + b"\0\1\2" + JPEG_RGB[2:], "JPEG without a marker after its start"),
    ),
    Row("JPEG, an unknown marker", JPEG_RGB[:20] + b"\xff\2\0\2" + JPEG_RGB[20:], "JPEG that cannot be decoded"),
    Row("JPEG, 12 bits", with_frame(JPEG_RGB, precision=12), "12 bits per sample"),
    Row("JPEG, lossless, hierarchical or arithmetic", with_frame(JPEG_RGB, 0xC9), "arithmetic-coded JPEG"),
    Row("JPEG, two components", with_frame(JPEG_RGB, components=2), "2 components"),
    Row("JPEG without pixels", with_frame(JPEG_RGB, height=0), "of 40 x 0 pixels"),
    # PNG
    Row("PNG, RGB", encode(RGB, "PNG"), KEPT, "", RGB),
    Row("PNG, greyscale", encode(GREY[..., 0], "PNG"), KEPT, "", GREY),
    Row("PNG, 1 bit", png(LEVELS[1], 1), KEPT, "", LEVELS[1] * 255),
    Row("PNG, 2 bits", png(LEVELS[2], 2), KEPT, "", LEVELS[2] * 85),
    Row("PNG, 4 bits", png(LEVELS[4], 4), KEPT, "", LEVELS[4] * 17),
    Row("PNG, palette", palette()[0], KEPT, "", palette()[1]),
    Row("PNG, interlaced", png(RGB, 8, interlaced=True), KEPT, "", RGB),
    Row("PNG, animated (APNG)", encode(RGB, "PNG", **two_frames()), KEPT, "", RGB),
    Row("PNG with bytes after its end", encode(RGB, "PNG") + b"more", KEPT, "", RGB),
    Row("PNG, turned by Exif", encode(RGB, "PNG", exif=exif(8)), "PNG", "EXIF orientation", turned(RGB, 8)),
    Row("PNG, alpha", encode(np.concatenate([RGB, ALPHA], -1), "PNG"), "PNG", "transparency", on_white(RGB, ALPHA)),
    Row(
        "PNG, greyscale and alpha",
        encode(np.concatenate([GREY, ALPHA], -1), "PNG"),
        "PNG",
        "transparency",
        on_white(GREY, ALPHA),
    ),
    Row("PNG, palette with transparency", palette(transparency=3)[0], "PNG", "transparency", palette_on_white()),
    Row(
        "PNG, a transparent colour",
        png(RGB, 8, chunk(b"tRNS", RGB[5, 7].astype(">u2").tobytes())),
        "PNG",
        "transparency",
        np.where((RGB[5, 7] == RGB).all(-1, keepdims=True), 255, RGB).astype(np.uint8),
    ),
    Row(
        "PNG, a transparent grey",
        png(GREY, 8, chunk(b"tRNS", b"\0" + bytes(GREY[5, 7]))),
        "PNG",
        "transparency",
        np.where(GREY[5, 7] == GREY, 255, GREY).astype(np.uint8),
    ),
    *(
        Row(
            f"PNG, {bits} bit{'s' * (bits > 1)}, a transparent grey",
            png(LEVELS[bits], bits, chunk(b"tRNS", b"\0\0")),
            "PNG",
            "transparency",
            np.where(LEVELS[bits] == 0, 255, LEVELS[bits] * (255 // (2**bits - 1))).astype(np.uint8),
        )
        for bits in (1, 2, 4)
    ),
    Row("PNG, 16 bits, greyscale", png(NOISE[..., :1], 16), "PNG", "16 bits per sample", scaled(NOISE[..., :1])),
    Row("PNG, 16 bits, RGB", png(NOISE[..., :3], 16), "PNG", "16 bits per sample", scaled(NOISE[..., :3])),
    Row(
        "PNG, 16 bits, interlaced",
        png(NOISE[..., :3], 16, interlaced=True),
        "PNG",
        "16 bits per sample",
        scaled(NOISE[..., :3]),
    ),
    Row(
        "PNG, 16 bits, greyscale and alpha",
        png(NOISE[..., 2:], 16),
        "PNG",
        "16 bits per sample",
        on_white(scaled(NOISE[..., 2:3]), scaled(NOISE[..., 3:])),
    ),
    Row(
        "PNG, 16 bits, alpha",
        png(NOISE, 16),
        "PNG",
        "16 bits per sample",
        on_white(scaled(NOISE[..., :3]), scaled(NOISE[..., 3:])),
    ),
    Row(
        "PNG, 16 bits, a transparent colour",
        png(NOISE[..., :3], 16, chunk(b"tRNS", NOISE[2, 3, :3].astype(">u2").tobytes())),
        "PNG",
        "16 bits per sample",
        np.where((NOISE[..., :3] == NOISE[2, 3, :3]).all(-1, keepdims=True), 255, scaled(NOISE[..., :3])).astype(
            np.uint8
        ),
    ),
    Row("PNG, cut", encode(RGB, "PNG")[:-30], "PNG cut"),
    Row(
        "PNG, a chunk of a wrong length", encode(RGB, "PNG").replace(b"\0\0\0\x0dIHDR", b"\0\0\1\x0dIHDR"), "IHDR chunk"
    ),
    Row("PNG without pixels", png(RGB, 8).replace(b"IDAT", b"iDAT"), "without pixels"),
    Row(
        "Decompression bomb",
        encode(RGB, "PNG").replace((40).to_bytes(4, "big") + (24).to_bytes(4, "big"), b"\0\1\0\0\0\1\0\0"),
        "65536 x 65536 pixels; 178,956,970 are allowed",
    ),
    # Other formats
    Row("GIF", gif_frames(RGB), "PNG", "GIF", np.asarray(Image.fromarray(RGB).quantize(64).convert("RGB"))),
    Row("GIF, greyscale", encode(GREY[..., 0], "GIF"), "PNG", "GIF", GREY),
    Row("GIF with transparency", transparent_gif(), "PNG", "GIF", palette_on_white()),
    Row(
        "GIF, animated",
        gif_frames(RGB, 255 - RGB),
        "PNG",
        "first frame of an animated GIF",
        np.asarray(Image.fromarray(RGB).quantize(64).convert("RGB")),
    ),
    Row("WebP, lossless", encode(RGB, "WEBP", lossless=True), "PNG", "WebP", RGB),
    Row("WebP, lossy", encode(RGB, "WEBP", quality=95), "JPEG", "WebP", RGB),
    Row(
        "WebP with alpha",
        encode(np.concatenate([RGB, ALPHA], -1), "WEBP", lossless=True, exact=True),
        "PNG",
        "WebP",
        on_white(RGB, ALPHA),
    ),
    Row("WebP, turned by Exif", encode(RGB, "WEBP", lossless=True, exif=exif(5)), "PNG", "WebP", turned(RGB, 5)),
    Row(
        "WebP, animated",
        encode(RGB, "WEBP", lossless=True, **two_frames()),
        "PNG",
        "first frame of an animated WebP",
        RGB,
    ),
    Row("BMP", encode(RGB, "BMP"), "PNG", "BMP", RGB),
    Row("BMP, palette", encode(Image.fromarray(RGB).quantize(16), "BMP"), "PNG", "BMP", palette()[1]),
    Row("BMP, greyscale", encode(GREY[..., 0], "BMP"), "PNG", "BMP", GREY),
    Row("TIFF", encode(RGB, "TIFF"), "PNG", "TIFF", RGB),
    Row("TIFF, compressed", encode(RGB, "TIFF", compression="tiff_lzw"), "PNG", "TIFF", RGB),
    Row("TIFF, turned by its tag", encode(RGB, "TIFF", tiffinfo={274: 6}), "PNG", "TIFF", turned(RGB, 6)),
    Row("TIFF, CMYK", encode(image(RGB, "CMYK"), "TIFF"), "PNG", "TIFF", RGB),
    Row("TIFF, 16 bits, greyscale", sixteen_bit_tiff(), "PNG", "TIFF", scaled(SIXTEEN)),
    Row("TIFF, 16 bits, RGB", color_tiff("<"), "PNG", "TIFF", scaled(DEEP)),
    Row("TIFF, 16 bits, RGB, big-endian", color_tiff(">"), "PNG", "TIFF", scaled(DEEP)),
    Row(
        "TIFF, 32 bits", encode(Image.fromarray(NOISE[..., 0].astype(np.int32)), "TIFF"), "signed or fractional samples"
    ),
    Row(
        "TIFF, floats",
        encode(Image.fromarray(NOISE[..., 0].astype(np.float32)), "TIFF"),
        "signed or fractional samples",
    ),
    Row(
        "TIFF, several pages", encode(RGB, "TIFF", **two_frames()), "PNG", "first page of a TIFF of several pages", RGB
    ),
    Row("PPM", encode(RGB, "PPM"), "PNG", "PPM", RGB),
    Row("PGM", encode(GREY[..., 0], "PPM"), "PNG", "PPM", GREY),
    Row("PGM, 16 bits", b"P5 2 1 65535\n\0\1\2\3", "PPM with pixels of the kind I"),
    Row("JPEG 2000, reversible", encode(RGB, "JPEG2000"), "PNG", "JPEG 2000", RGB),
    Row("JPEG 2000, irreversible", encode(RGB, "JPEG2000", irreversible=True), "JPEG", "JPEG 2000", RGB),
    Row("JPEG 2000, greyscale", encode(GREY[..., 0], "JPEG2000"), "PNG", "JPEG 2000", GREY),
    Row(
        "JPEG 2000, 16 bits, greyscale",
        encode(Image.fromarray(SIXTEEN[..., 0]), "JPEG2000"),
        "PNG",
        "JPEG 2000",
        scaled(SIXTEEN),
    ),
    Row("JPEG 2000, a bare codestream", encode(RGB, "JPEG2000", no_jp2=True), "PNG", "JPEG 2000", RGB),
    Row("AVIF", encode(RGB, "AVIF", quality=95), "JPEG", "AVIF", RGB),
    Row("AVIF, turned by Exif", encode(RGB, "AVIF", quality=95, exif=exif(6)), "JPEG", "AVIF", turned(RGB, 6)),
    Row(
        "AVIF with alpha",
        encode(np.concatenate([RGB, ALPHA], -1), "AVIF", quality=100),
        "JPEG",
        "AVIF",
        on_white(RGB, ALPHA),
    ),
    Row(
        "AVIF, animated",
        encode(RGB, "AVIF", quality=95, **two_frames()),
        "JPEG",
        "first frame of an animated AVIF",
        RGB,
    ),
    Row("HEIC", heic(RGB), "JPEG", "HEIC", RGB),
    Row("HEIC, turned by Exif", heic(RGB, exif=exif(6)), "JPEG", "HEIC", turned(RGB, 6)),
    Row("HEIC, several images", heic(RGB, 255 - RGB), "JPEG", "HEIC", RGB),
    # No image, or one of another format
    Row("SVG, HTML", b"\xef\xbb\xbf\n <!DOCTYPE html><html>404</html>", "HTML, SVG or other markup, not an image"),
    Row("Archives, PDF, Photoshop, icons", b"PK\3\4" + b"\0" * 50, "a zip file; JPEG"),
    Row("Any other bytes", b"hello there, this is a note", "unknown image format: it begins with 68 65 6c 6c 6f"),
    Row("Empty file", b"", "the file is empty"),
    Row("Zero bytes", b"\0" * 5000, "5000 zero bytes"),
    Row(
        "Any of these, cut",
        encode(RGB, "BMP")[:-100],
        "BMP that cannot be decoded: image file is truncated",
    ),
]
BY_CASE = {row.case: row for row in ROWS}


def convert(data: bytes, summary: ImageSummary | None = None, **options: Any) -> dict[str, Any]:
    reference = Reference("a/b.jpg", "train", ("a",), "/in/a/b.jpg", WHOLE_FILE, len(data))
    converter = ImageConverter(options=ImageOptions(**options))
    record = b"".join(converter.convert(reference, Labels(("a",)), data, summary or ImageSummary()))
    return {name: values[0] for name, values in decode_example(record).items()}


@pytest.mark.parametrize("check", ["header", "decode"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.case)
def test_keeps_reencodes_or_rejects_by_rule(row: Row, check: str) -> None:
    summary = ImageSummary()
    if row.outcome not in (KEPT, "JPEG", "PNG"):
        with pytest.raises(BadRecordError, match=re.escape(row.outcome)) as caught:
            convert(row.data, summary, check=check)
        assert caught.value.source == "/in/a/b.jpg"
        return
    record = convert(row.data, summary, check=check)
    stored = record["image/encoded"]
    if row.outcome == KEPT:
        assert stored == row.data
    else:
        assert stored != row.data
        assert record["image/format"] == row.outcome.encode()
    assert stored.startswith({b"JPEG": b"\xff\xd8", b"PNG": b"\x89PNG"}[record["image/format"]])
    assert summary.converted == ({row.reason: 1} if row.reason else {})
    # Without a given number of channels, TensorFlow finds the one that the record names.
    pixels = tf_pixels(stored)
    assert pixels.shape == (record["image/height"], record["image/width"], record["image/channels"])
    assert record["image/colorspace"] == {1: b"grayscale", 3: b"RGB"}[pixels.shape[2]]
    expected = tf_pixels(row.data, channels=record["image/channels"]) if row.pixels is None else row.pixels
    if record["image/format"] == b"PNG":
        np.testing.assert_array_equal(pixels, expected)
    else:
        assert pixels.shape == expected.shape
        assert np.abs(pixels.astype(int) - expected).mean() < (0.01 if row.outcome == KEPT else 6)


def test_every_rule_is_in_the_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "image_rules.md").read_text()
    cases = re.findall(r"^\| ([^|]+?) +\| (\w+)", text, re.MULTILINE)
    table = {case: outcome for case, outcome in cases if case not in ("Image", "---")}
    wanted = {row.case: row.outcome if row.outcome in (KEPT, "JPEG", "PNG") else "rejected" for row in ROWS}
    assert table == wanted


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("block", [exif, big_endian_exif], ids=["little-endian", "big-endian"])
def test_turns_images_of_every_orientation(orientation: int, block: Callable[[int], Any]) -> None:
    data = encode(RGB, "JPEG", quality=95, exif=block(orientation))
    record = convert(data)
    expected = turned(tf_pixels(data), orientation)
    assert (record["image/encoded"] == data) == (orientation == 1)
    assert (record["image/height"], record["image/width"]) == expected.shape[:2]
    assert np.abs(tf_pixels(record["image/encoded"]).astype(int) - expected).mean() < 4


def test_orientation_is_gone_and_the_profile_stays() -> None:
    # A reader that looks at the tag must not turn the image once more.
    stored = convert(encode(RGB, "JPEG", exif=exif(3), icc_profile=PROFILE))["image/encoded"]
    opened = Image.open(io.BytesIO(stored))
    assert not opened.getexif()
    assert opened.info["icc_profile"] == PROFILE


def test_damage_inside_the_pixels_is_seen_by_decoding() -> None:
    damaged = bytearray(encode(RGB, "PNG"))
    damaged[-14] ^= 1
    assert convert(bytes(damaged))["image/encoded"] == damaged
    with pytest.raises(BadRecordError, match=r"the checksum of the PNG's IDAT chunk is wrong \(at byte 33\)"):
        convert(bytes(damaged), check="decode")
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_pixels(bytes(damaged))


# Pillow's warnings are the program's to filter.
@pytest.mark.filterwarnings("ignore")
def test_a_cut_header_is_rejected_with_the_same_words_in_every_run() -> None:
    with pytest.raises(BadRecordError, match=r"TIFF that cannot be decoded: its header is cut or damaged$"):
        convert(encode(RGB, "TIFF")[:20])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [2, 3, 5, 11])
@pytest.mark.parametrize("tag", [700, 34675])
def test_tags_of_wrong_types_do_not_show_the_decoder_s_own_errors(tag: int, kind: int) -> None:
    # XMP and a colour profile, which are bytes, as text, integers, fractions or floats.
    data = bytearray(encode(RGB, "TIFF"))
    (start,) = struct.unpack_from("<I", data, 4)
    # In place of the tag for planes, which is optional.
    entry = data.index(struct.pack("<H", 284), start)
    for count in (1, 2):
        struct.pack_into("<HHI", data, entry, tag, kind, count)
        with contextlib.suppress(BadRecordError):
            np.testing.assert_array_equal(tf_pixels(convert(bytes(data))["image/encoded"]), RGB)
            continue
        with pytest.raises(
            BadRecordError, match=r"rejected: TIFF that cannot be decoded: its header is cut or damaged$"
        ):
            convert(bytes(data))


def test_damaged_pixels_of_a_tiff_are_named_without_numbers_of_the_decoder() -> None:
    data = bytearray(encode(RGB, "TIFF", compression="tiff_deflate"))
    data[12] ^= 0xFF
    with pytest.raises(BadRecordError, match=r"TIFF that cannot be decoded: its pixels are cut or damaged$"):
        convert(bytes(data))


def test_a_jpeg_without_a_table_is_seen_by_decoding() -> None:
    start = JPEG_RGB.index(b"\xff\xdb")
    length = int.from_bytes(JPEG_RGB[start + 2 : start + 4], "big")
    broken = JPEG_RGB[:start] + JPEG_RGB[start + 2 + length :]
    assert convert(broken)["image/encoded"] == broken
    with pytest.raises(BadRecordError, match="JPEG that cannot be decoded"):
        convert(broken, check="decode")
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_pixels(broken)


@given(st.data())
@settings(max_examples=150)
def test_a_cut_file_is_rejected_and_says_why(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from([row for row in ROWS if row.outcome == KEPT and "after its end" not in row.case]))
    whole = row.data if "MPO" not in row.case else JPEG_RGB
    with pytest.raises(BadRecordError, match="rejected: "):
        convert(whole[: data.draw(st.integers(0, len(whole) - 1))])


# Pillow's warnings are the program's to filter.
@pytest.mark.filterwarnings("ignore")
@given(st.data())
@settings(max_examples=150)
def test_a_damaged_file_is_a_record_or_rejected(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from([row.data for row in ROWS if row.data])))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        record = convert(bytes(damaged), check=data.draw(st.sampled_from(["header", "decode"])))
    except BadRecordError:
        pass
    else:
        assert record["image/height"] * record["image/width"] > 0


def test_equal_images_give_equal_bytes() -> None:
    for row in ROWS:
        if row.outcome in ("JPEG", "PNG"):
            assert convert(row.data) == convert(row.data)


@given(st.data())
@settings(max_examples=100)
def test_a_jpeg_with_stray_bytes_is_kept_only_if_tensorflow_decodes_it(data: st.DataObject) -> None:
    stray = data.draw(st.lists(st.sampled_from([0, 1, 0x80, 0xC0, 0xD8, 0xE1, 0xFE, 0xFF]), max_size=6).map(bytes))
    places = [place for place in range(2, len(JPEG_RGB) - 4) if JPEG_RGB[place] == 0xFF and JPEG_RGB[place + 1]]
    place = data.draw(st.sampled_from(places[:8]))
    changed = JPEG_RGB[:place] + stray + JPEG_RGB[place:]
    try:
        record = convert(changed)
    except BadRecordError:
        # The decoder may take some of these bytes for a marker.
        assert b"\xff" in stray or not changed.startswith(b"\xff\xd8\xff")
        return
    assert record["image/encoded"] == changed
    pixels = tf_pixels(record["image/encoded"])
    assert pixels.shape == (record["image/height"], record["image/width"], record["image/channels"])

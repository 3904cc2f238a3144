"""The rules for every kind of image: one conversion of a file for each row of docs/reference/image_rules.md, and some of many
damaged files.
"""

from __future__ import annotations

import collections
import io
import random
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pillow_heif
import pytest
import tensorflow as tf
from PIL import Image, ImageCms

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
from tests.beam_jobs.outcomes import Outcome, convert_pictures

RGB = picture()
GREY = RGB[..., :1]
ALPHA = np.linspace(0, 255, RGB[..., 0].size).astype(np.uint8).reshape(*RGB.shape[:2], 1)
NOISE = np.random.default_rng(0).integers(0, 65536, (13, 11, 4))
JPEG_RGB = encode(RGB, "JPEG", quality=95)
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()

KEPT = "kept"
# Pillow's warnings are the program's to filter.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")


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


def turn(pixels: Pixels, orientation: int) -> Pixels:
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
        turn(RGB, 6),
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
    Row("PNG, turned by Exif", encode(RGB, "PNG", exif=exif(8)), "PNG", "EXIF orientation", turn(RGB, 8)),
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
    Row("WebP, turned by Exif", encode(RGB, "WEBP", lossless=True, exif=exif(5)), "PNG", "WebP", turn(RGB, 5)),
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
    Row("TIFF, turned by its tag", encode(RGB, "TIFF", tiffinfo={274: 6}), "PNG", "TIFF", turn(RGB, 6)),
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
    Row("AVIF, turned by Exif", encode(RGB, "AVIF", quality=95, exif=exif(6)), "JPEG", "AVIF", turn(RGB, 6)),
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
    Row("HEIC, turned by Exif", heic(RGB, exif=exif(6)), "JPEG", "HEIC", turn(RGB, 6)),
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


@pytest.fixture(scope="module", params=["header", "decode"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One conversion of all rows, with a check of headers or of all pixels."""
    folder = tmp_path_factory.mktemp(request.param)
    return convert_pictures(folder, {f"{n:03}": row.data for n, row in enumerate(ROWS)}, check=request.param)


def test_keeps_reencodes_or_rejects_by_rule(outcome: Outcome) -> None:
    for number, row in enumerate(ROWS):
        name = f"{number:03}"
        if row.outcome in (KEPT, "JPEG", "PNG"):
            assert name in outcome.records, (row.case, outcome.rejects.get(name))
            check_record(row, outcome.records[name])
        else:
            assert row.outcome in outcome.rejects[name], row.case
    assert len(outcome.records) + len(outcome.rejects) == len(ROWS)
    assert outcome.manifest.converted == collections.Counter(row.reason for row in ROWS if row.reason)


def check_record(row: Row, record: dict[str, Any]) -> None:
    stored = record["image/encoded"]
    assert (stored == row.data) == (row.outcome == KEPT), row.case
    if row.outcome != KEPT:
        assert record["image/format"] == row.outcome.encode(), row.case
    assert stored.startswith({b"JPEG": b"\xff\xd8", b"PNG": b"\x89PNG"}[record["image/format"]]), row.case
    # Without a given number of channels, TensorFlow finds the one that the record names.
    pixels = tf_pixels(stored)
    assert pixels.shape == (record["image/height"], record["image/width"], record["image/channels"]), row.case
    assert record["image/colorspace"] == {1: b"grayscale", 3: b"RGB"}[pixels.shape[2]], row.case
    expected = tf_pixels(row.data, channels=record["image/channels"]) if row.pixels is None else row.pixels
    if record["image/format"] == b"PNG":
        np.testing.assert_array_equal(pixels, expected, row.case)
    else:
        assert pixels.shape == expected.shape, row.case
        assert np.abs(pixels.astype(int) - expected).mean() < (0.01 if row.outcome == KEPT else 6), row.case


def test_equal_images_give_equal_bytes(tmp_path: Path) -> None:
    changed = {f"{n:03}": row.data for n, row in enumerate(ROWS) if row.outcome in ("JPEG", "PNG")}
    records = convert_pictures(tmp_path, changed | {f"{name}-again": data for name, data in changed.items()}).records
    for name in changed:
        assert records[name]["image/encoded"] == records[f"{name}-again"]["image/encoded"]


def test_docs_table_lists_every_rule() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "image_rules.md").read_text()
    cases = re.findall(r"^\| ([^|]+?) +\| (\w+)", text, re.MULTILINE)
    table = {case: outcome for case, outcome in cases if case not in ("Image", "---")}
    wanted = {row.case: row.outcome if row.outcome in (KEPT, "JPEG", "PNG") else "rejected" for row in ROWS}
    assert table == wanted


def test_turns_images_of_every_orientation(tmp_path: Path) -> None:
    files = {
        f"{orientation}-{order}": encode(RGB, "JPEG", quality=95, exif=block(orientation))
        for orientation in range(1, 9)
        for order, block in (("little", exif), ("big", big_endian_exif))
    }
    records = convert_pictures(tmp_path, files).records
    for name, data in files.items():
        orientation, stored = int(name[0]), records[name]["image/encoded"]
        expected = turn(tf_pixels(data), orientation)
        assert (stored == data) == (orientation == 1), name
        assert (records[name]["image/height"], records[name]["image/width"]) == expected.shape[:2], name
        assert np.abs(tf_pixels(stored).astype(int) - expected).mean() < 4, name


def damaged_png() -> bytes:
    data = bytearray(encode(RGB, "PNG"))
    data[-14] ^= 1
    return bytes(data)


def jpeg_without_a_table() -> bytes:
    start = JPEG_RGB.index(b"\xff\xdb")
    length = int.from_bytes(JPEG_RGB[start + 2 : start + 4], "big")
    return JPEG_RGB[:start] + JPEG_RGB[start + 2 + length :]


def damaged_tiff() -> bytes:
    data = bytearray(encode(RGB, "TIFF", compression="tiff_deflate"))
    data[12] ^= 0xFF
    return bytes(data)


def mistyped_tiff(tag: int, kind: int, count: int) -> bytes:
    """A TIFF whose XMP or colour profile, which are bytes, is text, integers, fractions or floats."""
    data = bytearray(encode(RGB, "TIFF"))
    (start,) = struct.unpack_from("<I", data, 4)
    # In place of the tag for planes, which is optional.
    struct.pack_into("<HHI", data, data.index(struct.pack("<H", 284), start), tag, kind, count)
    return bytes(data)


MISTYPED = {
    f"tag {tag}, {kind}, {count}": mistyped_tiff(tag, kind, count)
    for tag in (700, 34675)
    for kind in (2, 3, 5, 11)
    for count in (1, 2)
}
PIXELS = {"png": damaged_png(), "jpeg": jpeg_without_a_table()}
OTHERS = {
    # A reader that looks at the tag must not turn the image once more.
    "upright": encode(RGB, "JPEG", exif=exif(3), icc_profile=PROFILE),
    "cut tiff": encode(RGB, "TIFF")[:20],
    "damaged tiff": damaged_tiff(),
    **MISTYPED,
    **PIXELS,
}


def test_detects_damaged_pixels_only_by_decoding(tmp_path: Path) -> None:
    header = convert_pictures(tmp_path / "header", OTHERS)
    decode = convert_pictures(tmp_path / "decode", PIXELS | {"whole": JPEG_RGB}, check="decode")
    for name, data in PIXELS.items():
        assert header.records[name]["image/encoded"] == data
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf_pixels(data)
    assert decode.rejects["png"] == "the checksum of the PNG's IDAT chunk is wrong (at byte 33)"
    assert "JPEG that cannot be decoded" in decode.rejects["jpeg"]
    opened = Image.open(io.BytesIO(header.records["upright"]["image/encoded"]))
    assert not opened.getexif()
    assert opened.info["icc_profile"] == PROFILE
    # The same words in every run, without numbers of the decoder.
    assert header.rejects["cut tiff"] == "TIFF that cannot be decoded: its header is cut or damaged"
    assert header.rejects["damaged tiff"] == "TIFF that cannot be decoded: its pixels are cut or damaged"
    for name in MISTYPED:
        if name in header.records:
            np.testing.assert_array_equal(tf_pixels(header.records[name]["image/encoded"]), RGB)
        else:
            assert header.rejects[name] == "TIFF that cannot be decoded: its header is cut or damaged"


def test_rejects_every_truncated_file(tmp_path: Path) -> None:
    mixer = random.Random(0)
    whole = [row.data for row in ROWS if row.outcome == KEPT and "after its end" not in row.case]
    whole = [JPEG_RGB if data == BY_CASE["JPEG, several pictures (MPO)"].data else data for data in whole]
    files = {f"{n}": data[: mixer.randrange(len(data))] for n, data in enumerate(mixer.choices(whole, k=300))}
    outcome = convert_pictures(tmp_path, {**files, "whole": JPEG_RGB})
    assert outcome.records.keys() == {"whole"}
    assert outcome.rejects.keys() == files.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", ["header", "decode"])
def test_stores_or_rejects_every_damaged_file(check: str, tmp_path: Path) -> None:
    mixer, files = random.Random(check), {"whole": JPEG_RGB}
    for number, row in enumerate(mixer.choices([row for row in ROWS if row.data], k=300)):
        damaged = bytearray(row.data)
        for _ in range(mixer.randrange(1, 5)):
            damaged[mixer.randrange(len(damaged))] = mixer.randrange(256)
        files[f"{number}"] = bytes(damaged)
    outcome = convert_pictures(tmp_path, files, check=check)
    assert outcome.records.keys() ^ outcome.rejects.keys() == files.keys()
    assert all(record["image/height"] * record["image/width"] > 0 for record in outcome.records.values())


def test_keeps_a_jpeg_with_stray_bytes_only_if_tensorflow_decodes_it(tmp_path: Path) -> None:
    mixer, files, strays = random.Random(0), {"whole": JPEG_RGB}, {}
    places = [place for place in range(2, len(JPEG_RGB) - 4) if JPEG_RGB[place] == 0xFF and JPEG_RGB[place + 1]]
    for number in range(200):
        stray = strays[f"{number}"] = bytes(
            mixer.choices([0, 1, 0x80, 0xC0, 0xD8, 0xE1, 0xFE, 0xFF], k=mixer.randrange(7))
        )
        place = mixer.choice(places[:8])
        files[f"{number}"] = JPEG_RGB[:place] + stray + JPEG_RGB[place:]
    outcome = convert_pictures(tmp_path, files)
    for name, data in files.items():
        if name in outcome.records:
            record = outcome.records[name]
            assert record["image/encoded"] == data
            shape = (record["image/height"], record["image/width"], record["image/channels"])
            assert tf_pixels(data).shape == shape
        else:
            # The decoder may take some of these bytes for a marker.
            assert name in outcome.rejects
            assert b"\xff" in strays[name] or not data.startswith(b"\xff\xd8\xff")

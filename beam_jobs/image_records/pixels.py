"""Decoding to pixels and encoding, with Pillow: 8 bits a sample, grey or RGB, upright, on white if transparent."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from beam_jobs.image_records.header import (
    AVIF,
    BMP,
    GIF,
    HEIC,
    JPEG,
    JPEG_2000,
    PNG,
    PPM,
    TIFF,
    UPRIGHT,
    WEBP,
    ImageHeader,
    check_png_checksums,
    check_size,
    exif_orientation,
)
from beam_jobs.image_records.modern_formats import PLUGINS, is_reversible, open_modern
from tpudata.errors import UsageError

_PLUGINS = {JPEG: "JPEG", PNG: "PNG", GIF: "GIF", WEBP: "WEBP", BMP: "BMP", TIFF: "TIFF", PPM: "PPM", **PLUGINS}
# What makes an image of an Exif orientation upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B")
_GREY_MODES = ("1", "L", "LA", "La")
_COLOR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "YCbCr", "CMYK")
_JPEG_SIDE = 65_500  # libjpeg's limit
_BITS_PER_SAMPLE, _SAMPLE_FORMAT, _UNSIGNED = 258, 339, 1  # TIFF tags, and a value of the second
# How much larger than its target a JPEG is decoded before it is shrunk: decoders halve sizes for nothing, filters do it better.
_REDUCING_GAP = 3


def decode_image(
    data: bytes, name: str, header: ImageHeader | None, shorter: int | None = None, draft: bool = False
) -> Image.Image:
    """Decode an image fully.

    Args:
        data: the encoded image.
        name: its format, as `image_format` says it.
        header: what `read_header` says; None for other formats than JPEG and PNG.
        shorter: shrink the image to this shorter side, in pixels; None, or an image that is smaller, leaves its size.
        draft: a JPEG may be decoded at a half, a quarter or an eighth of its size where it is shrunk further than that.

    Returns:
        An upright image of mode `L` or `RGB`.

    Raises:
        ValueError: broken, or of a kind that is not read; the message completes `rejected: `.
    """
    if name == PNG:
        check_png_checksums(data)
    image = _open(data, name)
    check_size(name, *image.size)
    if name == TIFF:
        _check_tiff(image)
    # Known before a draft, whose own size is rounded.
    size = _shrunk_size(image.size, shorter)
    if draft and name == JPEG and size != image.size:
        image.draft(None, (size[0] * _REDUCING_GAP, size[1] * _REDUCING_GAP))
    if header is not None and header.bits == 16:
        image = _eight_bits(data)
    elif name == TIFF and _is_deep_color(image):
        image = _eight_bit_tiff(data, image)
    else:
        image = _load(image, name)
    plain = _plain(image, name, header)
    if name == TIFF:
        size = _shrunk_size(plain.size, shorter)  # Pillow may have turned it as it was loaded
    plain = _resize(plain, size)
    turn = _TURNS.get(header.orientation if header else _orientation(image, name))
    if turn is not None:
        plain = plain.transpose(turn)
    # The rest describes the old file, and encoders would write some of it into the new one.
    profile = None if image.mode == "CMYK" else image.info.get("icc_profile")
    plain.info = {"icc_profile": profile} if profile else {}
    return plain


def shrink(image: Image.Image, shorter: int | None) -> Image.Image:
    """Return an image of mode `L` or `RGB` with its shorter side at `shorter` pixels; as it is if it is not larger, or if None."""
    return _resize(image, _shrunk_size(image.size, shorter))


def check_decodes(data: bytes, name: str) -> None:
    """Decode an image and forget it.

    Raises:
        ValueError: it is broken; the message completes `rejected: `.
    """
    if name == PNG:
        check_png_checksums(data)
    _load(_open(data, name), name)


def encode_image(image: Image.Image, name: str, quality: int) -> bytes:
    """Encode an image of mode `L` or `RGB`. Equal images give equal bytes with one build of Pillow.

    Args:
        image: as `decode_image` returns it.
        name: `JPEG` or `PNG`.
        quality: of a JPEG, 1 to 100.

    Raises:
        ValueError: the image is too long for a JPEG; the message completes `rejected: `.
    """
    out = io.BytesIO()
    profile = image.info.get("icc_profile")
    if name == JPEG:
        if max(image.size) > _JPEG_SIDE:
            raise ValueError(
                f"too large for a JPEG: {image.width} x {image.height} pixels; a JPEG may have {_JPEG_SIDE:,} a side"
            )
        image.save(out, "JPEG", quality=quality, icc_profile=profile)
    else:
        image.save(out, "PNG", icc_profile=profile)
    return out.getvalue()


def is_lossless(data: bytes, name: str) -> bool:
    """Return whether an image's format keeps every pixel.

    All do except JPEG, AVIF, HEIC and, as its first frame says, most of WebP, and JPEG 2000 with its irreversible wavelet.
    """
    if name == JPEG_2000:
        return is_reversible(data)
    if name != WEBP:
        return name not in (JPEG, AVIF, HEIC)
    # A WebP is a RIFF file of chunks; a frame of an animation, ANMF, holds its own after 16 bytes.
    position = 12
    while position + 8 <= len(data):
        kind = data[position : position + 4]
        if kind in (b"VP8 ", b"VP8L"):
            return kind == b"VP8L"
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        position += 8 + 16 if kind == b"ANMF" else 8 + size + size % 2
    return False


def is_animated(data: bytes, name: str) -> bool:
    """Return whether an image that decodes has more frames or pages than the one that is kept."""
    if name not in (GIF, WEBP, AVIF, TIFF):
        return False
    image = _open(data, name)
    with _pillow(name):
        return getattr(image, "n_frames", 1) > 1


@contextlib.contextmanager
def _pillow(name: str) -> Iterator[None]:
    """Turn whatever Pillow raises for a broken image into a ValueError, and drop its warnings."""
    with warnings.catch_warnings():
        # Of odd metadata, and of sizes above half of what is allowed here.
        warnings.simplefilter("ignore")
        try:
            yield
        except (MemoryError, UsageError):
            raise
        # Its text holds an address in memory, which would make rejects differ from run to run.
        except UnidentifiedImageError as error:
            raise ValueError(f"{name} that cannot be decoded: its header is cut or damaged") from error
        # Pillow promises no list of exceptions: OSError, SyntaxError, EOFError, struct.error and others have been seen.
        except Exception as error:
            raise ValueError(f"{name} that cannot be decoded: {error or type(error).__name__}") from error


def _open(data: bytes, name: str) -> Image.Image:
    with _pillow(name):
        opened = open_modern(data, name)
        return opened if opened is not None else Image.open(io.BytesIO(data), formats=(_PLUGINS[name],))


def _load(image: Image.Image, name: str) -> Image.Image:
    with _pillow(name):
        image.load()
    return image


def _check_tiff(image: Image.Image) -> None:
    """Reject samples whose range is their owner's: signed, of more than 16 bits, or fractions."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    with _pillow(TIFF):
        bits = max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))
        kinds = set(image.tag_v2.get(_SAMPLE_FORMAT, (_UNSIGNED,)))
    if bits > 16 or kinds != {_UNSIGNED}:
        what = f"{bits} bits per sample" if kinds == {_UNSIGNED} else f"signed or fractional samples of {bits} bits"
        raise ValueError(f"TIFF of {what}; 8 and 16 unsigned bits are read. Scale it, and save it as PNG")


def _orientation(image: Image.Image, name: str) -> int:
    # Pillow has turned a TIFF already, and libheif a HEIC; GIF, BMP, PPM and JPEG 2000 have no orientation.
    if name not in (WEBP, AVIF):
        return UPRIGHT
    return exif_orientation(image.info.get("exif", b"").removeprefix(b"Exif\0\0"))


def _shrunk_size(size: tuple[int, int], shorter: int | None) -> tuple[int, int]:
    """Return a size with its shorter side at `shorter` pixels; as it is if it is not larger, or if None."""
    if shorter is None or min(size) <= shorter:
        return size
    scale = shorter / min(size)
    return round(size[0] * scale), round(size[1] * scale)


def _resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def _plain(image: Image.Image, name: str, header: ImageHeader | None) -> Image.Image:
    """Return a decoded image as mode `L` or `RGB`, on white."""
    if name in (TIFF, JPEG_2000) and image.mode in _SIXTEEN_BIT_MODES:
        image = _scaled(image)
    if image.mode not in (*_GREY_MODES, *_COLOR_MODES):
        raise ValueError(f"{name} with pixels of the kind {image.mode}; 8-bit grey, RGB and CMYK are read")
    mode = "L" if image.mode in _GREY_MODES or _is_grey_palette(image) else "RGB"
    if image.mode == "CMYK" and header is not None and not header.adobe:
        # Pillow reads every CMYK JPEG as inverted, which only Adobe's are; Adobe's marker tells them apart.
        image = image.point(lambda value: 255 - value)
    if not image.has_transparency_data:
        return image.convert(mode)
    if header is not None and header.bits < 8 and isinstance(image.info.get("transparency"), int) and image.mode == "L":
        # The transparent grey is said in units of the samples, which Pillow has scaled to 8 bits.
        image.info["transparency"] *= 255 // (2**header.bits - 1)
    full = image.convert("RGBA")
    white = Image.new(mode, image.size, 255 if mode == "L" else (255, 255, 255))
    opaque = full.getchannel("R") if mode == "L" else full.convert("RGB")
    white.paste(opaque, mask=full.getchannel("A"))
    return white


def _scaled(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bits as one of 8, each sample rounded to the nearest."""
    values = np.asarray(image).astype(np.int64)
    scaled = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    scaled.info = image.info
    return scaled


def _is_grey_palette(image: Image.Image) -> bool:
    colors = image.getpalette("RGB") if image.mode in ("P", "PA") else None
    return colors is not None and colors[0::3] == colors[1::3] == colors[2::3]


def _eight_bits(data: bytes) -> Image.Image:
    """Return a PNG of 16 bits as an image of 8, each sample rounded to the nearest."""
    image = _load(_open(data, PNG), PNG)
    color = data[25]  # IHDR's colour type: 0 grey, 2 RGB, 4 grey and alpha, 6 RGB and alpha
    transparent = image.info.pop("transparency", None)
    if color == 0:
        values = np.asarray(image).astype(np.int64)[..., None]
    elif color == 4:
        # Two samples of two bytes, unpacked as four of one byte.
        four = _samples(data, "RGBA")
        values = four[..., 0::2] << 8 | four[..., 1::2]
    else:
        # Pillow keeps one byte of each sample: the higher one if given the byte order of PNG, otherwise the lower one.
        mode = "RGB" if color == 2 else "RGBA"
        values = _samples(data, f"{mode};16B") << 8 | _samples(data, f"{mode};16L")
    scaled = ((values * 255 + 32767) // 65535).astype(np.uint8)
    if transparent is not None:
        shown = (values != np.asarray(transparent)).any(-1, keepdims=True)
        scaled = np.concatenate([scaled, shown.astype(np.uint8) * 255], -1)
    out = Image.fromarray(scaled[..., 0] if scaled.shape[-1] == 1 else scaled)
    out.info = image.info
    return out


def _is_deep_color(image: Image.Image) -> bool:
    """Return whether a TIFF has colours of 16 bits a sample."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    with _pillow(TIFF):
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))) == 16 and image.mode in ("RGB", "RGBA")


def _eight_bit_tiff(data: bytes, image: Image.Image) -> Image.Image:
    """Return a TIFF with colours of 16 bits as an image of 8, each sample rounded to the nearest.

    Pillow keeps the higher byte of each sample, or the lower one if it is given the other order of bytes.
    """
    other = _open(data, TIFF)
    swapped = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
    tiles: list[Any] = []
    for tile in other.tile:  # type: ignore[attr-defined]
        rawmode = str(tile[3][0])
        if not rawmode.startswith((f"{image.mode};16", "RGBX;16")) or rawmode[-1] not in swapped:
            raise ValueError(f"TIFF of 16 bits a sample with pixels of the kind {rawmode}; save it as PNG")
        tiles.append((*tile[:3], (f"{rawmode[:-1]}{swapped[rawmode[-1]]}", *tile[3][1:])))
    other.tile = tiles  # type: ignore[attr-defined]
    high, low = (np.asarray(_load(one, TIFF)).astype(np.int64) for one in (image, other))
    scaled = Image.fromarray((((high << 8 | low) * 255 + 32767) // 65535).astype(np.uint8))
    scaled.info = image.info
    return scaled


def _samples(data: bytes, rawmode: str) -> npt.NDArray[np.int64]:
    """Return the pixels of a PNG as Pillow unpacks them under another raw mode: int64 [height, width, channels]."""
    image = _open(data, PNG)
    image.tile = [(*tile[:3], rawmode) for tile in image.tile]  # type: ignore[attr-defined]
    return np.asarray(_load(image, PNG)).astype(np.int64)

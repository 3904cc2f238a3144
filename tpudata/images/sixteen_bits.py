"""Images of 16 bits a sample as images of 8 bits, each sample rounded to the nearest."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin

from tpudata.images.header import MAX_PIXELS
from tpudata.images.image_format import PNG, TIFF
from tpudata.images.pillow_files import load_image, open_image, translate_pillow_errors

SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B")
_BAND_SAMPLES = 1 << 20
_BITS_PER_SAMPLE, _SAMPLE_FORMAT, _UNSIGNED = 258, 339, 1  # TIFF tags, and a value of SampleFormat
_TILE_SIDES = (322, 323)


def check_tiff(image: Image.Image) -> None:
    """Reject samples of unknown range (signed, of more than 16 bits, or fractions), and tiles larger than an image may be."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    with translate_pillow_errors(TIFF):
        bits = max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))
        kinds = set(image.tag_v2.get(_SAMPLE_FORMAT, (_UNSIGNED,)))
        width, height = (image.tag_v2.get(tag, 1) for tag in _TILE_SIDES)
        is_large = width * height > MAX_PIXELS
    if is_large:
        # An image of one pixel may have such a tile, and it is unpacked whole.
        raise ValueError(f"a TIFF with tiles of too many pixels: {width} x {height} pixels; {MAX_PIXELS:,} are allowed")
    if bits > 16 or kinds != {_UNSIGNED}:
        kind = f"{bits} bits per sample" if kinds == {_UNSIGNED} else f"signed or fractional samples of {bits} bits"
        raise ValueError(f"TIFF of {kind}; 8 and 16 unsigned bits are read. Scale it, and save it as PNG")


def eight_bit_grey(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bits as one of 8, each sample rounded to the nearest."""
    scaled = Image.fromarray(_scale(np.asarray(image)))
    scaled.info = image.info
    return scaled


def eight_bit_png(data: bytes) -> Image.Image:
    """Return a PNG of 16 bits as an image of 8, each sample rounded to the nearest."""
    image = load_image(open_image(data, PNG), PNG)
    color = data[25]  # IHDR's colour type: 0 grey, 2 RGB, 4 grey and alpha, 6 RGB and alpha
    transparent = image.info.pop("transparency", None)
    if color == 0:
        values = np.asarray(image)[..., None]
    elif color == 4:
        # Two samples of two bytes, unpacked as four of one byte.
        sample_bytes = _unpack_samples(data, "RGBA")
        values = _join_bytes(sample_bytes[..., 0::2], sample_bytes[..., 1::2])
    else:
        # Pillow keeps one byte of each sample: with the byte order of PNG the higher one, otherwise the lower one.
        mode = "RGB" if color == 2 else "RGBA"
        values = _join_bytes(_unpack_samples(data, f"{mode};16B"), _unpack_samples(data, f"{mode};16L"))
    scaled = _scale(values)
    if transparent is not None:
        is_opaque = (values != np.asarray(transparent)).any(-1, keepdims=True)
        scaled = np.concatenate([scaled, is_opaque.astype(np.uint8) * 255], -1)
    out = Image.fromarray(scaled[..., 0] if scaled.shape[-1] == 1 else scaled)
    out.info = image.info
    return out


def is_deep_color(image: Image.Image) -> bool:
    """Return whether a TIFF has colours of 16 bits a sample."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    with translate_pillow_errors(TIFF):
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))) == 16 and image.mode in ("RGB", "RGBA")


def eight_bit_tiff(data: bytes, image: Image.Image) -> Image.Image:
    """Return a TIFF with colours of 16 bits as an image of 8, each sample rounded to the nearest.

    Pillow keeps the higher byte of each sample, or with the other byte order the lower one.
    """
    other = open_image(data, TIFF)
    swapped = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
    tiles: list[Any] = []
    for tile in other.tile:  # type: ignore[attr-defined]
        rawmode = str(tile[3][0])
        if not rawmode.startswith((f"{image.mode};16", "RGBX;16")) or rawmode[-1] not in swapped:
            raise ValueError(f"TIFF of 16 bits a sample with pixels of the kind {rawmode}; save it as PNG")
        tiles.append((*tile[:3], (f"{rawmode[:-1]}{swapped[rawmode[-1]]}", *tile[3][1:])))
    other.tile = tiles  # type: ignore[attr-defined]
    high, low = (np.asarray(load_image(half, TIFF)) for half in (image, other))
    scaled = Image.fromarray(_scale(_join_bytes(high, low)))
    scaled.info = image.info
    return scaled


def _join_bytes(high: npt.NDArray[np.uint8], low: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """Return samples of 16 bits from their bytes."""
    values = high.astype(np.uint16)
    values <<= 8
    values |= low
    return values


def _scale(values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return samples of 16 bits as those of 8, some rows at a time: an array of int64 would take 8 bytes for each."""
    scaled = np.empty(values.shape, np.uint8)
    step = max(1, _BAND_SAMPLES // max(1, values[:1].size))
    for row in range(0, len(values), step):
        band = values[row : row + step].astype(np.int64)
        scaled[row : row + step] = (band * 255 + 32767) // 65535
    return scaled


def _unpack_samples(data: bytes, rawmode: str) -> npt.NDArray[np.uint8]:
    """Return the pixels of a PNG as Pillow unpacks them under another raw mode: uint8 [height, width, channels]."""
    image = open_image(data, PNG)
    image.tile = [(*tile[:3], rawmode) for tile in image.tile]  # type: ignore[attr-defined]
    return np.asarray(load_image(image, PNG))

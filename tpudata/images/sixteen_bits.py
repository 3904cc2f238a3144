"""Conversion of images of 16 bits a sample to images of 8 bits, each sample rounded to the nearest."""

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
# Samples that are scaled at a time: 8 MiB as int64.
_BAND_SAMPLES = 1 << 20
# TIFF tags, and the value of SampleFormat for unsigned integers.
_BITS_PER_SAMPLE, _SAMPLE_FORMAT, _UNSIGNED = 258, 339, 1
# TIFF tags for the width and the height of a tile.
_TILE_SIDES = (322, 323)
# Offset of the colour type in a PNG's IHDR, and its values; 6 is RGB and alpha.
_PNG_COLOR_TYPE = 25
_GREY, _RGB, _GREY_ALPHA = 0, 2, 4
# Pillow's marks of the byte order in a raw mode, little, big and native, each with the mark of the other order.
_SWAPPED_ORDERS = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}


def check_tiff(image: Image.Image) -> None:
    """Raise ValueError if samples have an unknown range (signed, fractions, or more than 16 bits), or tiles are too large."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    with translate_pillow_errors(TIFF):
        bits = max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))
        is_unsigned = set(image.tag_v2.get(_SAMPLE_FORMAT, (_UNSIGNED,))) == {_UNSIGNED}
        width, height = (image.tag_v2.get(tag, 1) for tag in _TILE_SIDES)
        has_large_tiles = width * height > MAX_PIXELS
    if has_large_tiles:
        # An image of one pixel may have a large tile, which is unpacked whole.
        raise ValueError(f"a TIFF with tiles of too many pixels: {width} x {height} pixels; {MAX_PIXELS:,} are allowed")
    if bits > 16 or not is_unsigned:
        samples = f"{bits} bits per sample" if is_unsigned else f"signed or fractional samples of {bits} bits"
        raise ValueError(f"TIFF of {samples}; 8 and 16 unsigned bits are read. Scale it, and save it as PNG")


def make_eight_bit_grey(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bits a sample as one of 8 bits."""
    scaled = Image.fromarray(_scale(np.asarray(image)))
    # Callers read the image's metadata, such as the transparent colour.
    scaled.info = image.info
    return scaled


def make_eight_bit_png(data: bytes) -> Image.Image:
    """Return a PNG of 16 bits a sample as an image of 8 bits; a transparent colour becomes an alpha channel."""
    image = load_image(open_image(data, PNG), PNG)
    transparent_color = image.info.pop("transparency", None)
    color_type = data[_PNG_COLOR_TYPE]
    if color_type == _GREY:
        # The only kind that Pillow decodes to 16 bits.
        samples = np.asarray(image)[..., None]
    elif color_type == _GREY_ALPHA:
        # Two samples of two bytes, unpacked as four of one byte.
        sample_bytes = _unpack_samples(data, "RGBA")
        samples = _join_bytes(sample_bytes[..., 0::2], sample_bytes[..., 1::2])
    else:
        # Pillow keeps one byte of each sample: with the byte order of PNG the higher one, otherwise the lower one.
        mode = "RGB" if color_type == _RGB else "RGBA"
        samples = _join_bytes(_unpack_samples(data, f"{mode};16B"), _unpack_samples(data, f"{mode};16L"))
    channels = _scale(samples)
    if transparent_color is not None:
        is_opaque = (samples != np.asarray(transparent_color)).any(-1, keepdims=True)
        channels = np.concatenate([channels, is_opaque.astype(np.uint8) * 255], -1)
    scaled = Image.fromarray(channels[..., 0] if channels.shape[-1] == 1 else channels)
    scaled.info = image.info
    return scaled


def is_deep_color(image: Image.Image) -> bool:
    """Return whether a TIFF has colours of 16 bits a sample."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    with translate_pillow_errors(TIFF):
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))) == 16 and image.mode in ("RGB", "RGBA")


def make_eight_bit_tiff(data: bytes, image: Image.Image) -> Image.Image:
    """Return a TIFF with colours of 16 bits a sample as an image of 8 bits.

    Pillow keeps only the higher byte of each sample. The image is therefore decoded twice, the second time with the other
    byte order, so that Pillow keeps the lower byte.

    Args:
        data: the encoded image.
        image: the image, opened.

    Raises:
        ValueError: its pixels are of an unknown kind, or damaged.
    """
    swapped_image = open_image(data, TIFF)
    tiles: list[Any] = []
    for codec, extents, offset, (raw_mode, *codec_options) in swapped_image.tile:  # type: ignore[attr-defined]
        # A raw mode, such as `RGB;16L`, ends with the byte order; the X of `RGBX` is a fourth sample that is ignored.
        kind, order = str(raw_mode)[:-1], str(raw_mode)[-1:]
        if not kind.startswith((f"{image.mode};16", "RGBX;16")) or order not in _SWAPPED_ORDERS:
            raise ValueError(f"TIFF of 16 bits a sample with pixels of the kind {raw_mode}; save it as PNG")
        tiles.append((codec, extents, offset, (f"{kind}{_SWAPPED_ORDERS[order]}", *codec_options)))
    swapped_image.tile = tiles  # type: ignore[attr-defined]
    high, low = (np.asarray(load_image(half, TIFF)) for half in (image, swapped_image))
    scaled = Image.fromarray(_scale(_join_bytes(high, low)))
    scaled.info = image.info
    return scaled


def _join_bytes(high: npt.NDArray[np.uint8], low: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """Return samples of 16 bits from their higher and lower bytes."""
    samples = high.astype(np.uint16)
    samples <<= 8
    samples |= low
    return samples


def _scale(samples: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return samples of 16 bits as samples of 8 bits, rounded to the nearest."""
    scaled = np.empty(samples.shape, np.uint8)
    # Some rows at a time: all samples as int64 would take 8 bytes each.
    rows_per_band = max(1, _BAND_SAMPLES // max(1, samples[:1].size))
    for row in range(0, len(samples), rows_per_band):
        band = samples[row : row + rows_per_band].astype(np.int64)
        # 65535 becomes 255. The added 32767, half of the divisor, makes the division round to the nearest.
        scaled[row : row + rows_per_band] = (band * 255 + 32767) // 65535
    return scaled


def _unpack_samples(data: bytes, raw_mode: str) -> npt.NDArray[np.uint8]:
    """Return the pixels of a PNG as Pillow unpacks them with the raw mode `raw_mode`: uint8 [height, width, channels]."""
    image = open_image(data, PNG)
    image.tile = [  # type: ignore[attr-defined]
        (codec, extents, offset, raw_mode)
        for codec, extents, offset, _ in image.tile  # type: ignore[attr-defined]
    ]
    return np.asarray(load_image(image, PNG))

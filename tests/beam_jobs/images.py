"""Real encoded images for tests, beyond what Pillow can write."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def picture(height: int = 24, width: int = 40) -> Pixels:
    """A smooth RGB picture, different at every corner: uint8 [height, width, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    red, green, blue = x * 250 // width, y * 250 // height, 255 - (x + y) * 120 // (height + width)
    return np.stack([red, green, blue], -1).astype(np.uint8)


def encode(image: Image.Image | npt.NDArray[Any], name: str, **options: Any) -> bytes:
    """Encodes with Pillow."""
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, name, **options)
    return out.getvalue()


def exif(orientation: int) -> Image.Exif:
    """An Exif block that holds an orientation."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def big_endian_exif(orientation: int) -> bytes:
    """The same as bytes, big-endian, the orientation after another tag."""
    entries = struct.pack(">HHII", 0x010F, 2, 2, 0x41000000) + struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + entries + b"\0\0\0\0"


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(samples: npt.NDArray[Any], bits: int, *extra: bytes, interlaced: bool = False) -> bytes:
    """A PNG by hand: samples [height, width, channels] of `bits` each, `extra` chunks before the pixels."""
    height, width, channels = samples.shape
    head = struct.pack(">IIBBBBB", width, height, bits, _COLOR_TYPES[channels], 0, 0, interlaced)
    passes = [samples[y::dy, x::dx] for y, x, dy, dx in _ADAM7] if interlaced else [samples]
    body = b"".join(b"\0" + _row(row, bits) for part in passes if part.size for row in part)
    pixels = chunk(b"IDAT", zlib.compress(body))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(extra) + pixels + chunk(b"IEND", b"")


def _row(row: npt.NDArray[Any], bits: int) -> bytes:
    if bits == 16:
        return row.astype(">u2").tobytes()
    places = np.unpackbits(row.astype(np.uint8).ravel()[:, None], axis=1)[:, 8 - bits :]
    return np.packbits(places.ravel()).tobytes()


def without_adobe(jpeg: bytes) -> bytes:
    """A JPEG without its APP14 marker."""
    start = jpeg.index(b"\xff\xee")
    return jpeg[:start] + jpeg[start + 2 + int.from_bytes(jpeg[start + 2 : start + 4], "big") :]


def as_ycck(jpeg: bytes) -> bytes:
    """A CMYK JPEG whose Adobe marker says that its values are YCCK."""
    start = jpeg.index(b"Adobe")
    return jpeg[: start + 11] + b"\2" + jpeg[start + 12 :]


def with_frame(jpeg: bytes, marker: int = 0xC0, **parts: int) -> bytes:
    """A JPEG whose start of frame has another marker, `precision`, `height`, `width` or `components`."""
    start = jpeg.index(b"\xff\xc0")
    names = ("length", "precision", "height", "width", "components")
    values = dict(zip(names, struct.unpack_from(">HBHHB", jpeg, start + 2), strict=True)) | parts
    frame = struct.pack(">HBHHB", *(values[name] for name in names))
    return jpeg[: start + 1] + bytes((marker,)) + frame + jpeg[start + 10 :]

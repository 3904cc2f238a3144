"""AVIF, HEIC and JPEG 2000: opening them, and finding lossless ones."""

from __future__ import annotations

import importlib
import io

from PIL import Image, features

from beam_jobs.image_records.codecs.image_format import AVIF, HEIC, JPEG_2000
from tpudata.errors import MissingExtraError, UsageError

# Pillow's names of the formats.
PLUGINS = {AVIF: "AVIF", JPEG_2000: "JPEG2000"}
_CODESTREAM_BOX = b"jp2c"
_START = b"\xff\x4f\xff\x51"
_COD, _TILE = b"\xff\x52", b"\xff\x90"
_REVERSIBLE = 1


def open_modern(data: bytes, name: str) -> Image.Image | None:
    """Open an image of one of these formats; None for other formats, and for those that Pillow opens itself.

    HEIC is opened without registering it with Pillow, which would change Pillow for the whole process.

    Raises:
        MissingExtraError: HEIC needs the extra `heif`.
        UsageError: this build of Pillow does not have the format.
    """
    if name == HEIC:
        try:
            plugin = importlib.import_module("pillow_heif")
        except ModuleNotFoundError:
            raise MissingExtraError("Reading HEIC images", "heif") from None
        opened: Image.Image = plugin.HeifImageFile(io.BytesIO(data))
        return opened
    if name == AVIF and not features.check("avif"):
        raise UsageError("AVIF images need Pillow 11.3 or newer with AVIF. Run: pip install --upgrade pillow")
    if name == JPEG_2000 and not features.check("jpg_2000"):
        raise UsageError("JPEG 2000 images need a Pillow with OpenJPEG. Run: pip install --upgrade pillow")
    return None


def is_reversible(data: bytes) -> bool:
    """Return whether a JPEG 2000 keeps every pixel: the COD segment of its main header names the 5/3 wavelet (ITU-T T.800, A.6.1).

    Such a file may still be truncated to a rate; its pixels are then those that a decoder returns.
    """
    place = _codestream(data)
    if data[place : place + len(_START)] != _START:
        return False
    # The start has no length; after it, each segment is a marker, and a length that counts itself.
    place += 2
    while place + 14 <= len(data) and (marker := data[place : place + 2]) != _TILE:
        if marker == _COD:
            # Marker, length, style, progression, layers (2), component transform, levels, width, height, style of blocks,
            # transform.
            return data[place + 13] == _REVERSIBLE
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return False


def _codestream(data: bytes) -> int:
    """Return the offset of the codestream: 0 without a container, else after the header of its box (ITU-T T.800, I.4)."""
    place = 0
    while not data.startswith(_START) and place + 8 <= len(data):
        size, kind, head = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8], 8
        if size == 1:
            size, head = int.from_bytes(data[place + 8 : place + 16], "big"), 16
        if kind == _CODESTREAM_BOX:
            return place + head
        if size < head:
            # 0 is a box that extends to the end.
            break
        place += size
    return 0

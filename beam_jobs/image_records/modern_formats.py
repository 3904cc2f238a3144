"""AVIF, HEIC and JPEG 2000: what it takes to read them, and which of them are lossless."""

from __future__ import annotations

import importlib
import io

from PIL import Image, features

from beam_jobs.image_records.header import AVIF, HEIC, JPEG_2000
from tpudata.errors import MissingExtraError, UsageError

# Pillow's names of the formats.
PLUGINS = {AVIF: "AVIF", JPEG_2000: "JPEG2000"}
_COD = b"\xff\x52"
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
    """Return whether a JPEG 2000 keeps every pixel: its first COD segment names the 5/3 wavelet (ITU-T T.800, A.6.1).

    Such a file may still have been cut to a rate; its pixels are then those that a decoder shows.
    """
    place = data.find(_COD)
    # Marker, length, style, progression, layers (2), component transform, levels, width, height, style of blocks, transform.
    return 0 <= place < len(data) - 14 and data[place + 13] == _REVERSIBLE

"""Arrays as PNG files."""

from __future__ import annotations

import io
from typing import Any

import numpy.typing as npt
from PIL import Image


def encode_png(pixels: npt.NDArray[Any]) -> bytes:
    """Return the PNG of uint8 or uint16 [height, width], or of uint8 [height, width, 3 or 4]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()

"""Images opened and loaded with Pillow, whose errors become ValueErrors."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator

from PIL import Image, UnidentifiedImageError

from beam_jobs.image_records.codecs.image_format import BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP
from beam_jobs.image_records.codecs.modern_formats import PLUGINS, open_modern
from tpudata.errors import UsageError

_PLUGINS = {JPEG: "JPEG", PNG: "PNG", GIF: "GIF", WEBP: "WEBP", BMP: "BMP", TIFF: "TIFF", PPM: "PPM", **PLUGINS}


@contextlib.contextmanager
def pillow_errors(name: str) -> Iterator[None]:
    """Turn any exception of Pillow for a broken image into a ValueError, and drop its warnings."""
    with warnings.catch_warnings():
        # Warnings of odd metadata, and of sizes above half of our limit.
        warnings.simplefilter("ignore")
        try:
            yield
        except (MemoryError, UsageError):
            raise
        # Its text contains a memory address, which would make rejects differ between runs.
        except UnidentifiedImageError as error:
            raise ValueError(f"{name} that cannot be decoded: its header is cut or damaged") from error
        # Pillow promises no list of exceptions: OSError, SyntaxError, EOFError, struct.error and others have been seen.
        except Exception as error:
            raise ValueError(f"{name} that cannot be decoded: {error or type(error).__name__}") from error


def open_image(data: bytes, name: str) -> Image.Image:
    """Open an image of format `name`, without decoding it; ValueError if its header is broken."""
    with pillow_errors(name):
        opened = open_modern(data, name)
        return opened if opened is not None else Image.open(io.BytesIO(data), formats=(_PLUGINS[name],))


def load_image(image: Image.Image, name: str) -> Image.Image:
    """Decode the pixels of an opened image, and return it; ValueError if it is broken."""
    with pillow_errors(name):
        image.load()
    return image

"""Images opened and loaded with Pillow, whose errors become ValueErrors."""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator

from PIL import Image, UnidentifiedImageError

from tpudata.console.interrupts import owns_process
from tpudata.errors import UsageError
from tpudata.images.image_format import BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP
from tpudata.images.modern_formats import PLUGINS, open_modern

_PLUGINS = {JPEG: "JPEG", PNG: "PNG", GIF: "GIF", WEBP: "WEBP", BMP: "BMP", TIFF: "TIFF", PPM: "PPM", **PLUGINS}
# Errors that damaged files raise in Pillow's own code, such as a TypeError for a tag whose type does not match its number.
_FAULTS = (AttributeError, TypeError, LookupError, ArithmeticError, AssertionError, RuntimeError, struct.error)
_DAMAGED_HEADER = "its header is cut or damaged"
_DECODER_ERROR = re.compile(r"decoder error -?\d+")


@contextlib.contextmanager
def translate_pillow_errors(image_format: str) -> Iterator[None]:
    """Turn Pillow's exceptions for a damaged image into ValueErrors, and suppress its warnings if tpudata owns the process."""
    with _suppress_warnings():
        try:
            yield
        # The image does not cause these: too little memory, a missing format, and a warning that filters turn into an exception.
        except (MemoryError, UsageError, Warning):
            raise
        # The error's message contains a memory address, which would make rejects differ between runs.
        except UnidentifiedImageError as error:
            raise ValueError(f"{image_format} that cannot be decoded: {_DAMAGED_HEADER}") from error
        # The messages of these errors describe Pillow's code, not the image.
        except _FAULTS as error:
            raise ValueError(f"{image_format} that cannot be decoded: {_DAMAGED_HEADER}") from error
        # Pillow promises no list of exceptions: OSError, SyntaxError, EOFError, ValueError and others have been seen.
        except Exception as error:
            reason = _DECODER_ERROR.sub("its pixels are cut or damaged", str(error)) or type(error).__name__
            raise ValueError(f"{image_format} that cannot be decoded: {reason}") from error


@contextlib.contextmanager
def _suppress_warnings() -> Iterator[None]:
    """Suppress warnings of odd metadata and large images if tpudata owns the process: filters of warnings are process-wide."""
    if not owns_process():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def open_image(data: bytes, image_format: str) -> Image.Image:
    """Open an image without decoding it; ValueError if its header is damaged, UsageError if this installation lacks the format."""
    with translate_pillow_errors(image_format):
        opened = open_modern(data, image_format)
        return opened if opened is not None else Image.open(io.BytesIO(data), formats=(_PLUGINS[image_format],))


def load_image(image: Image.Image, image_format: str) -> Image.Image:
    """Decode the pixels of an opened image, and return it; ValueError if it is damaged."""
    with _silent_libtiff if image_format == TIFF else contextlib.nullcontext(), translate_pillow_errors(image_format):
        image.load()
    return image


class _SilentLibtiff:
    """Context that drops what libtiff writes to stderr, which names no file; it does nothing unless tpudata owns the process.

    It redirects the process's descriptor 2. During a conversion, Python's stderr is another descriptor: see
    `beam_jobs.command.quiet_stderr`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Number of threads that are inside the context.
        self._context_count = 0
        # A duplicate of stderr's descriptor during the contexts; -1 before the first.
        self._saved_stderr = -1

    def __enter__(self) -> None:
        if not owns_process():
            return
        with self._lock:
            if self._context_count == 0:
                self._saved_stderr = os.dup(2)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 2)
                os.close(nowhere)
            self._context_count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            # Without contexts, `__enter__` did nothing.
            if self._context_count == 0:
                return
            self._context_count -= 1
            if self._context_count == 0:
                os.dup2(self._saved_stderr, 2)
                os.close(self._saved_stderr)


_silent_libtiff = _SilentLibtiff()

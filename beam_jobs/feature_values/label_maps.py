"""Label maps of a user's examples: arrays of classes, or PNGs, stored so that every reader returns the same classes.

A grey PNG with the bits of the feature's dtype is stored unchanged. Palette indices, and grey values of a different number of bits,
are written to a PNG of this form: index 20 is class 20, whatever its colour is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.feature_values.png import encode_png
from tpudata.errors import FeatureError
from tpudata.format import Feature
from tpudata.format.label_map import GREY, MAP_BITS, PALETTE, png_kind
from tpudata.images.header import check_png_checksums, read_header
from tpudata.images.image_format import PNG
from tpudata.images.pillow_files import load_image, open_image

# Factor by which Pillow multiplies grey values, by their bits, so that the largest is 255.
_SCALES = {1: 255, 2: 85, 4: 17}


def encode_label_map(feature: Feature, value: Any) -> tuple[bytes, tuple[int, int, int]]:
    """Return the stored bytes of a label map, and its shape.

    Args:
        feature: a feature of encoding "label_map".
        value: integers [height, width] or [height, width, 1], or the bytes of a grey or palette PNG.

    Raises:
        FeatureError: the value has neither form, or a class does not fit the feature's dtype.
    """
    if isinstance(value, bytes):
        classes = decode_label_map(feature, value)
        # Readers decode any grey PNG of the dtype's bits to its classes; other PNGs are encoded again.
        keeps_bytes = png_kind(value) == (MAP_BITS[feature.dtype], GREY)
    else:
        classes = _read_integers(feature, value)
        keeps_bytes = False
    if classes.size == 0 or int(classes.min()) < 0 or int(classes.max()) > np.iinfo(feature.dtype).max:
        got = f"classes {classes.min()} to {classes.max()}" if classes.size else f"shape {classes.shape}"
        raise FeatureError(
            f"Feature {feature.name!r}: its label map does not fit {feature.dtype} (got {got}, expected 0 to"
            f" {np.iinfo(feature.dtype).max}). Declare uint16, or pass other classes."
        )
    height, width = classes.shape
    return value if keeps_bytes else encode_png(classes.astype(feature.dtype)), (height, width, 1)


def _read_integers(feature: Feature, value: Any) -> npt.NDArray[Any]:
    """Return a label map as integers [height, width]; FeatureError if the value is not of that form or [height, width, 1]."""
    try:
        array = np.asarray(value)
    except ValueError:  # Rows of different lengths, which are rejected below.
        array = np.asarray(None)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.kind not in "biu" or array.ndim != 2:
        raise FeatureError(
            f"Feature {feature.name!r}: not a label map (got {array.dtype} of shape {array.shape}, expected integers [height,"
            " width] or [height, width, 1], or the bytes of a PNG)."
        )
    return array


def decode_label_map(feature: Feature, data: bytes) -> npt.NDArray[Any]:
    """Return the classes of a PNG, integers [height, width]; FeatureError if it is damaged, or neither grey nor with a palette."""
    bits, colour = png_kind(data) or (0, None)
    if colour not in (GREY, PALETTE):
        got = f"{len(data)} bytes that are not a PNG" if colour is None else "a PNG of colours or with transparency"
        raise FeatureError(
            f"Feature {feature.name!r}: not a label map (got {got}, expected a grey or palette PNG, whose values are the classes)."
            " Pass an array of the classes."
        )
    try:
        read_header(data, PNG)
        check_png_checksums(data)
        classes = np.asarray(load_image(open_image(data, PNG), PNG))
    except ValueError as error:
        raise FeatureError(f"Feature {feature.name!r}: its label map does not decode: {error}.") from None
    if colour == GREY and bits < 8:
        # Pillow scales grey values of 2 and 4 bits to 0 to 255; it decodes 1 bit to booleans.
        return classes.astype(np.uint8) if classes.dtype == bool else classes // np.uint8(_SCALES[bits])
    return classes

"""Label maps of a user's examples: arrays of classes, or PNGs, stored so that every reader returns the same classes.

A grey PNG of the schema's depth is stored as it is. The indices of a palette, and grey values of another depth, are written as such
a PNG: index 20 is class 20, whatever its colour is.
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

# Pillow scales grey values of fewer than 8 bits to 255.
_SCALES = {1: 255, 2: 85, 4: 17}


def encode_label_map(feature: Feature, value: Any) -> tuple[bytes, tuple[int, int, int]]:
    """Return the stored bytes of a label map, and its shape.

    Args:
        feature: a feature of encoding "label_map".
        value: integers [height, width] or [height, width, 1], or the bytes of a grey or palette PNG.

    Raises:
        FeatureError: the value is neither, or a class does not fit the feature's dtype.
    """
    if isinstance(value, bytes):
        classes = decode_label_map(feature, value)
        is_stored = png_kind(value) == (MAP_BITS[feature.dtype], GREY)
    else:
        classes, is_stored = _check_integers(feature, value), False
    if classes.size == 0 or int(classes.min()) < 0 or int(classes.max()) > np.iinfo(feature.dtype).max:
        got = f"classes {classes.min()} to {classes.max()}" if classes.size else f"shape {classes.shape}"
        raise FeatureError(
            f"Feature {feature.name!r}: its label map does not fit {feature.dtype} (got {got}, expected 0 to"
            f" {np.iinfo(feature.dtype).max}). Declare uint16, or pass other classes."
        )
    height, width = classes.shape
    return value if is_stored else encode_png(classes.astype(feature.dtype)), (height, width, 1)


def _check_integers(feature: Feature, value: Any) -> npt.NDArray[Any]:
    """Return a label map as an array [height, width]; FeatureError if it is not one of integers."""
    try:
        array = np.asarray(value)
    except ValueError:  # Rows of several lengths.
        array = np.asarray(None)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.kind not in "biu" or array.ndim != 2:
        raise FeatureError(
            f"Feature {feature.name!r}: no label map (got {array.dtype} of shape {array.shape}, expected integers [height, width]"
            " or [height, width, 1], or the bytes of a PNG)."
        )
    return array


def decode_label_map(feature: Feature, data: bytes) -> npt.NDArray[Any]:
    """Return the classes of a PNG, integers [height, width]; FeatureError if it is damaged, or not grey or with a palette."""
    kind = png_kind(data)
    if kind is None or kind[1] not in (GREY, PALETTE):
        got = f"{len(data)} bytes that are not a PNG" if kind is None else "a PNG of colours or with transparency"
        raise FeatureError(
            f"Feature {feature.name!r}: no label map (got {got}, expected a grey or palette PNG, whose values are the classes)."
            " Pass an array of the classes."
        )
    try:
        read_header(data, PNG)
        check_png_checksums(data)
        classes = np.asarray(load_image(open_image(data, PNG), PNG))
    except ValueError as error:
        raise FeatureError(f"Feature {feature.name!r}: its label map does not decode: {error}.") from None
    if kind[1] == GREY and kind[0] < 8:
        # Mode 1 has booleans, which are the values.
        return classes.astype(np.uint8) if classes.dtype == bool else classes // np.uint8(_SCALES[kind[0]])
    return classes

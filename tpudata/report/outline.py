"""Outlines of pictures: a copy that was resized or encoded again has nearly the same outline."""

from __future__ import annotations

import numpy as np
from PIL import Image

_SIDE = 16
# Number of the 256 bits that may differ. Photographs at half or twice their size, or as a JPEG of quality 50, differ in 12 bits or
# fewer in 95 % of cases; different photographs in 97 or more.
_MOST_DIFFERENT = 15
# Outlines that differ in few bits share at least one of these parts, so few pairs have to be compared.
_PARTS = 16


class Outlines:
    """The outlines of some pictures."""

    def __init__(self) -> None:
        self._by_part: dict[tuple[int, int], list[int]] = {}

    def add(self, outline_bits: int) -> bool:
        """Add an outline; return whether an earlier one is nearly the same."""
        width = _SIDE * _SIDE // _PARTS
        parts = [(part, outline_bits >> part * width & (1 << width) - 1) for part in range(_PARTS)]
        is_near = any(
            (outline_bits ^ other).bit_count() <= _MOST_DIFFERENT
            for part in parts
            for other in self._by_part.get(part, ())
        )
        if not is_near:
            for part in parts:
                self._by_part.setdefault(part, []).append(outline_bits)
        return is_near


def outline(picture: Image.Image) -> int | None:
    """Return the outline of a picture, or None if it is nearly plain.

    It is the difference hash: for each pixel of a grey copy of 17 x 16, whether it is darker than its right neighbour, 256 bits.

    Args:
        picture: picture of mode L or RGB.
    """
    small = picture.convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.LANCZOS)
    pixels = np.asarray(small, np.int16)
    # Plain areas have no outline: noise of encoders decides their bits.
    if np.count_nonzero(np.abs(np.diff(pixels, axis=1)) > 2) < _SIDE * _SIDE // 2:
        return None
    return int.from_bytes(np.packbits(pixels[:, :-1] < pixels[:, 1:]).tobytes(), "big")

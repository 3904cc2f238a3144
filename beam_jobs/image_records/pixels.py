"""Bare pixels without a header, which files of arrays store."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from beam_jobs.references.feature_text import features_text
from beam_jobs.references.reference import Payload
from tpudata.images.header import check_size

BARE_PIXELS = "bare pixels"
# Orders of axes, the slowest first: that of NumPy's images, that of CIFAR, and that of MATLAB.
ROWS_FIRST, CHANNELS_FIRST, COLUMNS_FIRST = "HWC", "CHW", "CWH"
_CHANNELS = (1, 3)


@dataclasses.dataclass(frozen=True)
class Pixels(Payload):
    """Bare uint8 pixels.

    Attributes:
        shape: (height, width), or (height, width, channels) with 1 or 3 channels.
        order: order of the axes in the file, the slowest first.
    """

    shape: tuple[int, ...]
    order: str = ROWS_FIRST

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return (kind, features), the strings that the payload adds to an input's hash, see `Payload.entry_texts`.

        The CRC-32 is not used. The kind is the shape of the pixels: `idx:HxW` or `idx:HxWxC`, with another order of axes in place
        of `idx`.
        """
        del crc32
        # Datasets store hashes of these strings, so they must not change; `idx` is the format of files with rows first.
        order = "idx" if self.order == ROWS_FIRST else self.order
        return f"{order}:" + "x".join(map(str, self.shape)), features_text(features, is_escaped=self.is_escaped)

    def find_image_shape(self) -> tuple[int, int, int]:
        """Return height, width and channels; ValueError if the shape is not that of a supported image."""
        height, width, channels = self.shape if len(self.shape) == 3 else (*self.shape, 1)
        if channels not in _CHANNELS:
            raise ValueError(
                f"unsupported shape of pixels (got {self.shape}, expected (height, width) or (height, width, 1 or 3))"
            )
        check_size(BARE_PIXELS, width, height)
        return height, width, channels

    def arrange_in_rows(self, data: bytes) -> bytes:
        """Return the pixels of a file in the order height, width, channels.

        Args:
            data: the pixels in the order of the file, as many bytes as the shape has values.
        """
        if self.order == ROWS_FIRST:
            return data
        sizes = dict(zip(ROWS_FIRST, self.find_image_shape(), strict=True))
        pixels = np.frombuffer(data, np.uint8).reshape([sizes[axis] for axis in self.order])
        arranged: bytes = pixels.transpose([self.order.index(axis) for axis in ROWS_FIRST]).tobytes()
        return arranged

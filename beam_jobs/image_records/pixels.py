"""Bare pixels, as IDX files have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from beam_jobs.image_codecs.header import check_size
from beam_jobs.references.payload import Payload, features_text

IDX = "IDX"
_CHANNELS = (1, 3)


@dataclasses.dataclass(frozen=True)
class Pixels(Payload):
    """Bare uint8 pixels in C order.

    Attributes:
        shape: (height, width), or (height, width, channels) with 1 or 3 channels.
    """

    shape: tuple[int, ...]

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return the shape as `idx:HxW` or `idx:HxWxC`, and the features."""
        del crc32
        return "idx:" + "x".join(map(str, self.shape)), features_text(features, is_escaped=self.is_escaped)

    def image_shape(self) -> tuple[int, int, int]:
        """Return height, width and channels; ValueError if they are not those of an image."""
        height, width, channels = self.shape if len(self.shape) == 3 else (*self.shape, 1)
        if channels not in _CHANNELS:
            raise ValueError(
                f"pixels of an unknown form: {self.shape}; (height, width) and (height, width, 3) are read"
            )
        check_size(IDX, width, height)
        return height, width, channels

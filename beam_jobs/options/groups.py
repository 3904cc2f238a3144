"""Groups of the flags of conversions."""

from __future__ import annotations

import enum


class FlagGroup(enum.Enum):
    """Groups of flags, in the order of the help."""

    INPUT = "input"
    LABELS = "labels and annotations"
    OUTPUT = "output"
    SHARDS = "shards"
    IMAGES = "images"
    TEXT = "text"
    TOKENS = "tokens"
    RUN = "running"

"""PNGs of label maps of every kind, written without Pillow."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

GREY, PALETTE = 0, 3


def png_of(values: Any, bits: int = 8, colour: int = GREY, chunks: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """The PNG of integers [height, width] at `bits` a pixel; a palette gets colours that differ from its indices."""
    array = np.asarray(values)
    height, width = array.shape
    rows = b"".join(b"\0" + _pack(row.tolist(), bits) for row in array)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)), *chunks]
    if colour == PALETTE:
        parts.append((b"PLTE", bytes(255 - index % 256 for index in range(3 << bits))))
    parts += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _pack(row: Sequence[int], bits: int) -> bytes:
    text = "".join(format(value, f"0{bits}b") for value in row)
    text = text.ljust(-(-len(text) // 8) * 8, "0")
    return int(text, 2).to_bytes(len(text) // 8, "big")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

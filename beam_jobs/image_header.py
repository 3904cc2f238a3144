"""What an image's bytes say of themselves: format, size and channels, without decoding a pixel.

Sources: JPEG, ITU-T T.81 annex B (markers); PNG, W3C "Portable Network Graphics Specification" section 11 (IHDR).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

JPEG = "JPEG"
PNG = "PNG"

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND\xaeB`\x82"
_IHDR = struct.Struct(">II4sIIBB")
_PNG_GREY = (0, 4)
_SOF = struct.Struct(">HBHHB")
# Every start-of-frame marker; C4, C8 and CC between them are tables and reserved.
_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that stand alone, without a length: TEM and the restart markers.
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD8)))
_SOS, _EOI = 0xDA, b"\xff\xd9"


class ImageHeader(NamedTuple):
    """What the header of an encoded image says.

    Attributes:
        format: `"JPEG"` or `"PNG"`.
        height: pixels.
        width: pixels.
        components: what is stored per pixel: 1 grey, 3 colours, 4 CMYK (JPEG only).
    """

    format: str
    height: int
    width: int
    components: int


def read_header(data: bytes) -> ImageHeader:
    """Reads the header of a JPEG or PNG, and checks that the file has its end.

    Args:
        data: the whole encoded image.

    Raises:
        ValueError: not a JPEG or PNG, or one that is cut or broken; the message completes "refused: ".
    """
    if data[:2] == b"\xff\xd8":
        header = _read_jpeg(data)
    elif data[:8] == _PNG_MAGIC:
        header = _read_png(data)
    elif not data:
        raise ValueError("the file is empty")
    else:
        raise ValueError(f"neither JPEG nor PNG: it begins with {data[:8].hex(' ')}")
    if header.height == 0 or header.width == 0:
        raise ValueError(f"a {header.format} of {header.width} x {header.height} pixels")
    return header


def _read_png(data: bytes) -> ImageHeader:
    if len(data) < 8 + _IHDR.size:
        raise ValueError(f"PNG cut inside its header ({len(data)} bytes)")
    _, _, kind, width, height, _, color_type = _IHDR.unpack_from(data, 4)
    if kind != b"IHDR":
        raise ValueError("PNG without an IHDR chunk")
    if not data.endswith(_PNG_END) and _PNG_END not in data:
        raise ValueError(f"PNG cut after {len(data)} bytes: it has no end")
    return ImageHeader(PNG, height, width, 1 if color_type in _PNG_GREY else 3)


def _read_jpeg(data: bytes) -> ImageHeader:
    position, end = 2, len(data)
    header = None
    while position + 4 <= end:
        if data[position] != 0xFF:
            raise ValueError(f"JPEG with no marker where one is due, at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1  # a fill byte
        elif marker in _BARE_MARKERS:
            position += 2
        elif marker == _SOS:
            break
        else:
            if marker in _SOF_MARKERS:
                header = _read_frame(data, position)
            length = data[position + 2] << 8 | data[position + 3]
            position += 2 + max(length, 2)
    if header is None or position + 4 > end:
        raise ValueError(f"JPEG cut inside its header ({end} bytes)")
    if not data.endswith(_EOI) and data.find(_EOI, position) < 0:
        raise ValueError(f"JPEG cut after {end} bytes: it has no end")
    return header


def _read_frame(data: bytes, position: int) -> ImageHeader:
    if position + 2 + _SOF.size > len(data):
        raise ValueError(f"JPEG cut inside its header ({len(data)} bytes)")
    _, precision, height, width, components = _SOF.unpack_from(data, position + 2)
    if precision != 8:
        raise ValueError(f"JPEG of {precision} bits per sample; 8 are read")
    if components not in (1, 3, 4):
        raise ValueError(f"JPEG of {components} components; 1, 3 and 4 are known")
    return ImageHeader(JPEG, height, width, components)

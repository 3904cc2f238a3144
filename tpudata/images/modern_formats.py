"""AVIF, HEIC and JPEG 2000: opening them, finding lossless ones, and how finely colours are sampled."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator

from PIL import Image, features

from tpudata.errors import MissingExtraError, UsageError
from tpudata.images.image_format import AVIF, HEIC, JPEG_2000

# Pillow's names of the formats.
PLUGINS = {AVIF: "AVIF", JPEG_2000: "JPEG2000"}
_CODESTREAM_BOX = b"jp2c"
_START = b"\xff\x4f\xff\x51"
_COD, _TILE = b"\xff\x52", b"\xff\x90"
_REVERSIBLE = 1
# Bits of the third byte of av1C; steps of chroma by the format in byte 16 of hvcC: 4:2:0, 4:2:2, 4:4:4.
_AV1_MONOCHROME, _AV1_ACROSS, _AV1_DOWN = 0x10, 0x08, 0x04
_HEVC_STEPS = {1: (2, 2), 2: (2, 1), 3: (1, 1)}


def open_modern(data: bytes, name: str) -> Image.Image | None:
    """Open an image of one of these formats; None for other formats, and for those that Pillow opens itself.

    HEIC is opened without registering it with Pillow, which would change Pillow for the whole process.

    Raises:
        MissingExtraError: HEIC needs the extra `heif`.
        UsageError: this build of Pillow does not have the format.
    """
    if name == HEIC:
        try:
            plugin = importlib.import_module("pillow_heif")
        except ModuleNotFoundError:
            raise MissingExtraError("Reading HEIC images", "heif") from None
        opened: Image.Image = plugin.HeifImageFile(io.BytesIO(data))
        return opened
    if name == AVIF and not features.check("avif"):
        raise UsageError("AVIF images need Pillow 11.3 or newer with AVIF. Run: pip install --upgrade pillow")
    if name == JPEG_2000 and not features.check("jpg_2000"):
        raise UsageError("JPEG 2000 images need a Pillow with OpenJPEG. Run: pip install --upgrade pillow")
    return None


def is_reversible(data: bytes) -> bool:
    """Return whether a JPEG 2000 keeps every pixel: the COD segment of its main header names the 5/3 wavelet (ITU-T T.800, A.6.1).

    Such a file may still be truncated to a rate; its pixels are then those that a decoder returns.
    """
    position = _find_codestream(data)
    if data[position : position + len(_START)] != _START:
        return False
    # The start has no length; after it, each segment is a marker, and a length that counts itself.
    position += 2
    while position + 14 <= len(data) and (marker := data[position : position + 2]) != _TILE:
        if marker == _COD:
            # Marker, length, style, progression, layers (2), component transform, levels, width, height, style of blocks,
            # transform.
            return data[position + 13] == _REVERSIBLE
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return False


def iso_chroma_step(data: bytes, name: str) -> tuple[int, int]:
    """Return the pixels for each sample of colour of an AVIF or HEIC as it is decoded, across and down; (1, 1) if unknown.

    Every coded image has a configuration among the item properties (ISO/IEC 23008-12, 6.5; `av1C`, AV1 in ISOBMFF, 2.3; `hvcC`,
    ISO/IEC 14496-15, 8.3). If they differ, as for a thumbnail, the finest counts.
    """
    steps, is_turned = [], False
    for kind, content in _list_item_properties(data):
        if kind == b"av1C" and len(content) > 2 and not content[2] & _AV1_MONOCHROME:
            steps.append((2 if content[2] & _AV1_ACROSS else 1, 2 if content[2] & _AV1_DOWN else 1))
        elif kind == b"hvcC" and len(content) > 16 and content[16] & 3:
            steps.append(_HEVC_STEPS[content[16] & 3])
        elif kind == b"irot" and content:
            is_turned = is_turned or bool(content[0] & 1)
    across, down = (min((step[side] for step in steps), default=1) for side in (0, 1))
    # libheif turns images; Pillow reports the turn of an AVIF as its orientation.
    return (down, across) if is_turned and name == HEIC else (across, down)


def _list_item_properties(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each item property of a file in the ISO format."""
    content = data
    # `meta` is a full box, whose version and flags come first.
    for box_type, skipped in ((b"meta", 4), (b"iprp", 0), (b"ipco", 0)):
        content = next((inner for kind, inner in _iterate_boxes(content) if kind == box_type), b"")[skipped:]
    yield from _iterate_boxes(content)


def _iterate_boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each box (ISO/IEC 14496-12, 4.2), up to the first that is damaged."""
    position = 0
    while position + 8 <= len(data):
        size, kind, head = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8], 8
        if size == 1:
            size, head = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        end = position + size if size else len(data)
        if end < position + head:
            return
        yield kind, data[position + head : end]
        position = end


def _find_codestream(data: bytes) -> int:
    """Return the offset of the codestream: 0 without a container, else after the header of its box (ITU-T T.800, I.4)."""
    position = 0
    while not data.startswith(_START) and position + 8 <= len(data):
        size, kind, head = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8], 8
        if size == 1:
            size, head = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        if kind == _CODESTREAM_BOX:
            return position + head
        if size < head:
            # 0 is a box that extends to the end.
            break
        position += size
    return 0

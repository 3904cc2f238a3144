"""AVIF, HEIC and JPEG 2000: opening them, recognizing lossless ones, and the sampling of their colours."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator

from PIL import Image, features

from tpudata.errors import MissingExtraError, UsageError
from tpudata.images.image_format import AVIF, HEIC, JPEG_2000

# Pillow's names of the formats.
PLUGINS = {AVIF: "AVIF", JPEG_2000: "JPEG2000"}
# JPEG 2000 (ITU-T T.800): the kind of the box with the codestream, and the two markers that a codestream begins with, SOC and SIZ.
_CODESTREAM_BOX = b"jp2c"
_START = b"\xff\x4f\xff\x51"
# The marker COD, which describes the coding, and SOT, which begins a tile; and the value of the 5/3 wavelet in COD.
_COD, _TILE = b"\xff\x52", b"\xff\x90"
_REVERSIBLE = 1
# Byte of av1C with flags of the format of chroma, and its bits: no chroma, subsampled across, subsampled down.
_AV1_FLAGS = 2
_AV1_MONOCHROME, _AV1_ACROSS, _AV1_DOWN = 0x10, 0x08, 0x04
# Byte of hvcC with the format of chroma, its bits, and the steps by format: 4:2:0, 4:2:2, 4:4:4. 0 has no chroma.
_HEVC_CHROMA, _HEVC_CHROMA_BITS = 16, 3
_HEVC_STEPS = {1: (2, 2), 2: (2, 1), 3: (1, 1)}


def open_modern(data: bytes, image_format: str) -> Image.Image | None:
    """Open a HEIC; for other formats, which Pillow opens itself, return None after a check that it has AVIF or JPEG 2000.

    HEIC is opened without registering it with Pillow, which would change Pillow for the whole process.

    Raises:
        MissingExtraError: HEIC needs the extra `heif`.
        UsageError: this build of Pillow does not have the format.
    """
    if image_format == HEIC:
        try:
            plugin = importlib.import_module("pillow_heif")
        except ModuleNotFoundError:
            raise MissingExtraError("Reading HEIC images", "heif") from None
        opened: Image.Image = plugin.HeifImageFile(io.BytesIO(data))
        return opened
    if image_format == AVIF and not features.check("avif"):
        raise UsageError("AVIF images need Pillow 11.3 or newer with AVIF. Run: pip install --upgrade pillow")
    if image_format == JPEG_2000 and not features.check("jpg_2000"):
        raise UsageError("JPEG 2000 images need a Pillow with OpenJPEG. Run: pip install --upgrade pillow")
    return None


def is_reversible(data: bytes) -> bool:
    """Return whether a JPEG 2000 keeps every pixel: the COD segment of its main header names the 5/3 wavelet (ITU-T T.800, A.6.1).

    A file with this wavelet may still be truncated to a rate; what a decoder returns then counts as its pixels.
    """
    position = _find_codestream(data)
    if data[position : position + len(_START)] != _START:
        return False
    # The first marker has no length; after it, each segment is a marker, and a length that counts itself.
    position += 2
    while position + 14 <= len(data) and (marker := data[position : position + 2]) != _TILE:
        if marker == _COD:
            # Marker (2 bytes), length (2), style, progression, layers (2), component transform, levels, width, height, style of
            # blocks: 13 bytes before the transform.
            return data[position + 13] == _REVERSIBLE
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return False


def find_iso_chroma_step(data: bytes, image_format: str) -> tuple[int, int]:
    """Return how many pixels share a sample of colour in a decoded AVIF or HEIC, across and down; (1, 1) if unknown.

    Every coded image has a configuration among the item properties (ISO/IEC 23008-12, 6.5; `av1C`, AV1 in ISOBMFF, 2.3; `hvcC`,
    ISO/IEC 14496-15, 8.3). If configurations differ, as for a thumbnail, the finest sampling counts.
    """
    steps = []
    is_turned_sideways = False
    for kind, content in _iterate_item_properties(data):
        if kind == b"av1C" and len(content) > _AV1_FLAGS and not content[_AV1_FLAGS] & _AV1_MONOCHROME:
            flags = content[_AV1_FLAGS]
            steps.append((2 if flags & _AV1_ACROSS else 1, 2 if flags & _AV1_DOWN else 1))
        elif kind == b"hvcC" and len(content) > _HEVC_CHROMA and content[_HEVC_CHROMA] & _HEVC_CHROMA_BITS:
            steps.append(_HEVC_STEPS[content[_HEVC_CHROMA] & _HEVC_CHROMA_BITS])
        elif kind == b"irot" and content:
            # The content is the number of quarter turns.
            is_turned_sideways = is_turned_sideways or bool(content[0] & 1)
    finest_across = min((across for across, _ in steps), default=1)
    finest_down = min((down for _, down in steps), default=1)
    # libheif turns images; Pillow reports the turn of an AVIF as its orientation.
    if is_turned_sideways and image_format == HEIC:
        return finest_down, finest_across
    return finest_across, finest_down


def _iterate_item_properties(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each item property of a file in the ISO format."""
    # `meta` is a full box, whose version and flags, 4 bytes, come first.
    meta = _find_box(data, b"meta")[4:]
    yield from _iterate_boxes(_find_box(_find_box(meta, b"iprp"), b"ipco"))


def _find_box(data: bytes, kind: bytes) -> bytes:
    """Return the content of the first box of a kind; empty if no box is of this kind."""
    return next((content for box_kind, content in _iterate_boxes(data) if box_kind == kind), b"")


def _iterate_boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each box (ISO/IEC 14496-12, 4.2), up to the first that is damaged."""
    position = 0
    while position + 8 <= len(data):
        kind, size, head_bytes = _parse_box_head(data, position)
        # The last box may have the size 0: it extends to the end of the data.
        end = position + size if size else len(data)
        # A size that does not even hold the head would let the loop stand still.
        if end < position + head_bytes:
            return
        yield kind, data[position + head_bytes : end]
        position = end


def _find_codestream(data: bytes) -> int:
    """Return the offset of a JPEG 2000's codestream: after the head of its box (ITU-T T.800, I.4); 0 if no box has it.

    Decoders ignore the size of that box, so it is not checked.
    """
    position = 0
    # Data that begins with the codestream's first marker has no boxes.
    while not data.startswith(_START) and position + 8 <= len(data):
        kind, size, head_bytes = _parse_box_head(data, position)
        if kind == _CODESTREAM_BOX:
            return position + head_bytes
        if size < head_bytes:
            # The box is damaged, or extends to the end.
            break
        position += size
    return 0


def _parse_box_head(data: bytes, position: int) -> tuple[bytes, int, int]:
    """Return the kind of a box, its size, and the size of its head; a box of size 0 extends to the end of the file."""
    size, kind = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
    if size == 1:
        # The size is in the 8 bytes after the kind.
        return kind, int.from_bytes(data[position + 8 : position + 16], "big"), 16
    return kind, size, 8

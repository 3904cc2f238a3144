"""Headers of JPEG and PNG, read without decoding a pixel.

Sources: JPEG, ITU-T T.81 annex B (markers); PNG, W3C "Portable Network Graphics Specification" (chunks); the Exif orientation
tag, JEITA CP-3451 section 4.6.4.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from tpudata.images.image_format import JPEG, PNG

# Limit of pixels: 3 bytes a pixel stay below 2^29, the limit of TensorFlow's PNG decoder and of Pillow. A file of a kilobyte can
# claim far more, and decoding it would exhaust memory.
MAX_PIXELS = 2**29 // 3
UPRIGHT = 1

_PNG_SIGNATURE_BYTES = 8
# Content of the chunk IHDR of a PNG, and length and kind of a chunk.
_IHDR = struct.Struct(">IIBBBBB")
_CHUNK = struct.Struct(">I4s")
# Bits per sample that a PNG may have, by its colour type; and the colour types with grey, a palette and an alpha channel.
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_GREY, _PNG_PALETTE, _PNG_ALPHA = (0, 4), 3, (4, 6)

# Marker and length of a segment of a JPEG, and the content of a start-of-frame.
_SEGMENT = struct.Struct(">HH")
_SOF = struct.Struct(">HBHHB")
# Start-of-frame markers, supported and not; C4, C8 and CC between them are tables and reserved.
_SOF_READ = frozenset((0xFFC0, 0xFFC1, 0xFFC2))
_SOF_REJECTED = frozenset(range(0xFFC3, 0xFFD0)) - {0xFFC4, 0xFFC8, 0xFFCC}
# Markers without a length: TEM and the restart markers.
_BARE_MARKERS = frozenset((0xFF01, *range(0xFFD0, 0xFFD8)))
_APP1, _APP14, _DNL, _SOS, _EOI = 0xFFE1, 0xFFEE, 0xFFDC, 0xFFDA, b"\xff\xd9"
# Most segments, which are skipped: tables, comments, and applications' segments but APP1 (Exif) and APP14 (Adobe).
_SKIPPED = frozenset((0xFFC4, 0xFFDB, 0xFFDD, 0xFFFE, *range(0xFFE0, 0xFFF0))) - {_APP1, _APP14}
_EXIF, _ADOBE, _ADOBE_TRANSFORM = b"Exif\0\0", b"Adobe", 11
_ORIENTATION_TAG = 0x0112


class ImageHeader(NamedTuple):
    """Header of a JPEG or PNG.

    Attributes:
        format: `"JPEG"` or `"PNG"`.
        height: pixels, as stored.
        width: pixels, as stored.
        components: 1 grey, 3 colours, 4 CMYK (JPEG only); alpha is not counted, a palette counts as colours.
        bits: bits per sample: 8 for JPEG; 1, 2, 4, 8 or 16 for PNG.
        has_alpha: whether the PNG has transparency: an alpha channel or a tRNS chunk.
        orientation: Exif orientation, 1 to 8; 1 is upright.
        has_adobe_marker: whether the JPEG has Adobe's APP14 marker, which means that its CMYK is inverted.
        sampling: three bytes for each component of a JPEG of YCbCr: identifier, sampling factors and table; empty for other images.
        is_regular: whether the JPEG has, before its pixels, only markers that its standard allows there, or DNL. Decoders may
            also accept an irregular JPEG.
    """

    format: str
    height: int
    width: int
    components: int
    bits: int = 8
    has_alpha: bool = False
    orientation: int = UPRIGHT
    has_adobe_marker: bool = False
    sampling: bytes = b""
    is_regular: bool = True

    @property
    def chroma_step(self) -> tuple[int, int]:
        """Pixels for each sample of colour, across and down: (2, 2) is 4:2:0. (1, 1) for all images but JPEGs of YCbCr."""
        # Few images are encoded again, so it is computed only on request. Each component has three bytes: its identifier, its
        # sampling factors and a table.
        identifiers, sampling_factors = self.sampling[0::3], self.sampling[1::3]
        if len(self.sampling) < 9 or identifiers == b"RGB":
            return 1, 1
        # Each byte has the horizontal factor in its upper half, and the vertical one in its lower half.
        luma, *chroma = sampling_factors
        across = min((luma >> 4) // max(factors >> 4, 1) for factors in chroma)
        down = min((luma & 15) // max(factors & 15, 1) for factors in chroma)
        return max(across, 1), max(down, 1)


def read_header(data: bytes, image_format: str) -> ImageHeader:
    """Read the header of a JPEG or PNG, and check that the file has its end.

    This checks sizes, the markers of a JPEG up to its pixels and the end marker, and the length of every chunk of a PNG, but not
    the signature, which `detect_format` has found. Damage inside the compressed pixels is not found.

    Args:
        data: the whole encoded image.
        image_format: format, `JPEG` or `PNG`, from `detect_format`.

    Raises:
        ValueError: it is truncated, damaged or of an unsupported kind, or has no pixels or too many; the message completes
            `rejected: ...`.
    """
    header = _read_jpeg(data) if image_format == JPEG else _read_png(data)
    check_size(image_format, header.width, header.height)
    return header


def check_size(image_format: str, width: int, height: int) -> None:
    """Raise ValueError if an image has no pixels, or more than `MAX_PIXELS`."""
    if height == 0 or width == 0:
        raise ValueError(f"a {image_format} without pixels: of {width} x {height} pixels")
    if height * width > MAX_PIXELS:
        raise ValueError(f"a {image_format} of too many pixels: {width} x {height} pixels; {MAX_PIXELS:,} are allowed")


def check_png_checksums(data: bytes) -> None:
    """Check the CRC of every chunk of a PNG that `read_header` has read.

    Pillow does not check the CRCs of pixels; libpng, and so TensorFlow, rejects a file with a wrong CRC.

    Raises:
        ValueError: a CRC is wrong; the message completes `rejected: ...`.
    """
    view = memoryview(data)
    position = _PNG_SIGNATURE_BYTES
    kind = b""
    while kind != b"IEND":
        length, kind = _CHUNK.unpack_from(data, position)
        end = position + 8 + length
        if zlib.crc32(view[position + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise ValueError(f"the checksum of the PNG's {_format_kind(kind)} chunk is wrong (at byte {position})")
        position = end + 4


def parse_exif_orientation(exif: bytes) -> int:
    """Return the orientation tag of an Exif block (a TIFF header and what follows), 1 to 8; 1 if it is absent or unreadable."""
    byte_order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if byte_order is None or len(exif) < 10:
        return UPRIGHT
    (directory_offset,) = struct.unpack_from(f"{byte_order}I", exif, 4)
    if directory_offset + 2 > len(exif):
        return UPRIGHT
    (count,) = struct.unpack_from(f"{byte_order}H", exif, directory_offset)
    # The directory is its number of entries, then entries of 12 bytes: tag, type, count and value. A SHORT, type 3, is in the first
    # bytes of the value.
    first_entry_offset = directory_offset + 2
    for entry_offset in range(first_entry_offset, min(first_entry_offset + 12 * count, len(exif) - 11), 12):
        tag, value_type = struct.unpack_from(f"{byte_order}HH", exif, entry_offset)
        if (tag, value_type) == (_ORIENTATION_TAG, 3):
            (orientation,) = struct.unpack_from(f"{byte_order}H", exif, entry_offset + 8)
            return orientation if 1 <= orientation <= 8 else UPRIGHT
    return UPRIGHT


def _read_png(data: bytes) -> ImageHeader:
    """Return the header of a PNG; ValueError if its header is wrong, a chunk is truncated, or a chunk that it needs is missing."""
    position, size = _PNG_SIGNATURE_BYTES, len(data)
    seen_kinds = set()
    orientation = UPRIGHT
    # A chunk is its length, its kind, the content and a CRC: 12 bytes and the content.
    while True:
        if position + 12 > size:
            raise ValueError(f"PNG cut: it has no end after {size} bytes")
        length, kind = _CHUNK.unpack_from(data, position)
        if position + 12 + length > size:
            raise ValueError(
                f"PNG cut inside its {_format_kind(kind)} chunk (of {length} bytes at byte {position}, after {size} bytes)"
            )
        if position == _PNG_SIGNATURE_BYTES and (kind, length) != (b"IHDR", _IHDR.size):
            raise ValueError("PNG without an IHDR chunk")
        seen_kinds.add(kind)
        if kind == b"eXIf":
            orientation = parse_exif_orientation(data[position + 8 : position + 8 + length])
        elif kind == b"IEND":
            break
        position += 12 + length
    # IHDR's content follows the signature, and the length and kind of the chunk, 8 bytes each.
    width, height, bits, color_type, *_ = _IHDR.unpack_from(data, 16)
    if bits not in _PNG_DEPTHS.get(color_type, ()):
        raise ValueError(f"PNG of colour type {color_type} with {bits} bits, which is invalid")
    if b"IDAT" not in seen_kinds:
        raise ValueError("PNG without pixels")
    if color_type == _PNG_PALETTE and b"PLTE" not in seen_kinds:
        raise ValueError("PNG without a palette")
    has_alpha = color_type in _PNG_ALPHA or b"tRNS" in seen_kinds
    components = 1 if color_type in _PNG_GREY else 3
    return ImageHeader(PNG, height, width, components, bits, has_alpha=has_alpha, orientation=orientation)


def _read_jpeg(data: bytes) -> ImageHeader:
    """Return the header of a JPEG, from its segments before the scan; ValueError if it is truncated or of an unsupported kind."""
    # The start marker takes the first 2 bytes.
    position, end = 2, len(data)
    # Height, width, components and sampling.
    frame = None
    # The first Exif block counts; until then the orientation is 0.
    orientation = 0
    # The transform byte of Adobe's marker: None without a marker, empty in a truncated one.
    adobe_transform = None
    is_regular = True
    if end > position and data[position] != 0xFF:
        # TensorFlow and Pillow do not recognize a file without this marker as a JPEG.
        raise ValueError("JPEG without a marker after its start (at byte 2)")
    unpack_segment = _SEGMENT.unpack_from
    while position + 4 <= end:
        marker, length = unpack_segment(data, position)
        if marker in _SKIPPED:
            # The same step as at the end of the loop, but most segments come here, and a call of `max` takes time.
            position += (2 + length) if length > 2 else 4
            continue
        if marker <= 0xFF00:
            # Decoders skip stray bytes up to the next marker, and a 0xff that is followed by zero.
            is_regular = False
            position = data.find(b"\xff", position + 1)
            if position < 0:
                break
            continue
        if marker == 0xFFFF:
            position += 1  # A fill byte.
            continue
        if marker in _BARE_MARKERS:
            position += 2
            continue
        if marker == _SOS:
            break
        body = position + 4
        if marker in _SOF_READ:
            # Only one frame is allowed.
            is_regular = is_regular and frame is None
            frame = _read_frame(data, position)
        elif marker in _SOF_REJECTED:
            raise ValueError(
                f"a lossless, hierarchical or arithmetic-coded JPEG (marker ff {marker & 0xFF:02x}); baseline and progressive"
                " are read"
            )
        elif marker == _APP1:
            if not orientation and data.startswith(_EXIF, body):
                orientation = parse_exif_orientation(data[body + len(_EXIF) : position + 2 + length])
        elif marker == _APP14:
            if data.startswith(_ADOBE, body):
                adobe_transform = data[body + _ADOBE_TRANSFORM : body + _ADOBE_TRANSFORM + 1]
        else:
            # The standard allows no other marker before the pixels, but decoders accept DNL.
            is_regular = is_regular and marker == _DNL
        # A length counts its own two bytes, so a smaller one is damaged: continue after these bytes.
        position += 2 + max(length, 2)
    if frame is None or position < 0 or position + 4 > end:
        raise ValueError(f"JPEG cut inside its header ({end} bytes)")
    if not data.endswith(_EOI) and data.find(_EOI, position) < 0:
        raise ValueError(f"JPEG cut: it has no end after {end} bytes")
    height, width, components, sampling = frame
    return ImageHeader(
        JPEG,
        height,
        width,
        components,
        orientation=orientation or UPRIGHT,
        has_adobe_marker=adobe_transform is not None,
        # Adobe's transform 0 means RGB, whose samples are not chroma.
        sampling=b"" if adobe_transform == b"\0" else sampling,
        is_regular=is_regular,
    )


def _read_frame(data: bytes, position: int) -> tuple[int, int, int, bytes]:
    """Return height, width, components and `ImageHeader.sampling` from the start-of-frame segment at a position.

    Raises:
        ValueError: the segment is truncated, or its precision or number of components is not supported.
    """
    start = position + 2 + _SOF.size
    if start > len(data):
        raise ValueError(f"JPEG cut inside its header ({len(data)} bytes)")
    _, precision, height, width, components = _SOF.unpack_from(data, position + 2)
    if precision != 8:
        raise ValueError(f"JPEG of {precision} bits per sample; 8 are read")
    if components not in (1, 3, 4):
        raise ValueError(f"JPEG of {components} components; 1, 3 and 4 are known")
    # Each component has an id, its sampling and a table, a byte each. Only a frame of three components has a brightness and two
    # colours, which may be sampled more coarsely.
    sampling = data[start : start + 9] if components == 3 else b""
    return height, width, components, sampling


def _format_kind(kind: bytes) -> str:
    """Return the kind of a PNG chunk for a message: its letters, or hexadecimal digits if it is damaged."""
    return kind.decode("latin-1") if kind.isalpha() else kind.hex()

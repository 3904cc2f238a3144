"""Label maps: files with the class of each pixel.

A stored map is a PNG of grey values without alpha, of 8 bits for the dtype uint8 and of 16 for uint16: every reader (TensorFlow,
TFDS, Pillow) returns these values. Readers would change the values of other files: they replace the indices of a palette by its
colours, scale values of fewer bits, and truncate or scale values of the other depth to the dtype's.
"""

from __future__ import annotations

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Name of the first chunk of a PNG, and its byte offset in the file.
HEADER_NAME = b"IHDR"
HEADER_NAME_OFFSET = 12
# Byte offset of the bit depth; the next byte is the colour type, the last one that is read here.
DEPTH_OFFSET = 24
HEADER_END = DEPTH_OFFSET + 2
GREY, PALETTE = 0, 3
# Bits of the PNG, by dtype.
MAP_BITS = {"uint8": 8, "uint16": 16}
_COLOUR_BY_TYPE = {GREY: "grey", 2: "colour", PALETTE: "palette", 4: "grey with alpha", 6: "colour with alpha"}


def png_kind(data: bytes) -> tuple[int, int] | None:
    """Return a PNG's bits per sample and colour type (`GREY`, `PALETTE` or another number); None for other data."""
    is_png = data.startswith(PNG_SIGNATURE) and data.startswith(HEADER_NAME, HEADER_NAME_OFFSET)
    return (data[DEPTH_OFFSET], data[DEPTH_OFFSET + 1]) if is_png and len(data) >= HEADER_END else None


def find_label_map_problem(data: bytes, dtype: str) -> str:
    """Return why readers would change the classes in a stored map, in words after "Feature NAME"; empty if they keep them.

    Only the header is read.

    Args:
        data: the stored bytes.
        dtype: dtype of the feature, "uint8" or "uint16".
    """
    kind, bits = png_kind(data), MAP_BITS[dtype]
    if kind == (bits, GREY):
        return ""
    description = (
        "no PNG" if kind is None else f"a PNG of {kind[0]} bits, {_COLOUR_BY_TYPE.get(kind[1], 'unknown colour')}"
    )
    return f"is {description}; a label map of {dtype} is a PNG of {bits} bits, grey"

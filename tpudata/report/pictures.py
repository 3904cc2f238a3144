"""Pictures of records as thumbnails, and their label maps in colours."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from tpudata.format import Feature
from tpudata.source.example_decoder import decode_label_map


def open_picture(content: bytes, feature: Feature) -> Image.Image:
    """Return the picture of a record: an encoded image, a label map in colours, or bare pixels.

    Args:
        content: the value of the feature.
        feature: feature of the picture, for which `has_showable_pixels` must hold if it has bare pixels.

    Raises:
        TpudataError: the label map does not decode, or is a file of the wrong kind.
        OSError: the image cannot be read; Pillow raises other errors for damaged ones.
    """
    if feature.is_label_map:
        return colour_label_map(content, feature)
    return Image.open(io.BytesIO(content)) if feature.encoding == "image" else _decode_pixels(content, feature)


def colour_label_map(content: bytes, feature: Feature) -> Image.Image:
    """Return a label map as a picture with the colours of PASCAL VOC; a class has the same colour in all records."""
    # The map is [height, width, 1].
    classes = decode_label_map(feature, content)[:, :, 0]
    # Bits 0, 3 and 6 of the class become the highest bits of red, bits 1, 4 and 7 of green, bits 2 and 5 of blue. Higher bits
    # are ignored: the palette has 256 colours.
    colours = np.zeros((*classes.shape, 3), np.uint8)
    for bit in range(8):
        colours[..., bit % 3] |= ((classes >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return Image.fromarray(colours)


def has_showable_pixels(feature: Feature) -> bool:
    """Return whether a feature of bare pixels has a fixed size and channels that can be shown: grey, RGB or RGBA."""
    return feature.is_image and feature.is_static and feature.shape[2] in (1, 3, 4)


def make_thumbnail(picture: Image.Image, side: int) -> Image.Image:
    """Return a copy of a picture of at most `side` pixels in height and width; tiny pictures are enlarged.

    Args:
        picture: picture of mode L or RGB.
        side: maximum height and width in pixels.
    """
    longest_edge = max(picture.size)
    if longest_edge < side // 2:
        # Digits of 8 pixels would be too small to see.
        factor = side // longest_edge
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    thumbnail = picture.copy()
    thumbnail.thumbnail((side, side))
    return thumbnail


def encode_png(picture: Image.Image) -> bytes:
    """Return a picture as a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def _decode_pixels(content: bytes, feature: Feature) -> Image.Image:
    """Return a picture from bare pixels, uint8 [height, width, channels], with 1, 3 or 4 channels."""
    # `or 0` is for type checkers: `has_showable_pixels` has made sure that no size is None.
    height, width, channels = (size or 0 for size in feature.shape)
    array = np.frombuffer(content, np.uint8).reshape(height, width, channels)
    return Image.fromarray(array[:, :, 0] if channels == 1 else array)

"""Decision on an image from its content: stored unchanged, re-encoded, or rejected. docs/reference/image_rules.md has the table."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from PIL import Image

from beam_jobs.image_records.options import DECODE, DEFAULT_QUALITY, ImageOptions
from beam_jobs.image_records.pixels import BARE_PIXELS, Pixels
from beam_jobs.references.reference import Payload
from tpudata.images.header import UPRIGHT, ImageHeader, read_header
from tpudata.images.image_format import JPEG, PNG, TIFF, detect_format
from tpudata.images.pixels import (
    DecodedImage,
    check_decodes,
    decode_image,
    encode_image,
    has_several_frames,
    is_lossless,
    shrink,
)


class StoredImage(NamedTuple):
    """An encoded image as a record holds it.

    Attributes:
        data: bytes of the encoded image.
        format: format of the bytes: `"JPEG"` or `"PNG"`.
        height: height in pixels.
        width: width in pixels.
        channels: 1 or 3.
        reason: reason for re-encoding, in a few words; empty if the bytes are those of the input.
    """

    data: bytes
    format: str
    height: int
    width: int
    channels: int
    reason: str = ""


def make_stored_image(data: bytes, payload: Payload, options: ImageOptions) -> StoredImage:
    """Return the encoded image that a record holds.

    Args:
        data: the input's bytes.
        payload: kind of the bytes: `Pixels`, or any other kind for an encoded image.
        options: rules for checking and storing images.

    Raises:
        ValueError: the image is rejected; the message completes `rejected: ...`.
    """
    if isinstance(payload, Pixels):
        decoded = DecodedImage(_decode_bare(data, payload, options))
        return _encode(decoded, options, BARE_PIXELS, was_lossless=True)
    format_name, header = _read_format(data)
    if header is not None:
        reason = _find_encoding_reason(header, options)
        if not reason:
            # Decoders may reject a JPEG whose markers are irregular.
            if options.check == DECODE or not header.is_regular:
                check_decodes(data, format_name, header)
            return StoredImage(data, format_name, header.height, header.width, header.components)
    elif has_several_frames(data, format_name):
        is_tiff = format_name == TIFF
        reason = "first page of a TIFF of several pages" if is_tiff else f"first frame of an animated {format_name}"
    else:
        reason = format_name
    decoded = _decode(data, format_name, header, options)
    return _encode(decoded, options, reason, was_lossless=is_lossless(data, format_name))


def make_stored_halves(data: bytes, payload: Payload, options: ImageOptions) -> tuple[StoredImage, StoredImage]:
    """Return the left and the right half of a picture, re-encoded.

    Args:
        data: the input's bytes.
        payload: kind of the bytes: `Pixels`, or any other kind for an encoded image.
        options: rules for checking and storing images; `resize_shorter` applies to each half.

    Raises:
        ValueError: the picture is rejected, or its width is odd; the message completes `rejected: ...`.
    """
    # The halves are resized after the cut: the option limits the shorter side of each half.
    full_size_options = dataclasses.replace(options, resize_shorter=None)
    if isinstance(payload, Pixels):
        decoded = DecodedImage(_decode_bare(data, payload, full_size_options))
        was_lossless = True
    else:
        format_name, header = _read_format(data)
        decoded = _decode(data, format_name, header, full_size_options)
        was_lossless = is_lossless(data, format_name)
    width, height = decoded.image.size
    if width % 2:
        raise ValueError(f"of an odd width, {width} pixels, so it has no halves; omit --target-half, or remove it")
    boxes = (0, 0, width // 2, height), (width // 2, 0, width, height)
    left_half, right_half = (
        _encode(
            decoded._replace(image=shrink(decoded.image.crop(box), options.resize_shorter)),
            options,
            reason="halves",
            was_lossless=was_lossless,
        )
        for box in boxes
    )
    return left_half, right_half


def _encode(decoded: DecodedImage, options: ImageOptions, reason: str, *, was_lossless: bool) -> StoredImage:
    """Return a decoded image as PNG if its source was lossless and no option asks for JPEG, otherwise as JPEG.

    Args:
        decoded: the decoded image, already resized as the options ask.
        options: rules for storing images.
        reason: reason for re-encoding, in a few words.
        was_lossless: whether the source was lossless.
    """
    stays_lossless = was_lossless and options.quality is None and not options.jpeg_only
    format_name = PNG if stays_lossless else JPEG
    encoded = encode_image(decoded, format_name, options.quality or DEFAULT_QUALITY)
    image = decoded.image
    return StoredImage(encoded, format_name, image.height, image.width, len(image.getbands()), reason)


def decode_pixels(data: bytes, payload: Payload, options: ImageOptions) -> tuple[bytes, tuple[int, int, int]]:
    """Return the pixels of an image, decoded by the rules of `make_stored_image`, and their shape.

    Args:
        data: the input's bytes.
        payload: kind of the bytes: `Pixels`, or any other kind for an encoded image.
        options: rules for checking and storing images.

    Returns:
        uint8 values in C order, and (height, width, channels) with 1 or 3 channels.

    Raises:
        ValueError: the image is rejected; the message completes `rejected: ...`.
    """
    if isinstance(payload, Pixels):
        image = _decode_bare(data, payload, options)
    else:
        format_name, header = _read_format(data)
        image = _decode(data, format_name, header, options).image
    return image.tobytes(), (image.height, image.width, len(image.getbands()))


def _read_format(data: bytes) -> tuple[str, ImageHeader | None]:
    """Return the format of an image, and its header if it is a JPEG or PNG; ValueError if it is not a supported image."""
    format_name = detect_format(data)
    return format_name, read_header(data, format_name) if format_name in (JPEG, PNG) else None


def _find_encoding_reason(header: ImageHeader, options: ImageOptions) -> str:
    """Return the first reason for re-encoding a JPEG or PNG; an empty string if it is stored unchanged."""
    if header.components == 4:
        return "CMYK"
    if header.bits == 16:
        return "16 bits per sample"
    if header.has_alpha:
        return "transparency"
    if header.orientation != UPRIGHT:
        return "EXIF orientation"
    if options.resize_shorter is not None and min(header.height, header.width) > options.resize_shorter:
        return "resized"
    if options.jpeg_only and header.format != JPEG:
        return "PNG to JPEG"
    return ""


def _decode(data: bytes, format_name: str, header: ImageHeader | None, options: ImageOptions) -> DecodedImage:
    """Return a decoded image, shrunk as the options ask.

    Args:
        data: the input's bytes.
        format_name: format of the image, from `_read_format`.
        header: header of a JPEG or PNG; None for other formats.
        options: rules for checking and storing images.

    Raises:
        ValueError: the image is damaged or of an unsupported kind.
    """
    # A draft skips parts of a JPEG, and --check=decode has to decode all of it.
    return decode_image(data, format_name, header, options.resize_shorter, may_draft=options.check != DECODE)


def _decode_bare(data: bytes, payload: Pixels, options: ImageOptions) -> Image.Image:
    """Return the image of bare pixels, shrunk as the options ask.

    Raises:
        ValueError: the shape is not that of an image, or there are fewer bytes than it has values.
    """
    shape = payload.find_image_shape()
    # Readers return at most the bytes of the reference, so there are never more.
    if len(data) < math.prod(shape):
        raise ValueError(
            f"pixels truncated (got {len(data)} bytes, expected {' x '.join(map(str, shape))}); the file is truncated"
        )
    height, width, channels = shape
    image = Image.frombytes("L" if channels == 1 else "RGB", (width, height), payload.arrange_in_rows(data))
    return shrink(image, options.resize_shorter)

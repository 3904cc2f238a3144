"""Decoding to pixels and encoding, with Pillow: 8 bits a sample, grey or RGB, upright, on white if transparent."""

from __future__ import annotations

import io
from typing import NamedTuple

from PIL import Image

from tpudata.images.header import (
    UPRIGHT,
    ImageHeader,
    check_png_checksums,
    check_size,
    parse_exif_orientation,
)
from tpudata.images.image_format import AVIF, GIF, HEIC, JPEG, JPEG_2000, PNG, TIFF, WEBP
from tpudata.images.modern_formats import find_iso_chroma_step, is_reversible
from tpudata.images.pillow_files import load_image, open_image, translate_pillow_errors
from tpudata.images.sixteen_bits import (
    SIXTEEN_BIT_MODES,
    check_tiff,
    is_deep_color,
    make_eight_bit_grey,
    make_eight_bit_png,
    make_eight_bit_tiff,
)

# Transposes that make an image upright, by its Exif orientation.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Transposes that exchange rows and columns.
_SIDEWAYS = tuple(_TURNS[orientation] for orientation in (5, 6, 7, 8))
_GREY_MODES = ("1", "L", "LA", "La")
_COLOR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "YCbCr", "CMYK")
_MAX_JPEG_SIDE = 65_500  # libjpeg's limit
# A JPEG is decoded at this multiple of its target or more: decoders halve sizes for free, filters give better quality.
_REDUCING_GAP = 3


class DecodedImage(NamedTuple):
    """Pixels of an image.

    Attributes:
        image: upright image of mode `L` or `RGB`.
        chroma_step: pixels for each sample of colour that the source had, across and down: (1, 1) or more.
    """

    image: Image.Image
    chroma_step: tuple[int, int] = (1, 1)


def decode_image(
    data: bytes,
    image_format: str,
    header: ImageHeader | None,
    shorter_side: int | None = None,
    *,
    may_draft: bool = False,
) -> DecodedImage:
    """Decode an image fully.

    Args:
        data: the encoded image.
        image_format: format from `detect_format`.
        header: header from `read_header`; None unless the format is JPEG or PNG.
        shorter_side: pixels of the shorter side that larger images are shrunk to; None keeps the size.
        may_draft: whether a JPEG that is shrunk may be decoded at 1/2, 1/4 or 1/8 size first.

    Raises:
        ValueError: it is damaged, or of an unsupported kind; the message completes `rejected: ...`.
        UsageError: this installation lacks the format.
    """
    if image_format == PNG:
        check_png_checksums(data)
    image = open_image(data, image_format)
    check_size(image_format, *image.size)
    if image_format == TIFF:
        check_tiff(image)
    # Computed before the draft, which rounds the size.
    target_size = _shrink_size(image.size, shorter_side)
    if may_draft and image_format == JPEG and target_size != image.size:
        image.draft(None, (target_size[0] * _REDUCING_GAP, target_size[1] * _REDUCING_GAP))
    if header is not None and header.bits == 16:
        image = make_eight_bit_png(data)
    elif image_format == TIFF and is_deep_color(image):
        image = make_eight_bit_tiff(data, image)
    else:
        image = load_image(image, image_format)
    opaque = _flatten(image, image_format, header)
    if image_format == TIFF:
        target_size = _shrink_size(opaque.size, shorter_side)  # Pillow may have turned it while loading.
    # Flattening transparency creates edges of one pixel, so colours need full resolution.
    across, down = (1, 1) if image.has_transparency_data else _find_chroma_step(data, image_format, header)
    resized = _resize(opaque, target_size)
    turn = _TURNS.get(header.orientation if header else find_exif_orientation(image, image_format))
    upright = resized if turn is None else resized.transpose(turn)
    if turn in _SIDEWAYS:
        across, down = down, across
    # Keep only the profile: encoders would also write other metadata of the input file. A profile of CMYK does not fit RGB.
    profile = None if image.mode == "CMYK" else image.info.get("icc_profile")
    # In a damaged TIFF the profile may be a number.
    upright.info = {"icc_profile": profile} if profile and isinstance(profile, bytes) else {}
    return DecodedImage(upright, (across, down))


def shrink(image: Image.Image, shorter_side: int | None) -> Image.Image:
    """Return an image of mode `L` or `RGB` shrunk to a shorter side of `shorter_side` pixels; unchanged if smaller, or for None."""
    return _resize(image, _shrink_size(image.size, shorter_side))


def check_decodes(data: bytes, image_format: str, header: ImageHeader | None = None) -> None:
    """Decode an image and discard the pixels.

    A JPEG is decoded at 1/8 size: libjpeg still reads every coefficient, so it detects the same damage.

    Args:
        data: the encoded image.
        image_format: format from `detect_format`.
        header: header from `read_header`, to compare the size with; None for no comparison.

    Raises:
        ValueError: it is damaged; the message completes `rejected: ...`.
        UsageError: this installation lacks the format.
    """
    if image_format == PNG:
        check_png_checksums(data)
    image = open_image(data, image_format)
    # The draft changes the size of a JPEG.
    width, height = image.size
    with translate_pillow_errors(image_format):
        image.draft(None, (1, 1))
    loaded = load_image(image, image_format)
    if image_format != JPEG:
        width, height = loaded.size  # A TIFF may be turned while it is loaded.
    if header is not None and (height, width) != (header.height, header.width):
        raise ValueError(
            f"{image_format} of {width} x {height} pixels, whose header has {header.width} x {header.height}"
        )


def encode_image(decoded: DecodedImage, image_format: str, quality: int) -> bytes:
    """Return the bytes of an encoded image. Equal images give equal bytes with one build of Pillow.

    A JPEG keeps the source's chroma subsampling if it is 4:2:0, 4:2:2 or 4:4:4. Any other subsampling becomes the coarsest of these
    three that has as many samples or more in each direction, so no sample of colour is lost.

    Args:
        decoded: image from `decode_image`.
        image_format: `JPEG` or `PNG`.
        quality: quality of a JPEG, 1 to 100.

    Raises:
        ValueError: the image is too long for a JPEG; the message completes `rejected: ...`.
    """
    buffer = io.BytesIO()
    image, (across, down) = decoded
    profile = image.info.get("icc_profile")
    if image_format == JPEG:
        if max(image.size) > _MAX_JPEG_SIDE:
            raise ValueError(
                f"too large for a JPEG: {image.width} x {image.height} pixels; a JPEG may have {_MAX_JPEG_SIDE:,} a side"
            )
        # A grey image has no chroma to subsample.
        options = {"subsampling": _choose_subsampling(across, down)} if image.mode == "RGB" else {}
        image.save(buffer, "JPEG", quality=quality, icc_profile=profile, **options)
    else:
        image.save(buffer, "PNG", icc_profile=profile)
    return buffer.getvalue()


def _choose_subsampling(across: int, down: int) -> str:
    """Return Pillow's name of the coarsest chroma subsampling that keeps a sample of colour every `across` x `down` pixels."""
    if across < 2:
        return "4:4:4"
    return "4:2:2" if down < 2 else "4:2:0"


def is_lossless(data: bytes, image_format: str) -> bool:
    """Return whether an image's format keeps every pixel.

    All formats do except JPEG, AVIF, HEIC, WebP with a lossy first frame, and JPEG 2000 with the irreversible wavelet.
    """
    if image_format == JPEG_2000:
        return is_reversible(data)
    if image_format != WEBP:
        return image_format not in (JPEG, AVIF, HEIC)
    # A WebP is a RIFF file: 12 bytes, then chunks of a kind and a size, 8 bytes, and their content.
    position = 12
    while position + 8 <= len(data):
        kind = data[position : position + 4]
        if kind in (b"VP8 ", b"VP8L"):
            return kind == b"VP8L"
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        if kind == b"ANMF":
            # A frame of an animation: 16 bytes, then the chunks of the frame, which are searched too.
            position += 8 + 16
        else:
            # A chunk of odd size is followed by a byte of padding.
            position += 8 + size + size % 2
    return False


def has_several_frames(data: bytes, image_format: str) -> bool:
    """Return whether an image, which must decode, has more than one frame or page; `decode_image` returns only the first."""
    if image_format not in (GIF, WEBP, AVIF, TIFF):
        return False
    image = open_image(data, image_format)
    with translate_pillow_errors(image_format):
        return getattr(image, "n_frames", 1) > 1


def find_exif_orientation(image: Image.Image, image_format: str) -> int:
    """Return the Exif orientation still to be applied to an opened image that is neither JPEG nor PNG; upright if there is none."""
    # Pillow turns a TIFF, and libheif a HEIC; GIF, BMP, PPM and JPEG 2000 have no orientation.
    if image_format not in (WEBP, AVIF):
        return UPRIGHT
    return parse_exif_orientation(image.info.get("exif", b"").removeprefix(b"Exif\0\0"))


def _find_chroma_step(data: bytes, image_format: str, header: ImageHeader | None) -> tuple[int, int]:
    """Return the chroma subsampling of a stored image, (across, down) in pixels.

    It is (1, 1) for all formats but JPEG, AVIF, HEIC and lossy WebP.
    """
    if header is not None:
        return header.chroma_step
    if image_format in (AVIF, HEIC):
        return find_iso_chroma_step(data, image_format)
    # A lossy WebP is VP8, which has no other subsampling.
    return (2, 2) if image_format == WEBP and not is_lossless(data, image_format) else (1, 1)


def _shrink_size(size: tuple[int, int], shorter_side: int | None) -> tuple[int, int]:
    """Return a size shrunk to a shorter side of `shorter_side` pixels; unchanged if it is not larger, or for None."""
    if shorter_side is None or min(size) <= shorter_side:
        return size
    scale = shorter_side / min(size)
    return round(size[0] * scale), round(size[1] * scale)


def _resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def _flatten(image: Image.Image, image_format: str, header: ImageHeader | None) -> Image.Image:
    """Return a decoded image as mode `L` or `RGB`, on white; ValueError if its pixels are not grey, RGB or CMYK.

    Args:
        image: the decoded image; its metadata may change.
        image_format: its format.
        header: header of a JPEG or PNG, otherwise None.
    """
    if image_format in (TIFF, JPEG_2000) and image.mode in SIXTEEN_BIT_MODES:
        image = make_eight_bit_grey(image)
    if image.mode not in (*_GREY_MODES, *_COLOR_MODES):
        raise ValueError(f"{image_format} with pixels of the kind {image.mode}; 8-bit grey, RGB and CMYK are read")
    mode = "L" if image.mode in _GREY_MODES or _is_grey_palette(image) else "RGB"
    if image.mode == "CMYK" and header is not None and not header.has_adobe_marker:
        # Pillow reads every CMYK JPEG as inverted, but only a JPEG with Adobe's marker is.
        image = image.point(lambda value: 255 - value)
    if not image.has_transparency_data:
        return image.convert(mode)
    if header is not None and header.bits < 8 and isinstance(image.info.get("transparency"), int) and image.mode == "L":
        # The transparent grey is in units of the samples, which Pillow has scaled to 8 bits.
        image.info["transparency"] *= 255 // (2**header.bits - 1)
    rgba = image.convert("RGBA")
    flattened = Image.new(mode, image.size, 255 if mode == "L" else (255, 255, 255))
    # The three colours of a grey image are equal.
    colors = rgba.getchannel("R") if mode == "L" else rgba.convert("RGB")
    flattened.paste(colors, mask=rgba.getchannel("A"))
    return flattened


def _is_grey_palette(image: Image.Image) -> bool:
    """Return whether an image has a palette, and all its colours are grey."""
    colors = image.getpalette("RGB") if image.mode in ("P", "PA") else None
    return colors is not None and colors[0::3] == colors[1::3] == colors[2::3]

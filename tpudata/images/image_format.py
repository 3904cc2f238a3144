"""The format of an encoded image, by its content."""

from __future__ import annotations

JPEG, PNG, GIF, WEBP, BMP, TIFF, PPM = "JPEG", "PNG", "GIF", "WebP", "BMP", "TIFF", "PPM"
JPEG_2000, AVIF, HEIC = "JPEG 2000", "AVIF", "HEIC"

_SIGNATURES = (
    (b"\xff\xd8", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"BM", BMP),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"\0\0\0\x0cjP  \r\n", JPEG_2000),
    (b"\xff\x4f\xff\x51", JPEG_2000),
    *((b"P%d%c" % (kind, space), PPM) for kind in range(1, 7) for space in b" \t\r\n#"),
)
# Files that are common among images but not supported: byte offset of the signature, signature, and name.
_UNSUPPORTED_SIGNATURES = (
    (0, b"\xff\x0a", "a JPEG XL"),
    (0, b"\0\0\0\x0cJXL ", "a JPEG XL"),
    (4, b"ftyp", "an MP4 or other file of the ISO format"),
    (0, b"II+\0", "a BigTIFF"),
    (0, b"MM\0+", "a BigTIFF"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"%PDF", "a PDF"),
    (0, b"\0\0\1\0", "an icon"),
    (0, b"PK\3\4", "a zip file"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"{", "JSON, perhaps a server's answer"),
)
# Brands of images in the ISO file format (ISO/IEC 23008-12; AV1 Image File Format 1.1).
_BRANDS = {
    **dict.fromkeys((b"avif", b"avis"), AVIF),
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"), HEIC),
}
_READ = "JPEG, PNG, GIF, WebP, BMP, TIFF, PPM, JPEG 2000, AVIF and HEIC are read"


def detect_format(data: bytes) -> str:
    """Return the format of an encoded image, by its content.

    Returns:
        One of the formats of this module, such as `JPEG` or `AVIF`.

    Raises:
        ValueError: the format is unknown or unsupported; the message completes `rejected: ...`.
    """
    for signature, image_format in _SIGNATURES:
        if data.startswith(signature):
            return image_format
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return WEBP
    if data[4:8] == b"ftyp" and data[8:12] in _BRANDS:
        return _find_iso_format(data)
    if not data:
        raise ValueError("the file is empty")
    for offset, signature, name in _UNSUPPORTED_SIGNATURES:
        if data.startswith(signature, offset):
            raise ValueError(f"{name}; {_READ}")
    if data[:64].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        raise ValueError(f"HTML, SVG or other markup, not an image; {_READ}")
    if not data.strip(b"\0"):
        raise ValueError(f"nothing but zero bytes ({len(data)} zero bytes)")
    raise ValueError(f"unknown image format: it begins with {data[:8].hex(' ')}; {_READ}")


def _find_iso_format(data: bytes) -> str:
    """Return the format of an image in the ISO file format: for `mif1` and `msf1`, the compatible brands decide."""
    main_brand = data[8:12]
    if main_brand not in (b"mif1", b"msf1"):
        return _BRANDS[main_brand]
    # The box `ftyp`: size, kind, main brand and version take 16 bytes; the compatible brands follow.
    box_end = min(int.from_bytes(data[:4], "big"), len(data))
    compatible_brands = {data[position : position + 4] for position in range(16, box_end, 4)}
    return AVIF if compatible_brands & {b"avif", b"avis"} else HEIC

"""Options of a conversion for each image, checked once."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from tpudata.console.flags import FlagParser, positive_int
from tpudata.errors import UsageError

IMAGENET, RAW = "imagenet", "raw"
_LAYOUTS = (IMAGENET, RAW)
HEADER, DECODE = "header", "decode"
CHECKS = (HEADER, DECODE)
# Also the default of tf.io.encode_jpeg.
DEFAULT_QUALITY = 95


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Rules for checking and storing images; docs/convert/image_rules.md lists each kind of image.

    Attributes:
        layout: `"imagenet"` stores encoded images and the values in their headers, `"raw"` uint8 pixels of one size.
        check: `"header"` reads the header and the end of an image that is stored unchanged, `"decode"` decodes it fully.
        resize_shorter: largest shorter side in pixels, to which larger images are shrunk; None keeps all sizes.
        quality: quality of the JPEGs that are written, 1 to 100, for every image that has to be re-encoded. If None, lossless
            images become PNG and the others JPEG of quality 95.
        jpeg_only: whether PNGs are stored as JPEG, too, for readers of JPEG only.

    Raises:
        UsageError: a value is invalid, or two do not fit each other.
    """

    layout: str = IMAGENET
    check: str = HEADER
    resize_shorter: int | None = None
    quality: int | None = None
    jpeg_only: bool = False

    def __post_init__(self) -> None:
        for name, value, allowed in (("layout", self.layout, _LAYOUTS), ("check", self.check, CHECKS)):
            if value not in allowed:
                raise UsageError(f"--{name}: unknown value (got {value!r}, expected {' or '.join(allowed)})")
        if self.resize_shorter is not None and self.resize_shorter < 1:
            raise UsageError(f"--resize-shorter: out of range (got {self.resize_shorter}, expected 1 pixel or more)")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"--quality: out of range (got {self.quality}, expected 1 to 100)")
        if self.layout == RAW:
            for name, given in (("quality", self.quality is not None), ("jpeg-only", self.jpeg_only)):
                if given:
                    raise UsageError(f"--{name} is for JPEGs, but layout raw stores pixels. Omit one.")

    def deciding(self) -> dict[str, Any]:
        """Return the options for the manifest: all of them decide the content of the shards."""
        return dataclasses.asdict(self)


def add_image_flags(parser: FlagParser) -> None:
    """Add the flags that `image_options` reads."""
    add = parser.add_argument
    add("--layout", default=IMAGENET, help="imagenet: encoded images (default); raw: uint8 pixels, all of one size")
    add("--check", default=HEADER, help="header: headers and ends of the images (default); decode: decode every image")
    add(
        "--resize-shorter",
        type=positive_int,
        metavar="N",
        help="shrink images whose shorter side has more than N pixels",
    )
    add(
        "--quality",
        type=positive_int,
        metavar="Q",
        help="write every image that must be re-encoded as a JPEG of this quality, 1 to 100"
        f" (default: lossless images as PNG, others as JPEG of {DEFAULT_QUALITY})",
    )
    parser.add_switch("--jpeg-only", default=False, help="store PNGs as JPEG, for readers that decode only JPEG")


def image_options(flags: argparse.Namespace) -> ImageOptions:
    """Return the options that the flags of `add_image_flags` set; UsageError if one is invalid."""
    return ImageOptions(
        layout=IMAGENET if flags.layout is None else flags.layout,
        check=flags.check,
        resize_shorter=flags.resize_shorter,
        quality=flags.quality,
        jpeg_only=bool(flags.jpeg_only),
    )

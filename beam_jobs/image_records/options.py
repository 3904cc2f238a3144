"""Options of a conversion for each image, checked once."""

from __future__ import annotations

import dataclasses

from beam_jobs.options.groups import FlagGroup
from tpudata.checked_json import FLAG, TEXT, WHOLE
from tpudata.console.flags import positive_int
from tpudata.console.option import COUNT, Bounds, Stored, Value, check_options, option
from tpudata.errors import UsageError

IMAGENET, RAW = "imagenet", "raw"
HEADER, DECODE = "header", "decode"
LEFT, RIGHT = HALVES = ("left", "right")
# tf.io.encode_jpeg has the same default.
DEFAULT_QUALITY = 95


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Rules for checking and storing images; docs/reference/image_rules.md lists each kind of image.

    Raises:
        UsageError: a value is invalid, or two do not fit each other.
    """

    layout: str = option(
        IMAGENET,
        FlagGroup.IMAGES,
        "imagenet: encoded images and what their headers say; raw: uint8 pixels, all of one size (default imagenet)",
        choices=(IMAGENET, RAW),
        stored=Stored(TEXT),
    )
    check: str = option(
        HEADER,
        FlagGroup.IMAGES,
        "header: headers and ends of the images that are stored unchanged; decode: decode every image (default header)",
        choices=(HEADER, DECODE),
        stored=Stored(TEXT),
    )
    resize_shorter: int | None = option(
        None, FlagGroup.IMAGES, "shrink images whose shorter side has more than N pixels", COUNT, stored=Stored(WHOLE)
    )
    quality: int | None = option(
        None,
        FlagGroup.IMAGES,
        "write every image that must be re-encoded as a JPEG of this quality, 1 to 100 (default: lossless images as PNG,"
        f" others as JPEG of {DEFAULT_QUALITY})",
        Value("Q", positive_int, Bounds(1, 100)),
        stored=Stored(WHOLE),
    )
    jpeg_only: bool = option(
        False, FlagGroup.IMAGES, "store PNGs as JPEG, for readers that decode only JPEG", stored=Stored(FLAG)
    )

    target_half: str | None = option(
        None,
        FlagGroup.IMAGES,
        "the half of each picture that is a target, stored as image/target/encoded; the other half is the image",
        choices=HALVES,
        stored=Stored(TEXT, is_optional=True),
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.layout == RAW:
            for flag, is_passed in (("quality", self.quality is not None), ("jpeg-only", self.jpeg_only)):
                if is_passed:
                    raise UsageError(f"--{flag} is for JPEGs, but layout raw stores pixels. Omit one.")
            if self.target_half is not None:
                raise UsageError("--target-half: layout raw has one image in a record. Omit one.")

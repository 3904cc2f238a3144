from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from beam_jobs.image_options import ImageOptions, add_image_flags, image_options
from tpudata.errors import UsageError
from tpudata.flags import FlagParser


def parse(*argv: str) -> ImageOptions:
    parser = FlagParser("tpudata convert images", "Convert.")
    add_image_flags(parser)
    return image_options(parser.parse(argv))


def test_without_flags_the_defaults() -> None:
    assert parse() == ImageOptions()
    assert ImageOptions().deciding() == {
        "layout": "imagenet",
        "check": "header",
        "resize_shorter": None,
        "quality": None,
        "jpeg_only": False,
    }


def test_every_flag_reaches_its_option() -> None:
    options = parse("--check=decode", "--resize_shorter", "256", "--quality", "80", "--jpeg-only")
    assert options == ImageOptions(check="decode", resize_shorter=256, quality=80, jpeg_only=True)
    assert parse("--layout", "raw").layout == "raw"
    # So that an option that is added has its flag, too.
    assert {field.name for field in dataclasses.fields(ImageOptions)} == set(ImageOptions().deciding())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--layout", "tiles"), "--layout is 'tiles'; allowed are imagenet and raw"),
        (("--check", "all"), "--check is 'all'; allowed are header and decode"),
        (("--quality", "101"), "--quality is 101; a JPEG's quality is 1 to 100"),
        (("--quality", "0"), "not a whole number of 1 or more"),
        (("--resize-shorter", "-3"), "not a whole number of 1 or more"),
        (("--layout", "raw", "--quality", "80"), "--quality says how JPEGs are written, but layout raw stores pixels"),
        (("--layout", "raw", "--jpeg-only"), "--jpeg-only says how JPEGs are written"),
    ],
)
def test_what_is_not_allowed_is_said(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(*flags)


@pytest.mark.parametrize("wrong", [{"resize_shorter": 0}, {"quality": 0}])
def test_values_are_checked_without_flags_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is 0; "):
        ImageOptions(**wrong)

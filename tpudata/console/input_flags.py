"""Flags of the commands that feed a model: how records become its input."""

from __future__ import annotations

from tpudata.console.flags import FlagParser, flag_type, height_width, positive_int


def add_input_flags(parser: FlagParser) -> None:
    """Add the flags; all are optional."""
    parser.add_argument(
        "--image-size",
        type=height_width,
        metavar="HxW",
        help="resize images to this height and width; needed if their sizes vary, unless they are cropped",
    )
    parser.add_argument(
        "--crop",
        type=positive_int,
        metavar="SIZE",
        help="random crops of SIZE x SIZE pixels in training, centre crops otherwise",
    )
    parser.add_switch("--augment", default=False, help="RandAugment() in training, after the crop (default: false)")
    parser.add_argument(
        "--sequence-length",
        type=positive_int,
        metavar="N",
        help="pad token ids to this length; needed if their number varies",
    )
    parser.add_switch("--truncate", default=False, help="cut token ids that are longer (default: false)")
    parser.add_argument(
        "--pad",
        action="append",
        default=[],
        type=flag_type("list", parse_pad),
        metavar="NAME=N",
        help="pad the lists of a feature, or of a pattern such as 'image/object/*', to N entries; may be passed several times",
    )


def parse_pad(text: str) -> tuple[str, int]:
    """Return the name or the pattern, and the number of entries, of a `--pad`.

    Raises:
        ValueError: the text has another form.
    """
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{text!r} is not NAME=N, such as caption=5, with a whole number of 1 or more")
    return name, int(number)

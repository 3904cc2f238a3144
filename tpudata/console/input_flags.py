"""Flags of the commands that feed a model: how records become its input."""

from __future__ import annotations

from tpudata.console.flags import FlagParser, height_width, positive_int


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

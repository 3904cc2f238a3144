"""Flags of `tpudata bench`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tpudata.console.flags import FlagParser, positive_float, positive_int
from tpudata.console.option import add_option, list_options
from tpudata.devices.tpu_compiler.topologies import find_slice
from tpudata.storage import is_remote
from tpudata.train.options.train_options import TrainOptions

# Options of training that shape its input.
_INPUT_OPTIONS = ("image_size", "crop", "augment", "sequence_length", "truncate", "pad")
_DTYPES = ("uint8", "float32", "bfloat16", "float16")
# Default duration of a measurement, on a disk and on an object store: records of a store come in windows of 512 MiB, and a
# measurement needs several windows.
_SECONDS, _REMOTE_SECONDS = 5.0, 20.0


def parse_bench_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the flags of the command; `--tpu` becomes a TPUSlice, and `--seconds` gets its default.

    Raises:
        UsageError: the flags are wrong.
    """
    parser = new_parser()
    flags = parser.parse(argv)
    if not flags.folder:
        parser.error("DIR is empty; name the dataset's folder")
    if (flags.tpu is None) != (flags.model is None):
        parser.error(
            "--tpu and --model belong together: the bound is that of a model's step on a TPU. Pass both, or neither"
        )
    if flags.param and flags.model is None:
        parser.error("--param is for a model. Pass --model and --tpu")
    if flags.streams is not None and not is_remote(flags.folder):
        parser.error(f"--streams is for object stores, and {flags.folder} is on a disk. Omit it")
    if flags.tpu is not None:
        flags.tpu = find_slice(flags.tpu, "--tpu")
    if flags.seconds is None:
        flags.seconds = _REMOTE_SECONDS if is_remote(flags.folder) else _SECONDS
    return flags


def changes_pixels(flags: argparse.Namespace) -> bool:
    """Return whether images are augmented, or converted to floats, after they are decoded."""
    return bool(flags.augment) or flags.dtype != "uint8"


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser(
        "tpudata bench",
        "Measures the speed of feeding a dataset, stage by stage, and its limit.",
        topics=("feed/bench", "troubleshooting"),
    )
    parser.add_argument("folder", metavar="DIR", help="the dataset's folder")
    parser.add_argument("--split", default="train", metavar="NAME", help="split to feed (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=positive_int, required=True, metavar="N", help="records in a batch of this host"
    )
    parser.add_switch("--training", default=True, help="shuffled, as in training, or in order (default: true)")
    options = list_options(TrainOptions)
    for name in _INPUT_OPTIONS:
        add_option(parser, options[name])
    # `tpudata train` needs None for an option that is not passed; the input needs these values.
    parser.set_defaults(augment=False, truncate=False, pad=[])
    parser.add_argument(
        "--dtype",
        choices=_DTYPES,
        default="uint8",
        help="dtype of images: uint8 is 0 to 255, floats are 0 to 1 (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=positive_float,
        metavar="S",
        help=f"duration of the measurement of each stage (default: {_SECONDS:g}, on an object store {_REMOTE_SECONDS:g})",
    )
    parser.add_argument(
        "--streams",
        type=positive_int,
        metavar="N",
        help="pieces that are read at the same time from an object store (default: 32)",
    )
    parser.add_argument(
        "--step-time",
        type=positive_float,
        metavar="MS",
        help="milliseconds of a step on the device: reports whether the device will wait, and for what",
    )
    parser.add_argument("--model", metavar="NAME", help="model whose step --tpu compiles")
    parser.add_argument(
        "--tpu",
        metavar="NAME",
        help="compile the step of --model for this TPU, such as v5e-8, and report the host CPU and storage rate that it needs",
    )
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="parameter of the model")
    parser.add_switch("--json", default=False, help="print one JSON object, for programs")
    return parser

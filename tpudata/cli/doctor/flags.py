"""Flags of `tpudata doctor`, with what its configuration file sets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpudata.console.flags import FlagParser, height_width, positive_float, positive_int
from tpudata.errors import UsageError
from tpudata.models import check_model_name
from tpudata.storage import storage_for

# Flags of `tpudata train` that are passed to the rehearsal, with their metavars.
REHEARSAL_FLAGS = {"image-size": "HxW", "crop": "SIZE", "sequence-length": "N", "batch-size": "N"}
# Flags that bring records to one shape, in the order of the probe's arguments.
SHAPE_FLAGS = ("image-size", "crop", "sequence-length")


def parse_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the flags; the values of `REHEARSAL_FLAGS` and of --step-time stay strings.

    Args:
        argv: the words after `tpudata doctor`.

    Raises:
        UsageError: a flag is unknown, invalid or missing, or lacks another one that it needs.
    """
    flags = new_parser().parse(argv)
    model_flags = [name for name in ("config", "param", "tpu") if getattr(flags, name)]
    if flags.model is None and model_flags:
        raise UsageError(f"tpudata doctor: --{model_flags[0]} is for a model. Pass --model.")
    data_flags = [
        name for name in ("model", *REHEARSAL_FLAGS, "step-time") if getattr(flags, name.replace("-", "_")) is not None
    ]
    if flags.data is None and data_flags:
        raise UsageError(f"tpudata doctor: --{data_flags[0]} needs a dataset. Pass --data.")
    if flags.step_time is not None and flags.batch_size is None:
        raise UsageError("tpudata doctor: --step-time needs the records of a step. Pass --batch-size.")
    # The module of a user's model is found by the rehearsal, which puts the working directory on Python's path.
    if flags.model is not None and ":" not in flags.model:
        check_model_name(flags.model)
    # The values are only checked here, with the parsers of the commands that they are passed on to as strings.
    parsers: dict[str, Callable[[str], object]] = {
        "batch-size": positive_int,
        "crop": positive_int,
        "sequence-length": positive_int,
        "image-size": height_width,
        "step-time": positive_float,
    }
    for name, parse in parsers.items():
        _check_value(name, getattr(flags, name.replace("-", "_")), parse)
    return flags


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser(
        "tpudata doctor",
        "Checks everything before a run: versions, devices, a TPU, storage, a dataset, memory, speed, a model.",
        topics=("train/doctor", "tpu"),
    )
    parser.add_switch("--use-tpu", default=False, help="report a problem if this machine has no TPU to use")
    parser.add_argument("--data", metavar="DIR", help="a dataset to check, local or gs://")
    parser.add_argument("--model-dir", metavar="DIR", help="write, read and delete a small file in this folder")
    parser.add_argument("--train-split", metavar="NAME", help="split to feed (default: that of --config, or train)")
    parser.add_argument("--model", metavar="NAME", help="list what a TPU would reject of this model; needs --data")
    parser.add_argument(
        "--tpu",
        metavar="TYPE",
        help="compile the model for this TPU, such as v5e-8, as tpudata train --rehearse --tpu does",
    )
    parser.add_argument("--config", metavar="FILE", help="configuration of the rehearsal, as for tpudata train")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="parameter of the model")
    for name, value in REHEARSAL_FLAGS.items():
        parser.add_argument(f"--{name}", metavar=value, help="as for tpudata train, for the dataset and the model")
    parser.add_argument(
        "--step-time",
        metavar="MS",
        help="milliseconds of a training step: reports whether the device will wait for records",
    )
    parser.add_argument(
        "--time-limit",
        type=positive_int,
        default=60,
        metavar="SECONDS",
        help="time limit of each check (default: %(default)s)",
    )
    parser.add_switch("--json", default=False, help="print one JSON object, for programs")
    return parser


def _check_value(name: str, value: str | None, parse: Callable[[str], object]) -> None:
    """Raise UsageError if a flag is passed with a value that `parse` rejects."""
    try:
        if value is not None:
            parse(value)
    except (argparse.ArgumentTypeError, UsageError) as error:
        raise UsageError(f"tpudata doctor: --{name}: {error}.") from None


def read_config(path: str | None) -> dict[str, Any]:
    """Return the values that the file of --config sets, by name with underscores; the rehearsal checks them fully.

    Args:
        path: path of the file; None if there is none.

    Returns:
        The values; empty without a file, or if it is not a mapping.
    """
    from tpudata.train.options.config_file import PARAMS, convert_params
    from tpudata.train.options.yaml_text import parse_yaml

    if path is None:
        return {}
    parsed = parse_yaml(storage_for(path).read(path).decode(errors="replace"), f"--config {path}")
    config = {str(key).replace("-", "_"): value for key, value in parsed.items()} if isinstance(parsed, dict) else {}
    if PARAMS in config:
        config[PARAMS] = convert_params(config[PARAMS], path)
    return config


def get_flag_or_config(flags: argparse.Namespace, config: Mapping[str, Any], name: str) -> str | None:
    """Return the value of a flag as a string or, if it is not passed, its value in the --config file; None if neither sets it."""
    key = name.replace("-", "_")
    value = getattr(flags, key)
    if value is not None:
        return str(value)
    return None if config.get(key) is None else str(config[key])


def list_rehearsal_flags(flags: argparse.Namespace) -> list[str]:
    """Return the arguments of the `tpudata train` that rehearses the run."""
    names = ("train-split", "config", "tpu", *REHEARSAL_FLAGS)
    flag_values = {name: getattr(flags, name.replace("-", "_")) for name in names}
    words = [f"--{name}={value}" for name, value in flag_values.items() if value is not None]
    return [*words, *(f"--param={setting}" for setting in flags.param)]

"""Parser of the options of `tpudata train`: flags override a YAML file, which overrides the defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tpudata.console.flags import FlagParser
from tpudata.console.option import add_option, list_options, passed_options
from tpudata.train.options.config_file import read_config
from tpudata.train.options.train_options import Group, TrainOptions

_OPTIONS = list_options(TrainOptions)
_RATE = "learning_rate"


def parse_options(argv: Sequence[str], prog: str = "tpudata train") -> TrainOptions:
    """Parse the flags of `tpudata train`.

    Args:
        argv: the flags, without the name of the command.
        prog: the command as the user typed it, for messages.

    Raises:
        UsageError: a flag or a key of the file is unknown or missing, or a value is invalid.
        StorageError: the file of `--config` cannot be read.
        MissingExtraError: `--config` or `--param` is passed, and PyYAML is not installed.
    """
    parser = new_parser(prog)
    flags = parser.parse(argv)
    flag_options = passed_options(TrainOptions, flags)
    file_options = {}
    if flags.config is not None:
        if not flags.config.strip():
            parser.error("--config is empty. Pass a file, or omit it")
        annotations = {field.name: str(field.type) for field in dataclasses.fields(TrainOptions)}
        file_options = _drop_unused(read_config(flags.config, annotations), flag_options)
    options = {**file_options, **flag_options}
    # In these two mappings, a flag overrides single entries of the file.
    for name in ("params", "pad"):
        options[name] = {**file_options.get(name, {}), **flag_options.get(name, {})}
    missing = [option.flag for name, option in _OPTIONS.items() if option.is_required and options.get(name) is None]
    if missing:
        parser.error(f"missing: {', '.join(missing)}. Pass them as flags, or as keys in the file of --config")
    return TrainOptions(**options)


def _drop_unused(file_options: dict[str, Any], flag_options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a file that count, without options of other modes and options that a flag excludes.

    `--learning-rate` also removes `learning_rate` from the model's params, and `--param learning_rate` removes the file's option.
    `parse_options` replaces the other options that flags set.

    Args:
        file_options: options of the file by name; one file serves all modes.
        flag_options: options that flags set, by name.
    """
    mode = flag_options.get("mode", file_options.get("mode", TrainOptions.mode))
    # An option without modes belongs to all.
    unused = {name for name in file_options if _OPTIONS[name].modes and mode not in _OPTIONS[name].modes}
    # TrainOptions rejects both together: a crop sets the size.
    for flag, excluded in (("crop", "image_size"), ("image_size", "crop")):
        if flag in flag_options:
            unused.add(excluded)
    used_options = {name: value for name, value in file_options.items() if name not in unused}
    # The learning rate is an option, and a parameter of the model as well.
    if _RATE in flag_options:
        used_options["params"] = {
            name: value for name, value in used_options.get("params", {}).items() if name != _RATE
        }
    elif _RATE in flag_options.get("params", {}):
        used_options.pop(_RATE, None)
    return used_options


def new_parser(prog: str = "tpudata train") -> FlagParser:
    """Return the parser of the command's flags."""
    description = "Train a model on a dataset, evaluate it exactly, or predict with it."
    parser = FlagParser(prog, description, topics=("train/command", "reference/train", "models", "long_runs", "tpu"))
    for group in Group:
        with parser.group(group.value):
            for option in _OPTIONS.values():
                if option.group is group:
                    add_option(parser, option)
            if group is Group.RUN:
                parser.add_argument(
                    "--config",
                    metavar="FILE",
                    help="YAML with any of these flags, and the model's parameters under params",
                )
    return parser

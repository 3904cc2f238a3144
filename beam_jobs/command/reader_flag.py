"""`--for READER`: one flag for the options that another project's reader requires."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from beam_jobs.command.option_parser import read_options
from beam_jobs.image_records.options import IMAGENET
from beam_jobs.options.groups import FlagGroup
from beam_jobs.sources import Source
from tpudata.console.option import check_options, option
from tpudata.errors import UsageError

TENSORFLOW_TPU = "tensorflow-tpu"
# The values that a reader needs, by option. The reader of tensorflow/tpu (imagenet_input.py) subtracts 1 from each label, decodes
# only JPEG, and reads image/encoded and image/class/label from plain TFRecord files train-* and validation-*.
_NEEDED_VALUES: dict[str, dict[str, Any]] = {
    TENSORFLOW_TPU: {"label_offset": 1, "jpeg_only": True, "layout": IMAGENET, "compression": "none"}
}
_SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class ReaderOption:
    """The reader that the dataset is made for."""

    reader: str | None = option(
        None,
        FlagGroup.OUTPUT,
        "make the dataset for another project's reader: tensorflow-tpu (the models of github.com/tensorflow/tpu, whose"
        " labels count from 1) sets --label-offset=1 --jpeg-only",
        flag="--for",
        choices=(*_NEEDED_VALUES,),
    )

    def __post_init__(self) -> None:
        check_options(self)


def apply_reader(flags: argparse.Namespace) -> None:
    """Set the flags that the reader of `--for` needs and that were not passed; do nothing without `--for`.

    Raises:
        UsageError: a flag does not fit the reader: a value, --unlabelled, or the name of a split.
    """
    reader = read_options(ReaderOption, flags).reader
    if reader is None:
        return
    for name, needed_value in _NEEDED_VALUES[reader].items():
        value = getattr(flags, name)
        if value not in (None, needed_value):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"--for={reader} needs {flag}={_format_value(needed_value)} (got {_format_value(value)}). Omit {flag}."
            )
        setattr(flags, name, needed_value)
    if flags.unlabelled:
        raise UsageError(f"--unlabelled: --for={reader} reads the label of each image. Omit one of them.")
    unread_splits = sorted(set(flags.split.shares if flags.split else ()) - {*_SPLITS})
    if unread_splits:
        raise UsageError(
            f"--split: --for={reader} reads the splits {' and '.join(_SPLITS)} (got {unread_splits[0]}). Rename it, or omit"
            " --for."
        )


def check_reader(reader: str | None, source: Source, input_path: str) -> None:
    """Raise UsageError, which names `input_path`, if `reader`, the value of `--for`, cannot read a source's records.

    Without a reader, None, all sources are accepted.
    """
    if reader is not None and (source.several_labels or not source.has_classes):
        label_words = "any number of labels" if source.several_labels else "no labels"
        raise UsageError(f"{input_path}: --for={reader} reads one label of each image (got {label_words}). Omit --for.")


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""`tpudata doctor`: whether everything is ready for a run, and what a TPU would reject of a model."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpudata._version import __version__
from tpudata.cli._doctor_checks import (
    OK,
    PROBLEM,
    WARNING,
    check_files,
    check_labels,
    check_model_dir,
    check_shapes,
)
from tpudata.console.flags import FlagParser, height_width, positive_float, positive_int
from tpudata.console.tables import counted, table
from tpudata.errors import MissingExtraError, TpudataError, UsageError
from tpudata.format import open_dataset
from tpudata.models import check_model_name
from tpudata.storage import storage_for

_PACKAGES = (
    "tensorflow",
    "tensorflow-tpu",
    "tf_keras",
    "keras",
    "numpy",
    "apache-beam",
    "google-auth",
    "sentencepiece",
    "tokenizers",
)
# Flags of `tpudata train` that the rehearsal takes, too.
_REHEARSED = {"image-size": "HxW", "crop": "SIZE", "sequence-length": "N", "batch-size": "N"}
# Those that bring records to one shape, as the separate process takes them.
_MADE = ("image-size", "crop", "sequence-length")
_NONE = "none"


def run(argv: Sequence[str]) -> int:
    """Print what is ready and what is not; return 1 if something that was asked for is missing or would end a run.

    Args:
        argv: the flags.

    Raises:
        UsageError: the usage is wrong.
        TpudataError: from the rehearsal: see `tpudata train --rehearse`.
    """
    flags = _flags(argv)
    limit = flags.time_limit
    lines = _Lines()
    lines.add("versions", *_versions())
    lines.add("devices", *_answer(limit, PROBLEM, "devices"))
    named = flags.tpu_name or os.environ.get("TPU_NAME", "")
    words = (named, flags.tpu_zone, flags.gcp_project, str(max(1, limit - 15)))
    lines.add("TPU", *_brief(*_answer(limit, PROBLEM if named else _NONE, "tpu", *words)))
    on_gcs = any((path or "").startswith("gs://") for path in (flags.data, flags.model_dir))
    lines.add("credentials", *_answer(limit, PROBLEM if on_gcs else _NONE, "credentials"))
    if flags.model_dir is not None:
        lines.add(*check_model_dir(flags.model_dir))
    if flags.data is not None:
        lines.add("dataset", *_answer(limit, PROBLEM, "data", flags.data))
        if lines.states["dataset"] == OK:
            _check_dataset(flags, lines)
    if flags.model is not None and not lines.has_problem:
        _rehearse(flags.model, flags.data, _rehearsal(flags))
        lines.add("rehearsal", OK, f"{flags.model}: nothing that a TPU would reject")
    return TpudataError.exit_code if lines.has_problem else 0


class _Lines:
    """Findings that were printed.

    Attributes:
        states: by the name of a line.
    """

    def __init__(self) -> None:
        self.states: dict[str, str] = {}

    @property
    def has_problem(self) -> bool:
        """Whether a line is a problem."""
        return PROBLEM in self.states.values()

    def add(self, name: str, state: str, text: str) -> None:
        """Print a line."""
        self.states[name] = state
        print(table([(f"{name:<11}", f"{state:<7}", text)]), flush=True)


def _flags(argv: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(
        "tpudata doctor",
        "Says before a run whether everything is ready: versions, devices, a TPU, storage, a dataset, memory, speed, a model.",
    )
    parser.add_argument("--tpu-name", default="", metavar="NAME", help="a TPU's name or address (default: $TPU_NAME)")
    parser.add_argument(
        "--tpu-zone", default="", metavar="ZONE", help="where the name is looked up (default: gcloud's)"
    )
    parser.add_argument("--gcp-project", default="", metavar="PROJECT", help="where the name is looked up")
    parser.add_argument("--data", metavar="DIR", help="a dataset to check, local or gs://")
    parser.add_argument("--model-dir", metavar="DIR", help="write, read and delete a small file in this folder")
    parser.add_argument("--train-split", default="train", metavar="NAME", help="split to feed (default: %(default)s)")
    parser.add_argument("--model", metavar="NAME", help="list what a TPU would reject of this model; needs --data")
    parser.add_argument("--config", metavar="FILE", help="for the rehearsal, as of tpudata train")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="for the model")
    for name, value in _REHEARSED.items():
        parser.add_argument(f"--{name}", metavar=value, help="for the dataset and the model, as of tpudata train")
    parser.add_argument(
        "--step-time",
        metavar="MS",
        help="milliseconds of a training step: says whether the device will wait for records",
    )
    parser.add_argument(
        "--time-limit",
        type=positive_int,
        default=60,
        metavar="SECONDS",
        help="for each answer (default: %(default)s)",
    )
    flags = parser.parse(argv)
    for_model = [f"--{name}" for name in ("config", "param") if getattr(flags, name)]
    if flags.model is None and for_model:
        raise UsageError(f"tpudata doctor: {for_model[0]} is for a model. Pass --model.")
    for_data = [name for name in (*_REHEARSED, "step-time") if getattr(flags, name.replace("-", "_")) is not None]
    if flags.data is None and (flags.model is not None or for_data):
        name = "model" if flags.model is not None else for_data[0]
        raise UsageError(f"tpudata doctor: --{name} needs a dataset. Pass --data.")
    if flags.step_time is not None and flags.batch_size is None:
        raise UsageError("tpudata doctor: --step-time needs the records of a step. Pass --batch-size.")
    if flags.model is not None and ":" not in flags.model:
        check_model_name(flags.model)
    # The same rules as of the commands that take these flags.
    for name, parse in (("batch_size", positive_int), ("crop", positive_int), ("sequence_length", positive_int)):
        _check_value(name, getattr(flags, name), parse)
    _check_value("image_size", flags.image_size, height_width)
    _check_value("step_time", flags.step_time, positive_float)
    return flags


def _check_value(name: str, text: str | None, parse: Callable[[str], object]) -> None:
    try:
        if text is not None:
            parse(text)
    except (argparse.ArgumentTypeError, UsageError) as error:
        raise UsageError(f"tpudata doctor: --{name.replace('_', '-')}: {error}.") from None


def _check_dataset(flags: argparse.Namespace, lines: _Lines) -> None:
    """Add the lines of a dataset that can be opened."""
    from tpudata.train.options.config_file import PARAMS, parse_param

    dataset = open_dataset(flags.data)
    config = _config(flags.config)
    split = flags.train_split
    params = {**config.get(PARAMS, {}), **dict(map(parse_param, flags.param))}
    lines.add(*check_files(dataset))
    if split not in dataset.manifest.splits:
        has = ", ".join(dataset.manifest.splits)
        lines.add("split", PROBLEM, f"no split {split!r} (the dataset has {has}). Pass --train-split.")
        return
    made = {name: _given(flags, config, name) for name in _MADE}
    batch_size = _given(flags, config, "batch-size")
    lines.add(*check_shapes(dataset, made))
    labels = check_labels(dataset, flags.model, params)
    if labels is not None:
        lines.add(*labels)
    if lines.has_problem:
        return
    words = [made[name] or "" for name in _MADE]
    lines.add("memory", *_answer(flags.time_limit, WARNING, "memory", flags.data, split, *words))
    if batch_size is not None:
        timed = (flags.data, split, batch_size, flags.step_time or "", *words)
        lines.add("feeding", *_answer(flags.time_limit, WARNING, "feeding", *timed))


def _config(path: str | None) -> dict[str, Any]:
    """Return what the file of --config sets, by name with underscores; the rehearsal checks it more closely."""
    from tpudata.train.options.config_file import PARAMS, checked_params, parse_yaml

    if path is None:
        return {}
    found = parse_yaml(storage_for(path).read(path).decode(errors="replace"), f"--config {path}")
    config = {str(key).replace("-", "_"): value for key, value in found.items()} if isinstance(found, dict) else {}
    if PARAMS in config:
        config[PARAMS] = checked_params(config[PARAMS], path)
    return config


def _given(flags: argparse.Namespace, config: Mapping[str, Any], name: str) -> str | None:
    """Return the text of a flag, or else what the file of --config sets."""
    key = name.replace("-", "_")
    value = getattr(flags, key)
    if value is not None:
        return str(value)
    return None if config.get(key) is None else str(config[key])


def _rehearsal(flags: argparse.Namespace) -> list[str]:
    given = {name: getattr(flags, name.replace("-", "_")) for name in ("config", *_REHEARSED)}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [*words, *(f"--param={text}" for text in flags.param)]


def _versions() -> tuple[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    text = f"tpudata {__version__}, Python {platform.python_version()}, {text}"
    if not {"tensorflow", "tensorflow-tpu"} & found.keys():
        return _NONE, f"{text}. {MissingExtraError('Training', 'tensorflow')}"
    return OK, text


def _answer(limit: int, otherwise: str, *words: str) -> tuple[str, str]:
    """Return the answer of a separate process to a question: a state, `otherwise` if it fails, and a text."""
    # It ends with this process.
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "tpudata.cli._doctor_probe", str(reader), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL, pass_fds=[reader]
        )
    except subprocess.TimeoutExpired:
        return otherwise, f"no answer within {counted(limit, 'second')}; --time-limit waits longer"
    finally:
        os.close(writer)
        os.close(reader)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines()
        return otherwise, f"the process that looked ended with {done.returncode}: {said[-1] if said else 'in silence'}"
    answer: dict[str, str] = json.loads(lines[-1])
    if "warning" in answer:
        return WARNING, answer["warning"]
    return (OK, answer["found"]) if "found" in answer else (otherwise, answer["problem"])


def _brief(state: str, text: str) -> tuple[str, str]:
    """Shorten TensorFlow's message for a machine without a TPU, which is common."""
    if state == _NONE and "TPUs not found" in text:
        return state, "none on this machine, and none is named by --tpu-name or TPU_NAME"
    return state, text


def _rehearse(model: str, data: str, words: Sequence[str]) -> None:
    """List what a TPU would reject; RehearsalError if there is anything."""
    from tpudata.train.command import run as train

    splits = open_dataset(data).manifest.splits
    first = next(iter(splits))
    mode = "train_and_eval" if "validation" in splits else "train"
    with tempfile.TemporaryDirectory() as folder:
        common = [f"--model={model}", f"--data={data}", f"--model-dir={folder}/model", f"--mode={mode}", "--rehearse"]
        common += [] if "train" in splits else [f"--train-split={first}"]
        train([*common, *words], "tpudata doctor")

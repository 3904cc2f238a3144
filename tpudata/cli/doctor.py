"""`tpudata doctor`: whether all is there that a run needs, and what a TPU would reject of a model."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tpudata._version import __version__
from tpudata.console.flags import FlagParser, positive_int
from tpudata.console.tables import counted, table
from tpudata.errors import MissingExtraError, TpudataError, UsageError
from tpudata.format import open_dataset
from tpudata.models import check_model_name

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
_FINE, _NONE, _BAD = "ok", "none", "FAILED"


def run(argv: Sequence[str]) -> int:
    """Print what is there and what is not; return 1 if something that was asked for is missing.

    Args:
        argv: the flags.

    Raises:
        UsageError: the usage is wrong.
        TpudataError: of the rehearsal: see `tpudata train --rehearse`.
    """
    parser = FlagParser(
        "tpudata doctor", "Looks at versions, devices and their speed, a TPU, gs:// and a dataset; rehearses a model."
    )
    parser.add_argument("--tpu-name", default="", metavar="NAME", help="a TPU's name or address (default: $TPU_NAME)")
    parser.add_argument(
        "--tpu-zone", default="", metavar="ZONE", help="where the name is looked up (default: gcloud's)"
    )
    parser.add_argument("--gcp-project", default="", metavar="PROJECT", help="where the name is looked up")
    parser.add_argument("--data", metavar="DIR", help="a dataset to look for, local or gs://")
    parser.add_argument("--model", metavar="NAME", help="list what a TPU would reject of this model; needs --data")
    parser.add_argument("--config", metavar="FILE", help="for the rehearsal, as of tpudata train")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="for the rehearsal")
    for name, value in _REHEARSED.items():
        parser.add_argument(f"--{name}", metavar=value, help="for the rehearsal")
    parser.add_argument(
        "--time-limit",
        type=positive_int,
        default=60,
        metavar="SECONDS",
        help="for each answer (default: %(default)s)",
    )
    flags = parser.parse(argv)
    given = {name: getattr(flags, name.replace("-", "_")) for name in ("config", *_REHEARSED)}
    rehearsal = [f"--{name}={value}" for name, value in given.items() if value is not None]
    rehearsal += [f"--param={text}" for text in flags.param]
    if flags.model is None and rehearsal:
        raise UsageError(f"tpudata doctor: {rehearsal[0].split('=')[0]} is for the rehearsal of a model: add --model")
    if flags.model is not None and flags.data is None:
        raise UsageError("tpudata doctor: --model needs --data, a dataset that the model is fed with")
    if flags.model is not None and ":" not in flags.model:
        check_model_name(flags.model)
    limit = flags.time_limit
    rows = [("versions", *_versions())]
    _show(rows[-1])
    rows.append(("devices", *_answer(limit, _BAD, "devices")))
    _show(rows[-1])
    named = flags.tpu_name or os.environ.get("TPU_NAME", "")
    words = (named, flags.tpu_zone, flags.gcp_project, str(max(1, limit - 15)))
    rows.append(("TPU", *_brief(*_answer(limit, _BAD if named else _NONE, "tpu", *words))))
    _show(rows[-1])
    on_gcs = (flags.data or "").startswith("gs://")
    rows.append(("credentials", *_answer(limit, _BAD if on_gcs else _NONE, "credentials")))
    _show(rows[-1])
    if flags.data is not None:
        rows.append(("dataset", *_answer(limit, _BAD, "data", flags.data)))
        _show(rows[-1])
    bad = any(state == _BAD for _, state, _ in rows)
    if flags.model is not None and not bad:
        _rehearse(flags.model, flags.data, rehearsal)
        _show(("rehearsal", _FINE, f"{flags.model}: nothing that a TPU would reject"))
    return TpudataError.exit_code if bad else 0


def _show(row: tuple[str, str, str]) -> None:
    name, state, text = row
    print(table([(f"{name:<11}", f"{state:<6}", text)]), flush=True)


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
    return _FINE, text


def _answer(limit: int, otherwise: str, *words: str) -> tuple[str, str]:
    """Ask a separate process; return its verdict ("ok", or `otherwise`) and a text."""
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
    return (_FINE, answer["found"]) if "found" in answer else (otherwise, answer["problem"])


def _brief(state: str, text: str) -> tuple[str, str]:
    """TensorFlow's words for a machine without a TPU, which is nothing unusual, in fewer."""
    if state == _NONE and "TPUs not found" in text:
        return state, "none on this machine, and none is named by --tpu-name or TPU_NAME"
    return state, text


def _rehearse(model: str, data: str, words: Sequence[str]) -> None:
    """Rehearse a model for a TPU.

    Raises:
        RehearsalError: a TPU would reject something.
    """
    from tpudata.train.command import run as train

    splits = open_dataset(data).manifest.splits
    first = next(iter(splits))
    mode = "train_and_eval" if "validation" in splits else "train"
    with tempfile.TemporaryDirectory() as folder:
        common = [f"--model={model}", f"--data={data}", f"--model-dir={folder}/model", f"--mode={mode}", "--rehearse"]
        common += [] if "train" in splits else [f"--train-split={first}"]
        train([*common, *words], "tpudata doctor")

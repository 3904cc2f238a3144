"""`tpudata doctor`: checks before a run, and what a TPU would reject of a model."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tpudata._version import __version__
from tpudata.cli.doctor.checks import (
    OK,
    PROBLEM,
    WARNING,
    check_files,
    check_labels,
    check_model_dir,
    check_shapes,
)
from tpudata.cli.doctor.flags import SHAPE_FLAGS, get_flag_or_config, list_rehearsal_flags, parse_flags, read_config
from tpudata.console.child_processes import make_child_environment
from tpudata.console.lifeline import Lifeline
from tpudata.console.tables import count_text, table
from tpudata.errors import MissingExtraError, TpudataError
from tpudata.format import open_dataset
from tpudata.installation import find_installed_versions, format_install_command

# TensorFlow with the TPU runtime that ended with 2.20: its import aborts with this version of libtpu and later ones.
_TENSORFLOW_TPU = "tensorflow_tpu"
_FIRST_ABORTING_LIBTPU = (0, 0, 32)
# Packages that contain the module tensorflow.
_TENSORFLOW_PACKAGES = ("tensorflow", "tensorflow-cpu", _TENSORFLOW_TPU)
_PACKAGES = (
    *_TENSORFLOW_PACKAGES,
    "tf_keras",
    "keras",
    "jax",
    "jaxlib",
    "libtpu",
    "numpy",
    "apache-beam",
    "google-auth",
    "sentencepiece",
    "tokenizers",
)
# State of a line on something that is absent, which is not a problem.
_NONE = "none"
# Start of the text for a probe that ran out of time; `_hint_at_hosts` looks for it.
_NO_ANSWER = "no answer"


def run(argv: Sequence[str]) -> int:
    """Print the checks; return 1 if a check found a problem, which would end a run, else 0.

    Args:
        argv: the words after `tpudata doctor`.

    Raises:
        UsageError: the usage is wrong.
        TpudataError: the rehearsal failed, see `tpudata train --rehearse`; with --json, its error is in the report instead.
    """
    flags = parse_flags(argv)
    time_limit = flags.time_limit
    report = _Report(is_json=flags.json)
    report.add("versions", *_check_versions())
    report.add("devices", *_run_probe(time_limit, PROBLEM, "devices"))
    state, text = _hint_at_hosts(*_run_probe(time_limit, PROBLEM, "tpu"))
    report.add("TPU", PROBLEM if flags.use_tpu and state == _NONE else state, text)
    uses_gcs = any((path or "").startswith("gs://") for path in (flags.data, flags.model_dir))
    # Without gs://, a run needs no credentials.
    report.add("credentials", *_run_probe(time_limit, PROBLEM if uses_gcs else _NONE, "credentials"))
    if flags.model_dir is not None:
        report.add(*check_model_dir(flags.model_dir))
    if flags.data is not None:
        report.add("dataset", *_run_probe(time_limit, PROBLEM, "data", flags.data))
        if report.states["dataset"] == OK:
            _check_dataset(flags, report)
    if flags.model is not None and not report.has_problem:
        # The rehearsal prints numbers of the step, which would break the JSON object.
        output = contextlib.redirect_stdout(io.StringIO()) if flags.json else contextlib.nullcontext()
        try:
            with output:
                _rehearse(flags.model, flags.data, list_rehearsal_flags(flags))
            report.add("rehearsal", OK, f"{flags.model}: nothing that a TPU would reject")
        except TpudataError as error:
            if not flags.json:
                raise
            report.add("rehearsal", PROBLEM, str(error))
    if flags.json:
        print(json.dumps({"ok": not report.has_problem, "checks": report.checks}, indent=1))
    return TpudataError.exit_code if report.has_problem else 0


class _Report:
    """The lines of the report, each printed when it is added.

    Args:
        is_json: whether lines are only collected, for `--json`.

    Attributes:
        states: states by the names of lines.
        checks: the lines as JSON objects.
    """

    def __init__(self, *, is_json: bool = False) -> None:
        self.states: dict[str, str] = {}
        self.checks: list[dict[str, str]] = []
        self._is_json = is_json

    @property
    def has_problem(self) -> bool:
        """Whether a line is a problem."""
        return PROBLEM in self.states.values()

    def add(self, name: str, state: str, text: str) -> None:
        """Add a check to the report, and print its line unless the report is JSON.

        Args:
            name: name of the check.
            state: its outcome, such as `OK`.
            text: what was found.
        """
        self.states[name] = state
        self.checks.append({"name": name, "state": state, "text": text})
        if not self._is_json:
            # Fixed widths, since each line is a table of one row.
            print(table([(f"{name:<11}", f"{state:<7}", text)]), flush=True)


def _check_dataset(flags: argparse.Namespace, report: _Report) -> None:
    """Add the lines about the dataset of `--data`, which can be opened, to the report."""
    from tpudata.train.options.config_file import PARAMS, parse_param

    dataset = open_dataset(flags.data)
    config = read_config(flags.config)
    split = get_flag_or_config(flags, config, "train-split") or "train"
    params = {**config.get(PARAMS, {}), **dict(map(parse_param, flags.param))}
    report.add(*check_files(dataset))
    if split not in dataset.manifest.splits:
        split_names = ", ".join(dataset.manifest.splits)
        report.add("split", PROBLEM, f"no split {split!r} (the dataset has {split_names}). Pass --train-split.")
        return
    flag_values = {name: get_flag_or_config(flags, config, name) for name in SHAPE_FLAGS}
    batch_size = get_flag_or_config(flags, config, "batch-size")
    report.add(*check_shapes(dataset, flag_values))
    label_line = check_labels(dataset, flags.model, params)
    if label_line is not None:
        report.add(*label_line)
    if report.has_problem:
        # Feeding would fail for the same reason, so it is not probed.
        return
    shape_words = [flag_values[name] or "" for name in SHAPE_FLAGS]
    report.add("memory", *_run_probe(flags.time_limit, WARNING, "memory", flags.data, split, *shape_words))
    if batch_size is not None:
        feeding_words = (flags.data, split, batch_size, flags.step_time or "", *shape_words)
        report.add("feeding", *_run_probe(flags.time_limit, WARNING, "feeding", *feeding_words))


def _check_versions() -> tuple[str, str]:
    """Return the state and the text of the line about versions."""
    versions = find_installed_versions(_PACKAGES)
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    text = f"tpudata {__version__}, Python {platform.python_version()}, {packages}"
    libtpu_version = tuple(map(int, re.findall(r"\d+", versions.get("libtpu", ""))))
    if _TENSORFLOW_TPU in versions and libtpu_version >= _FIRST_ABORTING_LIBTPU:
        fix = f"pip uninstall {_TENSORFLOW_TPU} tensorflow; {format_install_command('tpu')}"
        return PROBLEM, f"{text}. {_TENSORFLOW_TPU} ends Python with this libtpu as it is imported. Run: {fix}"
    if not versions.keys() & set(_TENSORFLOW_PACKAGES):
        return _NONE, f"{text}. {MissingExtraError('Training', 'tensorflow')}"
    return OK, text


def _run_probe(time_limit: int, failure_state: str, *words: str) -> tuple[str, str]:
    """Run a probe in a separate process, and return the state and the text of its line.

    Args:
        time_limit: seconds after which the probe is ended.
        failure_state: the state if the probe fails.
        words: kind of the probe and its arguments, see `tpudata.cli.doctor.probe`.
    """
    with Lifeline() as lifeline:
        try:
            process = subprocess.run(
                [sys.executable, "-m", "tpudata.cli.doctor.probe", str(lifeline.reader), *words],
                capture_output=True,
                text=True,
                timeout=time_limit,
                env=make_child_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[lifeline.reader],
            )
        except subprocess.TimeoutExpired:
            return (
                failure_state,
                f"{_NO_ANSWER} within {count_text(time_limit, 'second')}; raise --time-limit to wait longer",
            )
    lines = process.stdout.splitlines()
    if process.returncode != 0 or not lines:
        error_lines = process.stderr.strip().splitlines()
        return (
            failure_state,
            f"the probe ended with exit code {process.returncode}: {error_lines[-1] if error_lines else 'no output'}",
        )
    # An object with one of four keys, see `tpudata.cli.doctor.probe`.
    answer: dict[str, str] = json.loads(lines[-1])
    if "warning" in answer:
        return WARNING, answer["warning"]
    if "none" in answer:
        return _NONE, answer["none"]
    return (OK, answer["found"]) if "found" in answer else (failure_state, answer["problem"])


def _hint_at_hosts(state: str, text: str) -> tuple[str, str]:
    """Return the state and the text of the line about the TPU; if the TPU does not answer, a hint at its other hosts is added."""
    if not text.startswith(_NO_ANSWER):
        return state, text
    return (
        state,
        f"{text}. The hosts of one TPU wait for each other: run this on all of them at once, with --worker=all",
    )


def _rehearse(model: str, data: str, words: Sequence[str]) -> None:
    """Rehearse the training of a model, which prints what a TPU would reject; RehearsalError if it rejects anything.

    Args:
        model: name of the model.
        data: folder of the dataset.
        words: further flags of `tpudata train`.
    """
    from tpudata.train.command import run as train

    splits = open_dataset(data).manifest.splits
    mode = "train_and_eval" if "validation" in splits else "train"
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--model={model}", f"--data={data}", f"--model-dir={folder}/model", f"--mode={mode}", "--rehearse"]
        train([*flags, *words], "tpudata doctor")

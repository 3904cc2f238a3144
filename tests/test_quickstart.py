"""scripts/quickstart: from pictures to a trained model."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from sklearn.datasets import load_digits

from tests.helpers import forked

SCRIPT = Path(__file__).parent.parent / "scripts" / "_quickstart.py"


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("_quickstart", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Its three commands share one process, which saves them 3 imports of TensorFlow and Beam.
PROGRAM = """
import runpy, sys
from tpudata.cli import main
quickstart = runpy.run_path(sys.argv[1])
quickstart["run_steps_at"].__globals__["run"] = lambda command, lock: main(command[1:])
sys.argv = sys.argv[1:]
sys.exit(quickstart["main"]())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a whole run, and the run."""
    folder = tmp_path_factory.mktemp("quickstart")
    return folder, forked.run("-c", PROGRAM, str(SCRIPT), str(folder))


def test_the_model_reaches_97_percent_accuracy(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = run
    assert done.returncode == 0, done.stderr
    metrics = json.loads((folder / "model" / "evaluation.json").read_bytes())
    assert metrics["accuracy"] >= 0.97
    assert f"accuracy {metrics['accuracy']:.2%} on {metrics['records']} records" in done.stdout


def test_prints_the_commands_that_ran(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = run
    lines = done.stdout.splitlines()
    ran = [line.split(": ", 1)[1] for line in lines if line.startswith("== ") and "tpudata " in line]
    closing = lines[-3:]
    assert [line.strip() for line in closing] == ran
    assert [shlex.split(line)[1] for line in closing] == ["convert", "train", "train"]


# TFDS uses a protobuf call that newer protobuf versions deprecate.
@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
def test_tfds_reads_every_digit_once(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = run
    builder = tfds.builder_from_directory(str(folder / "dataset"))
    total = sum(split.num_examples for split in builder.info.splits.values())
    read = [
        (example["image/filename"].decode(), example["image/class/label"], example["image/encoded"])
        for split in builder.info.splits
        for example in tfds.as_numpy(builder.as_dataset(split=split))
    ]
    digits = load_digits()
    assert total == len(read) == len(digits.target) == 1797
    for name, label, image in read:
        number = int(Path(name).stem)
        assert label == digits.target[number]
        # Pixels of 0 to 16 were scaled to 0 to 255, and are scaled back.
        np.testing.assert_array_equal(np.round(image[:, :, 0] * (16 / 255)), digits.images[number])


def test_writes_only_missing_pictures(tmp_path: Path) -> None:
    quickstart = _module()
    assert quickstart.write_digits(tmp_path) == 1797
    paths = sorted(tmp_path.rglob("*"))
    assert sum(path.suffix == ".png" for path in paths) == 1797
    assert not [path for path in paths if path.name.startswith(".")]
    with Image.open(tmp_path / "0" / "0000.png") as image:
        assert (image.format, image.mode, image.size) == ("PNG", "L", (8, 8))
    (tmp_path / "0" / "0000.png").unlink()
    kept = (tmp_path / "1" / "0001.png").stat().st_mtime_ns
    assert quickstart.write_digits(tmp_path) == 1
    assert (tmp_path / "1" / "0001.png").stat().st_mtime_ns == kept
    assert sorted(tmp_path.rglob("*")) == paths


def test_rewrites_damaged_pictures(tmp_path: Path) -> None:
    quickstart = _module()
    quickstart.write_digits(tmp_path)
    emptied, changed = tmp_path / "0" / "0000.png", tmp_path / "1" / "0001.png"
    before = emptied.read_bytes(), changed.read_bytes()
    emptied.write_bytes(b"")
    changed.write_bytes(before[1][:-1] + b"x")
    assert quickstart.write_digits(tmp_path) == 2
    assert (emptied.read_bytes(), changed.read_bytes()) == before
    assert quickstart.write_digits(tmp_path) == 0


def test_rejects_a_folder_that_another_quickstart_uses(tmp_path: Path) -> None:
    with _module().lock_folder(tmp_path) as lock:
        assert lock is not None
        done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"quickstart: another quickstart is running in {tmp_path}\n"
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_running_child_process_keeps_the_lock(tmp_path: Path) -> None:
    quickstart = _module()
    with quickstart.lock_folder(tmp_path) as lock:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[lock])
    try:
        with quickstart.lock_folder(tmp_path) as second:
            assert second is None
    finally:
        child.kill()
        child.wait()
    with quickstart.lock_folder(tmp_path) as third:
        assert third is not None


@pytest.mark.parametrize("moment", ["== Pictures", "== Convert"])
def test_an_interrupt_says_how_to_continue(tmp_path: Path, moment: str) -> None:
    # A separate session, so that the signal reaches the commands it starts as well, as a terminal's Ctrl-C does.
    with subprocess.Popen(
        [sys.executable, "-u", str(SCRIPT), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any(line.startswith(moment) for line in process.stdout)
        # Python needs a moment before it can report an interrupt.
        time.sleep(1.5 if moment == "== Convert" else 0.2)
        os.killpg(process.pid, signal.SIGINT)
        words = process.stderr.read()
        assert process.wait(30) == 130
    assert words.splitlines()[-1] == "quickstart: interrupted; run again to continue"
    assert "_quickstart.py" not in words
    assert not list(tmp_path.rglob(".*.png.*"))

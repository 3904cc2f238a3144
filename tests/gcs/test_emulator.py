"""scripts/gcs_emulator and scripts/quickstart --gcs, as far as they are Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gcs.child import ROOT


def test_the_emulator_prints_what_leads_to_it_and_leaves_nothing(tmp_path: Path) -> None:
    files, scratch = tmp_path / "files", tmp_path / "scratch"
    (files / "in").mkdir(parents=True)
    scratch.mkdir()
    (files / "in" / "a.txt").write_bytes(b"data")
    command = [sys.executable, "-m", "tests.fake_gcs", f"--bucket=data={files}", "--bucket=empty"]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("# gs://data, gs://empty at http://127.0.0.1:")
        variables = {}
        while "GOOGLE_CLOUD_PROJECT" not in variables or "STORAGE_EMULATOR_HOST" not in variables:
            name, value = shlex.split(process.stdout.readline())[1].split("=", 1)
            variables[name] = value
        program = "from tpudata.storage import storage_for as s; print(s('gs://data').read('gs://data/in/a.txt'))"
        argv = [sys.executable, "-c", program]
        done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("b'data'\n", "")
        assert list(scratch.iterdir())
        process.terminate()
        assert process.wait(60) == 0
    assert not list(scratch.iterdir())


def test_an_emulator_of_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fake_gcs", f"--bucket=data={tmp_path / 'none'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"gcs_emulator: {tmp_path / 'none'} is no folder\n")


@pytest.mark.whole
def test_the_quickstart_on_gs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "_quickstart.py"), str(tmp_path), "--gcs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "model     gs://trial/model" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "digits"}

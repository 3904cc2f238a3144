"""The emulator that scripts/gcs_emulator and scripts/quickstart --gcs start."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT


def test_prints_the_variables_of_its_clients_and_leaves_no_files(tmp_path: Path) -> None:
    files, scratch = tmp_path / "files", tmp_path / "scratch"
    (files / "in").mkdir(parents=True)
    scratch.mkdir()
    (files / "in" / "a.txt").write_bytes(b"data")
    command = [sys.executable, "-m", "scripts.fake_gcs", f"--bucket=data={files}", "--bucket=empty"]
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


def test_rejects_a_missing_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.fake_gcs", f"--bucket=data={tmp_path / 'none'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"gcs_emulator: {tmp_path / 'none'} is not a folder\n")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--port=TAKEN"], 1, "port TAKEN of 127.0.0.1: Address already in use. Omit --port"),
        (["--port=99999"], 2, "argument --port: invalid port value: '99999'"),
        (["--latency=-1"], 2, "argument --latency: invalid amount value: '-1'"),
        (["--bucket=gs://data"], 1, "--bucket 'gs://data': it is NAME or NAME=FOLDER"),
        (["--environment=/none/there"], 1, "No such file or directory: '/none/"),
    ],
)
def test_reports_wrong_flags_in_one_line(tmp_path: Path, flags: list[str], code: int, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        argv = [sys.executable, "-m", "scripts.fake_gcs", *(flag.replace("TAKEN", number) for flag in flags)]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert words.replace("TAKEN", number) in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_signals_of_a_terminal_end_the_emulator_without_leftovers(tmp_path: Path, name: str) -> None:
    argv = [sys.executable, "-m", "scripts.fake_gcs"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("# gs://data")
        # As from an impatient user.
        for _ in range(5):
            process.send_signal(getattr(signal, name))
            time.sleep(0.02)
        assert process.wait(60) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.matrix
def test_quickstart_writes_its_model_to_gs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "_quickstart.py"), str(tmp_path), "--gcs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "model     gs://trial/model" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "digits"}

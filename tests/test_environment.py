"""scripts/_venv.sh, with a stand-in for Python that records what it makes and installs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Its version checks pass, an environment gets a copy of it, and everything else is run by Python.
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
  "-c import"* | "-m pip --version") exit 0 ;;
  --version) echo Python 3.11.0 ;;
  "-m venv "*) echo made >>"$NOTES"; sleep 0.3; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip install"*) echo installed >>"$NOTES"; sleep "$PIP_SECONDS"; eval "$PIP_ENDS" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a script that makes its environment."""
    for name in ("setup.py", "tpudata/_version.py", "scripts/_venv.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    script = tmp_path / "scripts" / "run"
    script.write_text("set -euo pipefail\n. scripts/_venv.sh\nensure_venv .venv dev\necho ready\n")
    python = tmp_path / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name, value in {"PIP_SECONDS": "0.2", "PIP_ENDS": "true", "NOTES": str(tmp_path / "notes")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHON", str(python))
    return tmp_path


def start(project: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "scripts/run"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # The signal may be ignored where the test runs, which a shell inherits.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_concurrent_scripts_make_one_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, the last script starts a second later than the first.
    monkeypatch.setenv("PIP_SECONDS", "3")
    processes = [start(project) for _ in range(3)]
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert all(out.endswith("ready\n") for out, _ in said)
    assert (project / "notes").read_text().split() == ["made", "installed"]
    assert sum("Waiting for another script that makes .venv" in out for out, _ in said) == 2


def test_reports_a_missing_network(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_ENDS", "echo 'WARNING: ... after connection broken by NewConnectionError' >&2; exit 1")
    process = start(project)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "pip reaches no package index. Connect to the network, or name an index" in said.splitlines()[-1]


def test_an_interrupted_installation_exits_130_and_can_continue(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_SECONDS", "30")
    process = start(project)
    deadline = time.monotonic() + 60
    while "installed" not in ((project / "notes").read_text() if (project / "notes").exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("run: interrupted; the next call goes on.\n")
    monkeypatch.setenv("PIP_SECONDS", "0")
    process = start(project)
    assert process.communicate(timeout=60)[0].endswith("ready\n")

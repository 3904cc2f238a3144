"""Processes that tests start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def assert_nobody_is_left(group: int) -> None:
    """Wait, a few seconds at most, until a process group has no process any more."""
    deadline = time.monotonic() + 3
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        pytest.fail(f"process group {group} is still there")


def ends_while_it_loads(package: str, folder: Path, module: str, *words: str) -> int:
    """Return the exit code of a module that is run with a lifeline, which is cut while the module imports a package."""
    fake = folder / package
    fake.mkdir()
    (fake / "__init__.py").write_text(
        "import pathlib, time; pathlib.Path(__file__).with_name('loads').touch(); time.sleep(60)"
    )
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(reader), *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
            pass_fds=[reader],
        )
        deadline = time.monotonic() + 30
        while not (fake / "loads").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None
    finally:
        os.close(writer)
        os.close(reader)
    return process.wait(10)

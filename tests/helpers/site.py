"""The built site, once for all processes of a run of the tests."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.markdown import ROOT


def build_site(factory: pytest.TempPathFactory) -> Path:
    """Build the site as scripts/docs does, unless another process of this run has, and return its folder."""
    base = factory.getbasetemp()
    # The folder of pytest-xdist's workers is in that of the run.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"]
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            )
            assert done.returncode == 0, done.stderr
    return folder

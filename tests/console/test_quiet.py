from __future__ import annotations

import os
import subprocess
import sys

import pytest

LINES = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795222596.789387   16881 port.cc:153] oneDNN custom operations are on.",
    "2025-09-17 14:44:05.157831: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers",
    "E0000 00:00:1795222673.583001   17986 cuda_platform.cc:52] failed call to cuInit",
    "2025-09-17 14:44:05.176998: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:467] Unable to register",
    "In other words",
    "Traceback (most recent call last):",
]
PROGRAM = """
import os, sys
from tpudata.console.quiet import quiet_loading
with quiet_loading():
    os.write(2, sys.argv[1].encode())
    print("from Python", file=sys.stderr)
    if len(sys.argv) > 2:
        raise SystemExit(sys.argv[2])
print("after", file=sys.stderr)
print(os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""


def _run(*words: str, level: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    if level is not None:
        environment["TF_CPP_MIN_LOG_LEVEL"] = level
    return subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, env=environment)


def test_drops_information_and_keeps_warnings() -> None:
    done = _run("\n".join(LINES) + "\n")
    assert done.stderr.splitlines() == [*LINES[3:], "from Python", "after"]
    assert done.stdout == "3\n"


@pytest.mark.parametrize("level", ["0", "2"])
def test_keeps_the_log_level_that_the_user_set(level: str) -> None:
    done = _run("\n".join(LINES) + "\n", level=level)
    assert done.stderr.splitlines() == [*LINES, "from Python", "after"]
    assert done.stdout == f"{level}\n"


def test_shows_all_output_before_an_error() -> None:
    done = _run("In the middle\n", "failed")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["In the middle", "from Python", "failed"]


def test_beam_without_its_gcp_extra_loads_silently() -> None:
    # As with plain apache-beam: no apitools, and a google.cloud that has only what googleapis-common-protos brings.
    program = """
import sys, types
sys.modules["apitools"] = None
sys.modules["google.cloud"] = types.ModuleType("google.cloud")
from tpudata.cli import main
sys.exit(max(main([*words, "--help"]) for words in (["convert", "images"], ["convert", "text"], ["reshard"])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: tpudata")
    assert done.stdout.count("usage: tpudata") == 3

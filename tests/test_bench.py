"""scripts/bench: programs on little data."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "scripts" / "bench"


def run_program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCH / name), *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        pytest.param("text.py", ["{}"], "{}: no documents (expected ", marks=pytest.mark.matrix),
        ("convert.py", ["--pictures={}"], "--pictures {}: no files (expected "),
        ("convert.py", ["--sizes=20,20"], "--sizes 20,20: too few (expected "),
    ],
)
def test_reports_data_that_is_too_little_in_one_line(
    name: str, arguments: list[str], message: str, tmp_path: Path
) -> None:
    process = run_program(name, *(argument.format(tmp_path) for argument in arguments))
    assert process.returncode == 2, process.stderr
    assert process.stderr.splitlines()[-1].startswith(f"{name}: error: {message.format(tmp_path)}")


@pytest.mark.matrix
def test_the_rate_of_few_objects_counts_no_more_than_there_are() -> None:
    process = run_program("gcs.py", "convert", "--objects=10", "--latency=50")
    assert process.returncode == 0, process.stderr
    rate = re.search(r"one by one.* (\d+) +1\.0$", process.stdout, re.MULTILINE)
    assert rate is not None, process.stdout
    # Each request takes 50 ms or more.
    assert 0 < int(rate[1]) <= 20

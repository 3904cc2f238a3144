"""A conversion ends soon after SIGTERM or Ctrl-C, whatever it is doing, and leaves nobody and nothing that --resume cannot use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beam_jobs.images import run
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.processes import assert_nobody_is_left

ROOT = Path(__file__).parents[2]
MOMENTS = 20
# What is promised, in seconds; a hang takes minutes.
SOON = 10
# Signals, and shares of an undisturbed run: workers start, then work.
FEW = ((signal.SIGTERM, 0.3), (signal.SIGTERM, 0.7), (signal.SIGINT, 0.5))
WORDS = {signal.SIGTERM: "tpudata: ended by SIGTERM", signal.SIGINT: "tpudata: interrupted"}


def command(source: Path, output: Path, *flags: str) -> list[str]:
    return [
        *(sys.executable, "-m", "tpudata", "convert", "images", "--input", str(source), "--output", str(output)),
        *("--num-shards", "40", "--workers", "2", *flags),
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("interrupted") / "in", 240)


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float]:
    """The digests of a whole run, and how many seconds it takes."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    started = time.monotonic()
    subprocess.run(command(source, output), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return digests(output), time.monotonic() - started


def interrupt(
    source: Path, output: Path, undisturbed: tuple[dict[str, str], float], number: signal.Signals, share: float
) -> None:
    """Interrupts a run after a share of its time, and checks what it leaves."""
    whole, seconds = undisturbed
    job = subprocess.Popen(
        command(source, output),
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        job.wait(share * seconds)
    except subprocess.TimeoutExpired:
        # A terminal sends Ctrl-C to all processes of the group, and `kill` sends SIGTERM to one.
        (os.killpg if number == signal.SIGINT else os.kill)(job.pid, number)
    try:
        _, errors = job.communicate(timeout=SOON)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        pytest.fail(f"{number.name} after {share:.0%} of the time: still there after {SOON} s")
    assert_nobody_is_left(job.pid)
    # Until the job watches for signals itself, they do what they do to any Python program.
    assert job.returncode in (0, 128 + number, -number), errors
    if job.returncode == 128 + number:
        assert errors == f"{WORDS[number]}\n"
    assert not [*output.rglob(".*")]
    run(["--input", str(source), "--output", str(output), "--num-shards", "40", "--resume"])
    assert digests(output) == whole


@pytest.mark.parametrize(("number", "share"), FEW)
def test_ends_soon(
    source: Path,
    tmp_path: Path,
    undisturbed: tuple[dict[str, str], float],
    number: signal.Signals,
    share: float,
) -> None:
    interrupt(source, tmp_path / "out", undisturbed, number, share)


@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_ends_soon_at_any_moment(
    source: Path,
    tmp_path: Path,
    undisturbed: tuple[dict[str, str], float],
    number: signal.Signals,
    moment: int,
) -> None:
    interrupt(source, tmp_path / "out", undisturbed, number, moment / MOMENTS)

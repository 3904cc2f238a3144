"""SIGTERM and Ctrl-C end a conversion soon, with all its processes, and it can be resumed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from beam_jobs.images import run
from tests.helpers import forked
from tests.helpers.forked import Forked
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.processes import assert_nobody_is_left

MOMENTS = 20
# Seconds in which an interrupted run has ended on a busy machine, too.
SOON = 60
# Signals, and shares of an undisturbed run: workers start, then work.
FEW = ((signal.SIGTERM, 0.7), (signal.SIGINT, 0.4))
WORDS = {signal.SIGTERM: "tpudata: ended by SIGTERM", signal.SIGINT: "tpudata: interrupted"}


def started(source: Path, output: Path) -> Forked:
    words = ("convert", "images", "--input", str(source), "--output", str(output), "--num-shards", "40")
    return Forked("-m", "tpudata", *words, "--workers", "2", leads_group=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("interrupted") / "in", 120)


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float]:
    """The digests of a whole run, and how many seconds it takes."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    # The process that all are forked from takes its time.
    forked.run("-c", "pass")
    began = time.monotonic()
    with started(source, output) as job:
        assert job.wait() == 0
    return digests(output), time.monotonic() - began


def interrupt(
    source: Path, output: Path, undisturbed: tuple[dict[str, str], float], number: signal.Signals, share: float
) -> None:
    """Interrupts a run after a share of its time, and checks what it leaves."""
    whole, seconds = undisturbed
    with started(source, output) as job:
        begun = time.monotonic()
        while job.returncode is None and time.monotonic() < begun + share * seconds:
            time.sleep(0.01)
        if job.returncode is None:
            # A terminal sends Ctrl-C to all processes of the group, and `kill` sends SIGTERM to one.
            (os.killpg if number == signal.SIGINT else os.kill)(job.pid, number)
        code = job.wait(SOON)
        assert_nobody_is_left(job.pid)
        # Until the job watches for signals itself, they do what they do to any Python program.
        assert code in (0, 128 + number, -number), job.stderr
        if code == 128 + number:
            assert job.stderr == f"{WORDS[number]}\n"
    assert not [*output.rglob(".*")]
    run(["--input", str(source), "--output", str(output), "--num-shards", "40", "--resume"])
    assert digests(output) == whole


@pytest.mark.cases(1)
@pytest.mark.parametrize(("number", "share"), FEW)
def test_an_interrupt_ends_a_command_soon(
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
def test_an_interrupt_ends_a_command_soon_at_any_moment(
    source: Path,
    tmp_path: Path,
    undisturbed: tuple[dict[str, str], float],
    number: signal.Signals,
    moment: int,
) -> None:
    interrupt(source, tmp_path / "out", undisturbed, number, moment / MOMENTS)

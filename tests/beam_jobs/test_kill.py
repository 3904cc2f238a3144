"""A run that is killed and resumed ends with the bytes of an undisturbed run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.forked import Forked
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.processes import assert_nobody_is_left

MOMENTS = 4


class Jobs:
    """The job of a module with some flags, in processes that are run to their end or killed."""

    def __init__(self, module: str, *flags: str) -> None:
        self._module, self._flags = module, flags

    def run(
        self, output: Path, *flags: str, kill_after: float | None = None, shards: int = 0, group: bool = True
    ) -> tuple[int, bool]:
        """Run the job.

        Args:
            output: of the job.
            flags: more of them.
            kill_after: seconds after which it is killed, once it has so many `shards`; None lets it end.
            shards: number of shards in `output` that the kill waits for.
            group: whether all its processes are killed, or the first one alone.

        Returns:
            Its process id, and whether it was killed.
        """
        words = ("-m", self._module, *self._flags, f"--output={output}", *flags)
        with Forked(*words, leads_group=True) as job:
            if kill_after is not None:
                time.sleep(kill_after)
                while job.returncode is None and len([*output.glob("*.tfrecord")]) < shards:
                    time.sleep(0.01)
                while job.returncode is None and os.getpgid(job.pid) != job.pid:
                    time.sleep(0.01)
                # It may have ended, and be known to.
                with contextlib.suppress(ProcessLookupError):
                    (os.killpg if group else os.kill)(job.pid, signal.SIGKILL)
            status = job.wait()
            assert status in (0, -signal.SIGKILL), job.output
            return job.pid, status != 0


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    source = make_pictures(tmp_path_factory.mktemp("killed") / "in", 240)
    for name in ("cat/x.jpg", "dog/y.png", "eel/z.jpg"):
        (source / name).write_bytes(b"no picture")
    bad = ("--on-bad-record", "skip", "--max-bad-records", "5")
    return Jobs("beam_jobs.images", f"--input={source}", "--num-shards=40", *bad)


@pytest.fixture(scope="module")
def undisturbed(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    jobs.run(output)
    whole = digests(output)
    # 40 shards with an index each, rejects, labels, two TFDS files, the manifest.
    assert len(whole) > 40 + 40 + 4
    assert not [name for name in whole if "/." in f"/{name}"]
    return whole


@pytest.mark.matrix
def test_keeps_bytes_after_kills_at_many_moments(jobs: Jobs, undisturbed: dict[str, str], tmp_path: Path) -> None:
    chance = random.Random(0)
    kills = 0
    output = tmp_path / "out"
    for moment in range(MOMENTS):
        killed = False
        while not killed:
            # Some time into the run, but not before it has come so far: a resumed run has less and less to do.
            delay, shards = chance.uniform(0, 0.3), moment * 40 // MOMENTS
            pid, killed = jobs.run(output, "--resume", kill_after=delay, shards=shards)
            assert_nobody_is_left(pid)
            kills += killed
            if not killed:
                # It was done before the kill came. A new output has all to do.
                assert digests(output) == undisturbed
                output = tmp_path / f"{moment}-{kills}-{delay}"
    jobs.run(output, "--resume")
    assert digests(output) == undisturbed
    assert kills == MOMENTS


def test_keeps_bytes_after_a_kill_of_two_workers(jobs: Jobs, undisturbed: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    # The process that started the workers is killed, which then have to notice.
    pid, killed = jobs.run(output, "--resume", "--workers=2", kill_after=0, shards=6, group=False)
    assert killed
    assert_nobody_is_left(pid)
    assert not (output / "manifest.json").exists()
    jobs.run(output, "--resume", "--workers=2")
    assert digests(output) == undisturbed

"""A run that is killed and resumed ends with the bytes of a run that nobody disturbed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.pictures import digests, make_pictures
from tests.helpers.processes import assert_nobody_is_left

ROOT = Path(__file__).parents[2]
MOMENTS = 8
CHAINS = 2
# Imports what a job needs once, and runs each job in a process group of its own, forked from here; importing takes longer than
# a run does. A line of JSON in: {"argv", "kill_after" (seconds or null), "shards", "output", "group"}; a line out: {"pid",
# "status", "seconds"}. The kill comes when the seconds are over and the output has that many shards.
SERVER = """
import importlib, json, os, pathlib, signal, sys, time
job_module = importlib.import_module(sys.argv[1])
from tpudata.console.process import run_command
for line in sys.stdin:
    job = json.loads(line)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(run_command(job_module.run, job["argv"]))
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # It ended already, or is its own group's leader.
    if job["kill_after"] is not None:
        time.sleep(job["kill_after"])
        while time.monotonic() < started + 60 and len([*pathlib.Path(job["output"]).glob("*.tfrecord")]) < job["shards"]:
            time.sleep(0.01)
        (os.killpg if job["group"] else os.kill)(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps({"pid": pid, "status": status, "seconds": time.monotonic() - started}), flush=True)
"""


class Jobs:
    """Runs the job of a module with some flags, whole or killed."""

    def __init__(self, module: str, source: Path | None, *flags: str) -> None:
        self._flags = [*([] if source is None else ["--input", str(source)]), *flags]
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, module], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(
        self, output: Path, *flags: str, kill_after: float | None = None, shards: int = 0, group: bool = True
    ) -> tuple[dict[str, Any], bool]:
        """What became of the job, and whether it was killed."""
        argv = [*self._flags, "--output", str(output), *flags]
        job = {"argv": argv, "kill_after": kill_after, "shards": shards, "output": str(output), "group": group}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(job)}\n")
        self._server.stdin.flush()
        done = json.loads(self._server.stdout.readline())
        killed = done["status"] == -signal.SIGKILL
        assert killed or done["status"] == 0
        return done, killed

    def close(self) -> None:
        with self._server:
            assert self._server.stdin is not None
            self._server.stdin.close()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    source = make_pictures(tmp_path_factory.mktemp("killed") / "in", 240)
    for name in ("cat/x.jpg", "dog/y.png", "eel/z.jpg"):
        (source / name).write_bytes(b"no picture")
    bad = ("--on-bad-record", "skip", "--max-bad-records", "5")
    started = Jobs("beam_jobs.images", source, "--num-shards", "40", *bad)
    yield started
    started.close()


@pytest.fixture(scope="module")
def undisturbed(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    jobs.run(output)
    whole = digests(output)
    # 40 shards with an index each, rejects, labels, two TFDS files, the manifest.
    assert len(whole) > 40 + 40 + 4
    assert not [name for name in whole if "/." in f"/{name}"]
    return whole


def test_killed_at_many_moments_and_resumed(jobs: Jobs, undisturbed: dict[str, str], tmp_path: Path) -> None:
    chance = random.Random(0)
    kills = 0
    for chain in range(CHAINS):
        output = tmp_path / str(chain)
        for moment in range(chain, MOMENTS, CHAINS):
            killed = False
            while not killed:
                # Some time into the run, but not before it has come so far: a resumed run has less and less to do.
                delay, shards = chance.uniform(0, 0.3), moment * 40 // MOMENTS
                done, killed = jobs.run(output, "--resume", kill_after=delay, shards=shards)
                assert_nobody_is_left(done["pid"])
                kills += killed
                if not killed:
                    # It was done before the kill came. A new output has all to do.
                    assert digests(output) == undisturbed
                    output = tmp_path / f"{chain}-{moment}-{kills}-{delay}"
        jobs.run(output, "--resume")
        assert digests(output) == undisturbed
    assert kills == MOMENTS


def test_two_workers_killed_and_resumed(jobs: Jobs, undisturbed: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    # With the group, all are killed at once; without, the process that started the workers, which then have to notice.
    for shards, group in ((2, True), (12, False)):
        done, killed = jobs.run(output, "--resume", "--workers", "2", kill_after=0, shards=shards, group=group)
        assert killed
        assert_nobody_is_left(done["pid"])
    assert not (output / "manifest.json").exists()
    jobs.run(output, "--resume", "--workers", "2")
    assert digests(output) == undisturbed

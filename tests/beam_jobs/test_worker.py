"""A worker process ends with the process that started it, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import pathlib, sys, time
import apache_beam as beam
from beam_jobs.runner import new_pipeline, pipeline_options, run_pipeline

def work(folder):
    pathlib.Path(folder, "begun").touch()
    time.sleep(30)

pipeline = new_pipeline(pipeline_options([], 2)[0])
_ = pipeline | beam.Create([sys.argv[1]]) | beam.Map(work)
run_pipeline(pipeline)
"""


def test_a_worker_in_the_middle_of_work_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    job = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "begun").exists()
    job.kill()
    job.wait()
    deadline = time.monotonic() + 5
    try:
        while time.monotonic() < deadline:
            os.killpg(job.pid, 0)
            time.sleep(0.05)
    except ProcessLookupError:
        return
    os.killpg(job.pid, signal.SIGKILL)
    pytest.fail("a worker went on for 5 seconds without its parent")

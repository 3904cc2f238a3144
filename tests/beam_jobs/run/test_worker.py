"""A worker process ends with the process that started it, and a run ends with an error when a worker is lost.

The limit on workers depends on the cores of the machine, so its test reads it.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions

from tests.beam_jobs.pipelines import local_pipeline, run_pipeline
from tests.helpers.forked import Forked
from tests.helpers.processes import ROOT, assert_nobody_is_left, ends_while_it_loads, wait_for
from tpudata.console.process import compute_max_workers
from tpudata.errors import TpudataError

PROGRAM = """
import pathlib, sys, time
import apache_beam as beam
from tests.beam_jobs.pipelines import local_pipeline, run_pipeline

def work(folder):
    pathlib.Path(folder, "begun").touch()
    time.sleep(30)

pipeline = local_pipeline(2)
_ = pipeline | beam.Create([sys.argv[1]]) | beam.Map(work)
run_pipeline(pipeline)
"""


# tests/beam_jobs/test_kill.py kills the parent of workers that convert.
@pytest.mark.matrix
def test_a_busy_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    with Forked("-c", PROGRAM, str(tmp_path), leads_group=True) as job:
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / "begun").exists()
        job.kill()
        assert_nobody_is_left(job.pid)


def test_a_loading_worker_ends_with_its_lifeline(tmp_path: Path) -> None:
    assert ends_while_it_loads("apache_beam", tmp_path, "beam_jobs.run.worker") == 1


def test_a_killed_worker_fails_the_run() -> None:
    pipeline = local_pipeline(2)
    _ = pipeline | beam.Create([signal.SIGKILL]) | beam.Map(lambda number: os.kill(os.getpid(), number))
    with pytest.raises(TpudataError, match=r"worker process \d+ was ended by SIGKILL\..* fewer --workers"):
        run_pipeline(pipeline)


def test_a_worker_killed_while_others_wait_for_its_output_fails_the_run() -> None:
    pipeline = local_pipeline(2)
    _ = (
        pipeline
        | beam.Create([signal.SIGKILL])
        | beam.Map(lambda number: os.kill(os.getpid(), number))
        | beam.Reshuffle()
        | beam.Map(print)
    )
    with pytest.raises(TpudataError, match=r"worker process \d+ was ended by SIGKILL\."):
        run_pipeline(pipeline)


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [("os.kill(os.getpid(), 9)", "was ended by SIGKILL"), ("sys.exit(3)", "ended with the exit code 3")],
)
def test_a_worker_that_ends_before_it_connects_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, outcome: str
) -> None:
    library = tmp_path / "apache_beam"
    library.mkdir()
    (library / "__init__.py").write_text(f"import os, sys\n{ends}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT))))
    pipeline = local_pipeline(2)
    _ = pipeline | beam.Create([1]) | beam.Reshuffle() | beam.Map(print)
    with pytest.raises(TpudataError, match=rf"worker process \d+ {outcome}\."):
        run_pipeline(pipeline)


def test_workers_run_no_files_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "types.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    pipeline = local_pipeline(2)
    _ = pipeline | beam.Create([1]) | beam.Map(print)
    run_pipeline(pipeline)


def test_workers_import_from_the_path_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    pipeline = local_pipeline(2)
    _ = pipeline | beam.Create(["only_here"]) | beam.Map(lambda name: importlib.import_module(name).__name__)
    run_pipeline(pipeline)


# Stands in for Beam, which workers import for seconds.
LOADS = """
import os, pathlib, time
pathlib.Path(__file__).with_name(f"begun{os.getpid()}").touch()
time.sleep(600)
"""


def test_an_interrupted_run_does_not_wait_for_loading_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "apache_beam"
    library.mkdir()
    (library / "__init__.py").write_text(LOADS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT))))
    pipeline = local_pipeline(4)
    _ = pipeline | beam.Create([1])
    # It would otherwise wait 5 s for each of them.
    expired: list[subprocess.Popen[bytes]] = []
    wait = subprocess.Popen.wait

    def watch(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        try:
            return wait(process, timeout)
        except subprocess.TimeoutExpired:
            expired.append(process)
            raise

    monkeypatch.setattr(subprocess.Popen, "wait", watch)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_for(lambda: len(list(library.glob("begun*"))) == 4)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(pipeline)
    assert not expired


def test_starts_at_most_4_workers_per_core(caplog: pytest.LogCaptureFixture) -> None:
    # tests/beam_jobs/run/test_progress.py has a run with fewer parts.
    pipeline = local_pipeline(1000, max_parts=10**6)
    assert pipeline.options.view_as(DirectOptions).direct_num_workers == compute_max_workers()
    assert caplog.messages == [f"--workers 1000: {compute_max_workers()} are started, 4 for each core."]

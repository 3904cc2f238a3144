"""Dataflow jobs against a fake service on loopback: the submitted job, and the report of each outcome.

Tests run the recorded graph in this process, in place of Dataflow's workers.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.dataflow import dataflow_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import tpudata
from beam_jobs.images import run
from scripts.fake_gcs import FakeGcs
from tests.beam_jobs.run.test_runner import NO_FREEZE
from tests.beam_jobs.test_gs import stored
from tests.helpers.fake_dataflow import IMPATIENT, JOB_ID, FakeDataflow
from tests.helpers.forked import Forked
from tests.helpers.pictures import make_pictures
from tests.helpers.processes import wait_for
from tests.helpers.stores import serve_gs
from tpudata.cli import main
from tpudata.errors import OutputError, TpudataError

URL = f"https://console.cloud.google.com/dataflow/jobs/us-central1/{JOB_ID}?project=p"
PROGRAM = """
import sys
from apache_beam.runners.dataflow import dataflow_runner
from tests.helpers.fake_dataflow import IMPATIENT
from tpudata.cli import main
dataflow_runner.time = IMPATIENT
sys.exit(main(sys.argv[1:]))
"""
# As the API numbers states.
CANCELLED = 5
CLAIM = "out/.tpudata-claim"
OWN = """Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1500, in process
tpudata.errors.BadRecordError: gs://b/in/cat/bad.png: rejected: unknown image format [while running 'WriteShards-ptransform-31']
"""
FAULT = """Traceback (most recent call last):
  File "x.py", line 3, in y
ZeroDivisionError: division by zero [while running 'WriteShards-ptransform-31']

Note: imports, functions and other variables defined in the global context of your __main__ file are not kept.
"""
AGAIN = "Run again with --resume to convert the rest."
ENDS = {
    "rejected": ("FAILED", OWN, "gs://b/in/cat/bad.png: rejected: unknown image format"),
    "fault": (
        "FAILED",
        FAULT,
        f"job {JOB_ID} ({URL}): ended as FAILED: ZeroDivisionError: division by zero (in step WriteShards-ptransform-31). {AGAIN}",
    ),
    "lost": (
        "FAILED",
        "Workflow failed. Causes: The worker lost contact with the service.",
        f"job {JOB_ID} ({URL}): a worker was lost (ended as FAILED: Workflow failed. Causes: The worker lost contact with the"
        f" service). If memory ran out, use larger or fewer workers. {AGAIN}",
    ),
    "cancelled": ("CANCELLED", None, f"job {JOB_ID} ({URL}): ended as CANCELLED. {AGAIN}"),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures") / "in", 24)


@pytest.fixture(scope="module")
def here(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The dataset of the local runner."""
    with serve_gs() as store:
        fill(store, pictures)
        assert run(["--input=gs://b/in", "--output=gs://b/out", "--num-shards=4"]) == 0
        return stored(store, tmp_path_factory.mktemp("here"), "out")


@pytest.fixture
def store(pictures: Path) -> Iterator[FakeGcs]:
    with serve_gs() as server:
        fill(server, pictures)
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Beam in this process ask Dataflow often."""
    monkeypatch.setattr(dataflow_runner, "time", IMPATIENT)


@pytest.fixture
def dataflow() -> Iterator[FakeDataflow]:
    with FakeDataflow() as service:
        yield service


def fill(store: FakeGcs, pictures: Path) -> None:
    store.bucket("b")
    for path in pictures.rglob("*.*"):
        store.put("b", f"in/{path.relative_to(pictures)}", path.read_bytes())


def argv(dataflow: FakeDataflow, *flags: str) -> list[str]:
    return [
        *("--input=gs://b/in", "--output=gs://b/out", "--num-shards=4", "--runner=dataflow", "--project=p"),
        *("--region=us-central1", "--temp_location=gs://b/tmp", f"--dataflow_endpoint={dataflow.url}", "--no_auth"),
        NO_FREEZE,
        *flags,
    ]


def staged(store: FakeGcs, name: str) -> bytes:
    (found,) = [path for path in store.buckets["b"] if path.startswith("tmp/") and path.endswith(name)]
    return bytes(store.buckets["b"][found].data)


def graph(store: FakeGcs) -> Any:
    return beam_runner_api_pb2.Pipeline.FromString(staged(store, "/pipeline.pb"))


def work(store: FakeGcs) -> None:
    """Run the recorded graph, its steps in this process in place of Dataflow's containers."""
    pipeline = graph(store)
    for environment in pipeline.components.environments.values():
        environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
        del environment.dependencies[:]
    FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([])).wait_until_finish()


def test_submits_the_job_and_warns_of_workers_that_cannot_reach_pypi(
    store: FakeGcs, dataflow: FakeDataflow, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--service_account_email=w@p.iam.gserviceaccount.com", "--machine_type=n2-standard-4", "--num_workers=3"]
    flags += ["--max_num_workers=40", "--disk_size_gb=30", "--label=team=vision", "--no_use_public_ips"]
    assert (
        run(argv(dataflow, *flags, "--job_name=pictures", "--autoscaling_algorithm=THROUGHPUT_BASED", "--detach")) == 0
    )
    # Before the submission: the job would fail when its workers start.
    warning, submitted = capsys.readouterr().err.splitlines()
    assert warning.startswith(
        "tpudata: warning: --no_use_public_ips: each worker installs tpudata's requirements from PyPI"
    )
    assert "--sdk_container_image=IMAGE" in warning
    assert "is submitted" in submitted
    assert dataflow.path == "/v1b3/projects/p/locations/us-central1/jobs"
    job, environment = dataflow.job, dataflow.job["environment"]
    assert (job["name"], job["type"], job["labels"]) == ("pictures", 1, {"team": "vision"})
    assert environment["serviceAccountEmail"] == "w@p.iam.gserviceaccount.com"
    (pool,) = environment["workerPools"]
    assert (pool["machineType"], pool["numWorkers"], pool["diskSizeGb"]) == ("n2-standard-4", 3, 30)
    assert pool["autoscalingSettings"] == {"algorithm": 2, "maxNumWorkers": 40}
    assert pool["ipConfiguration"] == 2
    packages = {package["name"]: package["location"] for package in pool["packages"]}
    (wheel,) = [name for name in packages if name.startswith("tpudata-")]
    assert packages[wheel].startswith("storage.googleapis.com/b/tmp/pictures.")
    assert staged(store, f"/{wheel}")[:2] == b"PK"
    options = environment["sdkPipelineOptions"]["options"]
    assert (options["project"], options["region"]) == ("p", "us-central1")
    assert "beam_fn_api" in options["experiments"]
    assert options["pipelineUrl"].startswith("gs://b/tmp/pictures.")
    steps = {step.unique_name for step in graph(store).components.transforms.values()}
    assert {"ListUnits", "List", "Tally", "Plan", "Context", "WriteDataset"} <= steps
    inside = {name.removeprefix("WriteDataset/") for name in steps if name.startswith("WriteDataset/")}
    assert {"GroupByShard", "WriteShards", "Complete", "WriteMetadata"} <= inside


@pytest.mark.matrix
def test_waits_for_a_job_and_writes_the_bytes_of_the_local_runner(
    store: FakeGcs,
    dataflow: FakeDataflow,
    impatient: None,
    here: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataflow.states = ["JOB_STATE_RUNNING"]
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run, argv(dataflow))
        wait_for(lambda: CLAIM in store.buckets["b"] and JOB_ID.encode() in store.buckets["b"][CLAIM].data)
        work(store)
        dataflow.states = ["JOB_STATE_DONE"]
        assert running.result(60) == 0
    said = capsys.readouterr()
    assert said.err == f"tpudata: job {JOB_ID} ({URL}) is submitted\n"
    assert said.out.startswith("gs://b/out: 24 records, 3 classes in ")
    assert stored(store, tmp_path, "out") == here


@pytest.mark.matrix
def test_a_detached_job_claims_its_output_until_its_last_step(
    store: FakeGcs, dataflow: FakeDataflow, here: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv(dataflow, "--detach")) == 0
    said = capsys.readouterr()
    assert said.err == f"tpudata: job {JOB_ID} ({URL}) is submitted, and goes on without this process\n"
    assert "`tpudata inspect gs://b/out`" in said.out
    assert json.loads(store.buckets["b"][CLAIM].data)["job"]["id"] == JOB_ID
    with pytest.raises(OutputError, match=r"another run is at work there \(.*job 2026-01-31.*console\.cloud"):
        run(argv(dataflow, "--resume"))
    # Another runner does not ask Dataflow.
    with pytest.raises(OutputError, match=r"may still be running.*remove gs://b/out/\.tpudata-claim"):
        run(["--input=gs://b/in", "--output=gs://b/out", "--num-shards=4", "--resume"])
    work(store)
    assert CLAIM not in store.buckets["b"]
    assert stored(store, tmp_path, "out") == here
    assert main(["verify", "gs://b/out"]) == 0


def test_resume_takes_over_from_a_failed_job(store: FakeGcs, dataflow: FakeDataflow) -> None:
    assert run(argv(dataflow, "--detach")) == 0
    first = json.loads(store.buckets["b"][CLAIM].data)["run"]
    dataflow.states = ["JOB_STATE_FAILED"]
    assert run(argv(dataflow, "--detach", "--resume", "--job_name=again")) == 0
    assert dataflow.job["name"] == "again"
    assert json.loads(store.buckets["b"][CLAIM].data)["run"] != first


def command(store: FakeGcs, dataflow: FakeDataflow) -> Forked:
    words = ("convert", "images", *argv(dataflow))
    return Forked("-c", PROGRAM, *words, environment={"STORAGE_EMULATOR_HOST": store.url})


def outcome(pictures: Path, end: str) -> tuple[int, list[str], bool]:
    """Return the exit code of a job that ends so, the lines on stderr, and whether the claim stays."""
    state, error, _ = ENDS[end]
    with FakeGcs() as store, FakeDataflow() as dataflow:
        fill(store, pictures)
        dataflow.states, dataflow.error = ["JOB_STATE_RUNNING", f"JOB_STATE_{state}"], error
        with command(store, dataflow) as process:
            code = process.wait(120)
            return code, process.stderr.splitlines(), CLAIM in store.buckets["b"]


def test_reports_each_end_of_a_job_in_one_line(pictures: Path) -> None:
    with ThreadPoolExecutor() as pool:
        found = dict(zip(ENDS, pool.map(lambda end: outcome(pictures, end), ENDS), strict=True))
    submitted = f"tpudata: job {JOB_ID} ({URL}) is submitted"
    assert found == {end: (1, [submitted, f"tpudata: error: {line}"], False) for end, (_, _, line) in ENDS.items()}


def is_waited_for(store: FakeGcs, dataflow: FakeDataflow) -> bool:
    """Return whether the claim has the job, and its command has asked for the job's state."""
    objects = store.buckets["b"]
    return dataflow.questions > 0 and CLAIM in objects and JOB_ID.encode() in objects[CLAIM].data


def test_an_interrupt_cancels_the_job(store: FakeGcs, dataflow: FakeDataflow) -> None:
    dataflow.states = ["JOB_STATE_RUNNING"]
    with command(store, dataflow) as process:
        wait_for(lambda: is_waited_for(store, dataflow))
        process.send_signal(signal.SIGINT)
        code, errors = process.wait(60), process.stderr
    assert code == 130
    assert dataflow.asked_for == [CANCELLED]
    assert errors.splitlines()[1:-1] == [
        f"tpudata: cancelling job {JOB_ID} ({URL})",
        f"tpudata: job {JOB_ID} ({URL}) has ended; run again with --resume to convert the rest",
    ]
    assert CLAIM not in store.buckets["b"]


@pytest.mark.matrix
def test_a_job_that_cannot_be_cancelled_goes_on_and_keeps_its_claim(store: FakeGcs, dataflow: FakeDataflow) -> None:
    dataflow.states = ["JOB_STATE_RUNNING"]
    with command(store, dataflow) as process:
        wait_for(lambda: is_waited_for(store, dataflow))
        dataflow.is_lost = True
        process.send_signal(signal.SIGTERM)
        code, errors = process.wait(60), process.stderr
    assert code == 143
    assert re.search(
        rf"^tpudata: job {JOB_ID} \(.*\) was not cancelled and goes on: .*no permission", errors, re.MULTILINE
    )
    assert JOB_ID.encode() in store.buckets["b"][CLAIM].data


def test_keeps_the_claim_if_the_connection_is_lost(
    store: FakeGcs, dataflow: FakeDataflow, impatient: None, capsys: pytest.CaptureFixture[str]
) -> None:
    dataflow.is_lost = True
    with pytest.raises(
        TpudataError, match=r"the connection was lost, and the job may go on\. When it has ended"
    ) as found:
        run(argv(dataflow))
    assert "\n" not in str(found.value)
    assert capsys.readouterr().err == f"tpudata: job {JOB_ID} ({URL}) is submitted\n"
    assert JOB_ID.encode() in store.buckets["b"][CLAIM].data


def test_a_rejected_job_leaves_no_claim(store: FakeGcs, dataflow: FakeDataflow) -> None:
    dataflow.rejects = True
    with pytest.raises(
        TpudataError, match=r"^--runner=DataflowRunner could not run the job: .*no permission.*"
    ) as found:
        run(argv(dataflow))
    assert "\n" not in str(found.value)
    assert CLAIM not in store.buckets["b"]


def test_a_call_with_detach_returns_when_the_job_is_submitted(
    store: FakeGcs, dataflow: FakeDataflow, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tpudata")
    place = {"project": "p", "region": "us-central1", "temp_location": "gs://b/tmp"}
    beam_options = {
        **place,
        "dataflow_endpoint": dataflow.url,
        "no_auth": True,
        "experiments": [NO_FREEZE.partition("=")[2]],
    }
    outcome = tpudata.convert_images(
        "gs://b/in", "gs://b/out", runner="dataflow", beam_options=beam_options, num_shards=4, detach=True
    )
    assert outcome is None
    assert graph(store).root_transform_ids
    assert json.loads(store.buckets["b"][CLAIM].data)["job"]["id"] == JOB_ID
    lines = [record.getMessage() for record in caplog.records if record.name == "tpudata"]
    assert lines == [f"job {JOB_ID} ({URL}) is submitted, and goes on without this process"]

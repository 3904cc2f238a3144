"""Jobs of job servers: absent servers, unknown jobs, and counters without values.

A fake server and a fake result stand in for restarted servers and for other engines.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metric import MetricName, MetricResults
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from beam_jobs import images
from beam_jobs.append.new_inputs import count_stored_inputs
from beam_jobs.run.job import job_has_ended, read_job_counts
from beam_jobs.run.runner import parse_beam_flags
from tests.helpers.pictures import make_pictures
from tpudata.errors import TpudataError


def test_reports_an_absent_job_server_after_the_timeout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_pictures(tmp_path / "in", 3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # Nobody listens at the first; the second accepts connections and says nothing.
        for port in (1, silent.getsockname()[1]):
            flags = ["--runner=PortableRunner", f"--job_endpoint=localhost:{port}", "--environment_type=LOOPBACK"]
            with pytest.raises(
                TpudataError, match=rf"--job_endpoint localhost:{port}: no job server answered within 1 s\. Start it"
            ):
                images.run([f"--input={source}", f"--output={tmp_path}/out", "--job_server_timeout=1", *flags])
            assert capsys.readouterr().err == (
                f"tpudata: waiting for the job server localhost:{port}, for 1 s at most\n"
            )
    assert not (tmp_path / "out").exists()


class Server(beam_job_api_pb2_grpc.JobServiceServicer):  # type: ignore[misc]
    """A job server whose jobs have names that say what it answers."""

    def GetState(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return or raise what the job's name says."""
        if request.job_id == "running":
            return beam_job_api_pb2.JobStateEvent(state=beam_job_api_pb2.JobState.RUNNING)
        if request.job_id == "failed":
            return beam_job_api_pb2.JobStateEvent(state=beam_job_api_pb2.JobState.FAILED)
        if request.job_id == "prism":
            context.abort(grpc.StatusCode.UNKNOWN, f"job with id {request.job_id} not found")
        return context.abort(grpc.StatusCode.NOT_FOUND, "Unable to find job")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    beam_job_api_pb2_grpc.add_JobServiceServicer_to_server(Server(), server)
    server.start()
    yield f"localhost:{port}"
    server.stop(None)


@pytest.mark.parametrize(
    ("name", "has_ended"),
    # A job server of Flink or Spark that was restarted knows no job, and the job may go on.
    [("running", False), ("failed", True), ("prism", True), ("flink", None)],
)
def test_unknown_jobs_count_as_ended_only_on_prism(endpoint: str, name: str, has_ended: bool | None) -> None:
    options, _ = parse_beam_flags(["--runner=PortableRunner", f"--job_endpoint={endpoint}"], 1)
    identity = {"runner": "PortableRunner", "id": name, "where": endpoint, "endpoint": endpoint}
    assert job_has_ended(identity, options) is has_ended


class Result:
    """A job with counters of given committed and attempted values."""

    def __init__(self, *values: tuple[int | None, int | None]) -> None:
        self._values = values

    def metrics(self) -> Result:
        return self

    def query(self, _: Any) -> dict[str, list[MetricResult]]:
        keys = [MetricKey(f"step {number}", MetricName("tpudata", "known")) for number in range(len(self._values))]
        return {
            MetricResults.COUNTERS: [MetricResult(key, *value) for key, value in zip(keys, self._values, strict=True)]
        }


@pytest.mark.parametrize(
    ("values", "count", "known"),
    [
        ([(3, 4), (2, None)], 5, 5),
        ([(None, 4), (0, None)], 4, 4),
        ([(0, 7)], 0, 0),
        ([(None, None), (2, 2)], 2, None),
        ([], 0, None),
    ],
)
def test_counts_attempted_values_if_none_are_committed(values: Any, count: int, known: int | None) -> None:
    result: Any = Result(*values)
    assert read_job_counts(result)["known"] == count
    assert count_stored_inputs(result) == known

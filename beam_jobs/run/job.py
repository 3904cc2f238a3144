"""A submitted job: who it is, where to look at it, what it has counted, and whether it has ended.

Its identity is a flat mapping of texts, which the claim on its output holds:

    runner, id      the class of its runner, and the engine's name for it
    where           a page of the engine, or the address of its job server
    endpoint        address of the engine
    project, region of Dataflow's
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Mapping

import grpc
from apache_beam.metrics import MetricsFilter
from apache_beam.metrics.metric import MetricResults
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions, StandardOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.runner import PipelineResult, PipelineState

_DATAFLOW = "DataflowRunner"
_CONSOLE = "https://console.cloud.google.com/dataflow/jobs/{region}/{id}?project={project}"
# An engine that does not answer by then says nothing.
_ANSWER_SECONDS = 10.0
_NAMESPACE = "tpudata"


def job_identity(result: PipelineResult, runner: str, options: PipelineOptions) -> dict[str, str]:
    """Return the identity of a job.

    Args:
        result: of submitting it.
        runner: the name of its class.
        options: with which it was submitted.
    """
    if runner == _DATAFLOW:
        cloud = options.view_as(GoogleCloudOptions)
        place = {"id": result.job_id(), "project": cloud.project, "region": cloud.region}
        return {"runner": runner, **place, "where": _CONSOLE.format(**place), "endpoint": cloud.dataflow_endpoint or ""}
    endpoint = options.view_as(PortableOptions).job_endpoint or ""
    # Portable results have no public name for it; a test fails if Beam renames it.
    name = str(getattr(result, "_job_id", "") or "without a name")
    return {"runner": runner, "id": name, "where": endpoint or runner, "endpoint": endpoint}


def job_text(identity: Mapping[str, str]) -> str:
    """Return how a job is called in messages."""
    return f"job {identity['id']} ({identity['where']})"


def job_counts(result: PipelineResult) -> Counter[str]:
    """Return what the steps of a job have counted so far: records, bytes_read, rejected, shards_written, shards_kept."""
    # Portable results keep the first answer.
    found = copy.copy(result).metrics().query(MetricsFilter().with_namespace(_NAMESPACE))
    counts: Counter[str] = Counter()
    for counter in found[MetricResults.COUNTERS]:
        counts[counter.key.metric.name] += int(counter.result or 0)
    return counts


def is_over(result: PipelineResult) -> bool:
    """Return whether a job is known to have ended."""
    with contextlib.suppress(Exception):
        return bool(PipelineState.is_terminal(result.state))
    return False


def job_has_ended(identity: Mapping[str, str], options: PipelineOptions) -> bool | None:
    """Return whether the job of another run has ended; None if its engine does not say.

    Args:
        identity: of the job.
        options: of this run; only an engine that this run uses, too, is asked.
    """
    if str(options.view_as(StandardOptions).runner).rpartition(".")[2] != identity.get("runner"):
        return None
    with contextlib.suppress(Exception):
        if identity["runner"] == _DATAFLOW:
            return _dataflow_job_has_ended(identity, anonymous=bool(options.view_as(GoogleCloudOptions).no_auth))
        if identity["endpoint"]:
            return _portable_job_has_ended(identity)
    return None


def _dataflow_job_has_ended(identity: Mapping[str, str], *, anonymous: bool) -> bool:
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import dataflow_v1beta3

    # As Beam submits: plain addresses of this machine are servers of tests.
    is_here = "localhost" in identity["endpoint"]
    address = identity["endpoint"] if is_here else identity["endpoint"].partition("://")[2]
    client = dataflow_v1beta3.JobsV1Beta3Client(
        credentials=AnonymousCredentials() if anonymous else None,  # type: ignore[no-untyped-call]
        client_options=ClientOptions(api_endpoint=address.rstrip("/")) if address else None,
        transport="rest" if is_here else None,
    )
    request = dataflow_v1beta3.GetJobRequest(
        project_id=identity["project"], location=identity["region"], job_id=identity["id"]
    )
    state = client.get_job(request, timeout=_ANSWER_SECONDS).current_state.name.removeprefix("JOB_STATE_")
    return bool(PipelineState.is_terminal(state))


def _portable_job_has_ended(identity: Mapping[str, str]) -> bool:
    with grpc.insecure_channel(identity["endpoint"]) as channel:
        request = beam_job_api_pb2.GetJobStateRequest(job_id=identity["id"])
        answer = beam_job_api_pb2_grpc.JobServiceStub(channel).GetState(request, timeout=_ANSWER_SECONDS)
    return bool(PipelineState.is_terminal(beam_job_api_pb2.JobState.Enum.Name(answer.state)))

"""A submitted job: its identity, its web page, its counters, and whether it has ended.

Its identity is a flat mapping of strings, which the claim on its output holds:

    runner, id      the class of its runner, and the engine's name for it
    where           a page of the engine, or the address of its job server, or the runner
    endpoint        address of the engine
    project, region only of a job on Dataflow
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Mapping

import grpc
from apache_beam.metrics import MetricsFilter
from apache_beam.metrics.execution import MetricResult
from apache_beam.metrics.metric import MetricResults
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.runner import PipelineResult, PipelineState

from beam_jobs.run.runner import runner_name
from tpudata.errors import TpudataError

_DATAFLOW = "DataflowRunner"
_CONSOLE = "https://console.cloud.google.com/dataflow/jobs/{region}/{id}?project={project}"
# An engine that does not answer within this time counts as unknown.
_ANSWER_SECONDS = 10.0
_NAMESPACE = "tpudata"
# Beam's own job server, in the process that submits.
EMBEDDED = "embed"
# Time for a job server to answer: until a line reports the wait, and in all without `--job_server_timeout`.
_QUIET_SECONDS, _WAIT_SECONDS = 1.0, 60.0
_UNKNOWN_TO_PRISM = "job with id {} not found"


def identify_job(pipeline_result: PipelineResult, runner: str, options: PipelineOptions) -> dict[str, str]:
    """Return the identity of a job, in the form that the docstring of this module describes.

    Args:
        pipeline_result: result of submitting the job.
        runner: class name of its runner.
        options: options with which it was submitted.
    """
    if runner == _DATAFLOW:
        cloud = options.view_as(GoogleCloudOptions)
        dataflow_job = {"id": pipeline_result.job_id(), "project": cloud.project, "region": cloud.region}
        return {
            "runner": runner,
            **dataflow_job,
            "where": _CONSOLE.format(**dataflow_job),
            "endpoint": cloud.dataflow_endpoint or "",
        }
    endpoint = options.view_as(PortableOptions).job_endpoint or ""
    # Portable results have no public name for the id; a test fails if Beam renames it.
    job_id = str(getattr(pipeline_result, "_job_id", "") or "without a name")
    return {"runner": runner, "id": job_id, "where": endpoint or runner, "endpoint": endpoint}


def describe_job(identity: Mapping[str, str]) -> str:
    """Return the name of a job for messages."""
    return f"job {identity['id']} ({identity['where']})"


def check_job_server(options: PipelineOptions, report: Callable[[str], None]) -> None:
    """Check that the job server of `--job_endpoint` answers, before anything is prepared for it.

    Args:
        options: options of the pipeline; without an endpoint nothing is checked.
        report: called with a line if the server has to be waited for.

    Raises:
        TpudataError: the server did not answer within `--job_server_timeout`.
    """
    portable = options.view_as(PortableOptions)
    endpoint = portable.job_endpoint
    seconds = float(portable.job_server_timeout or _WAIT_SECONDS)
    # Dataflow ignores the endpoint.
    if not endpoint or endpoint == EMBEDDED or runner_name(options) == _DATAFLOW:
        return
    with grpc.insecure_channel(endpoint) as channel:
        ready = grpc.channel_ready_future(channel)
        with contextlib.suppress(grpc.FutureTimeoutError):
            ready.result(min(_QUIET_SECONDS, seconds))
            return
        report(f"waiting for the job server {endpoint}, for {seconds:g} s at most")
        with contextlib.suppress(grpc.FutureTimeoutError):
            ready.result(max(seconds - _QUIET_SECONDS, 0))
            return
        ready.cancel()
    raise TpudataError(
        f"--job_endpoint {endpoint}: no job server answered within {seconds:g} s. Start it or correct the address; "
        "--job_server_timeout=SECONDS waits longer."
    )


def counter_value(counter: MetricResult) -> int | None:
    """Return the value of a counter of a job; None if its engine sent no value.

    An engine may send the committed value, the attempted one, or both; `MetricResult.result` is None if the only
    value is a committed 0.
    """
    value = counter.attempted if counter.committed is None else counter.committed
    return None if value is None else int(value)


def read_job_counts(pipeline_result: PipelineResult) -> Counter[str]:
    """Return the counters of a job's steps so far, such as records, bytes_read, rejected, shards_written and shards_kept."""
    # A portable result caches the first answer, so a copy of it asks the engine again.
    metrics = copy.copy(pipeline_result).metrics().query(MetricsFilter().with_namespace(_NAMESPACE))
    counts: Counter[str] = Counter()
    for counter in metrics[MetricResults.COUNTERS]:
        counts[counter.key.metric.name] += counter_value(counter) or 0
    return counts


def is_over(result: PipelineResult) -> bool:
    """Return whether a job is known to have ended."""
    # A job whose engine does not answer counts as running.
    with contextlib.suppress(Exception):
        return bool(PipelineState.is_terminal(result.state))
    return False


def job_has_ended(identity: Mapping[str, str], options: PipelineOptions) -> bool | None:
    """Return whether the job of another run has ended; None if that is unknown.

    It is unknown if this run has a different runner, or if the job's engine has no known address or does not answer.

    Args:
        identity: identity of the job.
        options: options of this run.
    """
    if runner_name(options) != identity.get("runner"):
        return None
    # Any failure on the way to the engine counts as no answer.
    with contextlib.suppress(Exception):
        if identity["runner"] == _DATAFLOW:
            return _dataflow_job_has_ended(identity, is_anonymous=bool(options.view_as(GoogleCloudOptions).no_auth))
        if identity["endpoint"]:
            return _portable_job_has_ended(identity)
    return None


def _dataflow_job_has_ended(identity: Mapping[str, str], *, is_anonymous: bool) -> bool:
    """Return whether a job is in a terminal state, as Dataflow reports it; with `is_anonymous`, ask without credentials."""
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import dataflow_v1beta3

    # As in Beam's submission, an address on this machine is a test server that speaks plain HTTP.
    is_test_server = "localhost" in identity["endpoint"]
    address = identity["endpoint"] if is_test_server else identity["endpoint"].partition("://")[2]
    client = dataflow_v1beta3.JobsV1Beta3Client(
        credentials=AnonymousCredentials() if is_anonymous else None,  # type: ignore[no-untyped-call]
        client_options=ClientOptions(api_endpoint=address.rstrip("/")) if address else None,
        transport="rest" if is_test_server else None,
    )
    request = dataflow_v1beta3.GetJobRequest(
        project_id=identity["project"], location=identity["region"], job_id=identity["id"]
    )
    state = client.get_job(request, timeout=_ANSWER_SECONDS).current_state.name.removeprefix("JOB_STATE_")
    return bool(PipelineState.is_terminal(state))


def _portable_job_has_ended(identity: Mapping[str, str]) -> bool:
    """Return whether a job's server reports a terminal state, or is a Prism that does not know the job, and so was restarted."""
    with grpc.insecure_channel(identity["endpoint"]) as channel:
        request = beam_job_api_pb2.GetJobStateRequest(job_id=identity["id"])
        try:
            answer = beam_job_api_pb2_grpc.JobServiceStub(channel).GetState(request, timeout=_ANSWER_SECONDS)
        except grpc.RpcError as error:
            # A job of Prism ends with the process of Prism. Jobs of Flink and Spark may outlive their job servers, which send a
            # different message.
            if error.details() == _UNKNOWN_TO_PRISM.format(identity["id"]):
                return True
            raise
    return bool(PipelineState.is_terminal(beam_job_api_pb2.JobState.Enum.Name(answer.state)))

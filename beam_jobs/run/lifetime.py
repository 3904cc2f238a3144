"""Lifetime of a job: it ends with the process that started it, or when its engine is done."""

from __future__ import annotations

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions

from beam_jobs.run.job import EMBEDDED
from beam_jobs.run.places import LOOPBACK, worker_environment
from beam_jobs.run.prism import PRISM
from beam_jobs.run.runner import is_in_process
from tpudata.errors import UsageError


def ends_with_process(options: PipelineOptions) -> bool:
    """Return whether a job ends at the latest when this process does: its engine or all its workers are in it, or end with it."""
    runner, endpoint = _read_runner_and_endpoint(options)
    if is_in_process(runner) or endpoint == EMBEDDED or (runner == PRISM and not endpoint):
        return True
    return worker_environment(options) == LOOPBACK


def outlives_process(options: PipelineOptions) -> bool:
    """Return whether a job is known to go on when this process ends: its engine and its workers are elsewhere."""
    runner, endpoint = _read_runner_and_endpoint(options)
    # Without an endpoint Beam starts a job server, which ends with this process.
    return not ends_with_process(options) and (bool(endpoint) or "dataflow" in runner.lower())


def check_detachable(options: PipelineOptions) -> None:
    """Raise UsageError if a job cannot go on without this process."""
    if not outlives_process(options):
        runner, _ = _read_runner_and_endpoint(options)
        raise UsageError(
            f"--detach: a job of {runner} with these flags ends with this process (expected DataflowRunner, or --job_endpoint of"
            " a server and workers that are not LOOPBACK). Omit --detach, or choose such a runner."
        )


def _read_runner_and_endpoint(options: PipelineOptions) -> tuple[str, str]:
    runner = str(options.view_as(StandardOptions).runner).rpartition(".")[2]
    return runner, options.view_as(PortableOptions).job_endpoint or ""

"""Lifetime of a job: whether it ends with the process that started it, or continues without it."""

from __future__ import annotations

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

from beam_jobs.run.job import EMBEDDED
from beam_jobs.run.places import LOOPBACK, find_worker_environment
from beam_jobs.run.prism import PRISM
from beam_jobs.run.runner import is_in_process, runner_name
from tpudata.errors import UsageError


def ends_with_process(options: PipelineOptions) -> bool:
    """Return whether a job ends at the latest when this process does, since its engine or all its workers end with the process."""
    runner, endpoint = runner_name(options), _read_endpoint(options)
    # Without an endpoint, `start_prism` starts the server of Prism, which then ends with this process.
    if is_in_process(runner) or endpoint == EMBEDDED or (runner == PRISM and not endpoint):
        return True
    return find_worker_environment(options) == LOOPBACK


def outlives_process(options: PipelineOptions) -> bool:
    """Return whether a job is known to continue when this process ends: its engine and its workers are elsewhere."""
    # Without an endpoint Beam starts a job server, which ends with this process.
    has_engine_elsewhere = bool(_read_endpoint(options)) or "dataflow" in runner_name(options).lower()
    return has_engine_elsewhere and not ends_with_process(options)


def check_detachable(options: PipelineOptions) -> None:
    """Raise UsageError if a job cannot continue without this process."""
    if not outlives_process(options):
        runner = runner_name(options)
        raise UsageError(
            f"--detach: a job of {runner} with these flags ends with this process (expected DataflowRunner, or"
            " --job_endpoint of a server and workers that are not LOOPBACK). Omit --detach, or choose such a runner."
        )


def _read_endpoint(options: PipelineOptions) -> str:
    return str(options.view_as(PortableOptions).job_endpoint or "")

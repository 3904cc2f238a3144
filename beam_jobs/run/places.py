"""Access of a runner's workers to the paths of a conversion."""

from __future__ import annotations

import re
from pathlib import Path

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
    StandardOptions,
)

from beam_jobs.run.runner import is_in_process
from tpudata.errors import UsageError
from tpudata.storage import is_remote
from tpudata.storage.local.file_urls import local_path

# Workers of these environments are processes on machines that a person has set up; the others are containers.
LOOPBACK, _DOCKER = "LOOPBACK", "DOCKER"
_PROCESSES = (LOOPBACK, "EXTERNAL", "PROCESS")
# Masters for which Beam chooses LOOPBACK by itself.
_LOCAL_FLINK = ("[local]", "[auto]")
_LOCAL_SPARK = re.compile(r"local(\[.+\])?")


def sees_local_files(options: PipelineOptions, runner: str | None = None) -> bool:
    """Return whether the workers of a runner can have the files of this machine.

    Dataflow's run on other machines, and those of portable runners in containers, unless the environment is one of processes.

    Args:
        options: options of the pipeline.
        runner: the name of its class; None: that of the options.
    """
    return is_in_process(_read_runner_name(options, runner)) or worker_environment(options, runner) in _PROCESSES


def worker_environment(options: PipelineOptions, runner: str | None = None) -> str:
    """Return the type of environment in which a runner starts its workers, such as LOOPBACK or DOCKER.

    Args:
        options: options of the pipeline.
        runner: the name of its class; None: that of the options.
    """
    name = _read_runner_name(options, runner)
    if "dataflow" in name.lower():
        return _DOCKER
    environment = options.view_as(PortableOptions).environment_type
    if environment:
        return str(environment).upper()
    if name == "FlinkRunner":
        is_here = options.view_as(FlinkRunnerOptions).flink_master in _LOCAL_FLINK
    elif name == "SparkRunner":
        is_here = _LOCAL_SPARK.fullmatch(options.view_as(SparkRunnerOptions).spark_master_url) is not None
    else:
        # Prism's default is LOOPBACK; a runner that Beam does not have may run anywhere.
        is_here = name != "PortableRunner"
    return LOOPBACK if is_here else _DOCKER


def check_places(options: PipelineOptions, paths: dict[str, str], runner: str | None = None) -> None:
    """Check that the workers of a runner can read the given paths, and that their output is not lost.

    Args:
        options: options of the pipeline.
        paths: mapping from the name in messages, such as `--input`, to the path; empty paths are skipped.
        runner: the name of its class; None: that of the options.

    Raises:
        UsageError: a path is on this machine, and the workers are not.
    """
    if sees_local_files(options, runner):
        return
    name = _read_runner_name(options, runner)
    for flag, path in paths.items():
        if path and not is_remote(path):
            raise UsageError(
                f"{flag} {path} is a local path, and the workers of {name} run on other machines or in containers (expected a "
                "gs:// path). Use a bucket, or omit --runner to run on this machine."
            )


def _read_runner_name(options: PipelineOptions, runner: str | None) -> str:
    return (runner or str(options.view_as(StandardOptions).runner)).rpartition(".")[2]


def absolute_path(path: str, options: PipelineOptions) -> str:
    """Return a path that means the same in the working directory of any worker.

    Args:
        path: a local one may be relative to the working directory of this process.
        options: options of the pipeline; a runner in this process takes paths as they are.
    """
    path = local_path(path)
    if not path or is_remote(path) or is_in_process(str(options.view_as(StandardOptions).runner)):
        return path
    # Not resolved: links stay as a person has named them.
    return str(Path.cwd() / path)

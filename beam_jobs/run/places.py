"""Places where a runner's workers run, and whether the paths of a conversion exist there."""

from __future__ import annotations

import re
from pathlib import Path

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
)

from beam_jobs.run.runner import is_in_process, runner_name
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
    """Return whether the workers of a runner can read the files of this machine.

    The workers of Dataflow run on other machines. The workers of portable runners run in containers, unless the environment is one
    of processes.

    Args:
        options: options of the pipeline.
        runner: class name of the runner; None uses the runner of the options.
    """
    return is_in_process(runner or runner_name(options)) or find_worker_environment(options, runner) in _PROCESSES


def find_worker_environment(options: PipelineOptions, runner: str | None = None) -> str:
    """Return the type of environment in which a runner starts its workers, such as LOOPBACK or DOCKER.

    Args:
        options: options of the pipeline.
        runner: class name of the runner; None uses the runner of the options.
    """
    name = runner or runner_name(options)
    if "dataflow" in name.lower():
        return _DOCKER
    environment = options.view_as(PortableOptions).environment_type
    if environment:
        return str(environment).upper()
    if name == "FlinkRunner":
        is_loopback = options.view_as(FlinkRunnerOptions).flink_master in _LOCAL_FLINK
    elif name == "SparkRunner":
        is_loopback = _LOCAL_SPARK.fullmatch(options.view_as(SparkRunnerOptions).spark_master_url) is not None
    else:
        # LOOPBACK is Prism's default. Runners of other packages count as LOOPBACK, too: where their workers run is unknown, so
        # local paths are not rejected.
        is_loopback = name != "PortableRunner"
    return LOOPBACK if is_loopback else _DOCKER


def check_places(options: PipelineOptions, paths: dict[str, str], runner: str | None = None) -> None:
    """Check that the workers of a runner see paths as this process does: inputs must be readable, and outputs must not be lost.

    Args:
        options: options of the pipeline.
        paths: mapping from the name in messages, such as `--input`, to the path; empty paths are skipped.
        runner: class name of the runner; None uses the runner of the options.

    Raises:
        UsageError: a path is local, and the workers do not see the files of this machine.
    """
    if sees_local_files(options, runner):
        return
    name = runner or runner_name(options)
    for flag, path in paths.items():
        if path and not is_remote(path):
            raise UsageError(
                f"{flag} {path} is a local path, and the workers of {name} run on other machines or in"
                " containers (expected a gs:// path). Use a bucket, or omit --runner to run on this machine."
            )


def absolute_path(path: str, options: PipelineOptions) -> str:
    """Return a path that means the same in the working directory of any worker.

    Args:
        path: a path; a local one may be relative to the working directory of this process.
        options: options of the pipeline; if its runner works in this process, a relative path stays relative.
    """
    path = local_path(path)
    if not path or is_remote(path) or is_in_process(runner_name(options)):
        return path
    # Links are not resolved, so that messages name the path that was passed.
    return str(Path(path).absolute())

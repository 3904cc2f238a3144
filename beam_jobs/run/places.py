"""Where the workers of a runner find the paths of a conversion."""

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

# Workers of these environments are processes on machines that a person has set up; the others are containers.
_PROCESSES = ("LOOPBACK", "EXTERNAL", "PROCESS")
# Masters for which Beam chooses LOOPBACK by itself.
_LOCAL_FLINK = ("[local]", "[auto]")
_LOCAL_SPARK = re.compile(r"local(\[.+\])?")


def sees_local_files(options: PipelineOptions, runner: str | None = None) -> bool:
    """Return whether the workers of a runner can have the files of this machine.

    Dataflow's run on other machines, and those of portable runners in containers, unless the environment is one of processes.

    Args:
        options: of the pipeline.
        runner: the name of its class; None: that of the options.
    """
    name = (runner or str(options.view_as(StandardOptions).runner)).rpartition(".")[2]
    if is_in_process(name):
        return True
    if "dataflow" in name.lower():
        return False
    environment = options.view_as(PortableOptions).environment_type
    if environment:
        return environment.upper() in _PROCESSES
    if name == "FlinkRunner":
        return options.view_as(FlinkRunnerOptions).flink_master in _LOCAL_FLINK
    if name == "SparkRunner":
        return _LOCAL_SPARK.fullmatch(options.view_as(SparkRunnerOptions).spark_master_url) is not None
    # Prism's default is LOOPBACK; a runner that Beam does not have may run anywhere.
    return name != "PortableRunner"


def check_places(options: PipelineOptions, paths: dict[str, str], runner: str | None = None) -> None:
    """Check that the workers of a runner find what they read, and that what they write is not lost.

    Args:
        options: of the pipeline.
        paths: by what a person calls them, such as `--input`; an empty one is none.
        runner: the name of its class; None: that of the options.

    Raises:
        UsageError: a path is on this machine, and the workers are not.
    """
    if sees_local_files(options, runner):
        return
    name = (runner or str(options.view_as(StandardOptions).runner)).rpartition(".")[2]
    for flag, path in paths.items():
        if path and not is_remote(path):
            loss = ", where what they write is lost" if flag in ("--output", "output") else ""
            raise UsageError(
                f"{flag} {path} is on this machine, and the workers of {name} are not (expected a gs:// path){loss}. Copy it to a "
                "bucket, or omit --runner to work here."
            )


def whole_path(path: str, options: PipelineOptions) -> str:
    """Return a path that means the same in the working directory of any worker.

    Args:
        path: a local one may be relative to the working directory of this process.
        options: of the pipeline; a runner in this process takes paths as they are.
    """
    if not path or is_remote(path) or is_in_process(str(options.view_as(StandardOptions).runner)):
        return path
    # Not resolved: links stay as a person has named them.
    return str(Path.cwd() / path)

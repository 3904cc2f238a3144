"""Pipelines and conversions of tests: run to their end in this process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from beam_jobs.command.run_conversion import run_job
from beam_jobs.conversion import Conversion
from beam_jobs.run.launch import JobRun, Launch
from beam_jobs.run.runner import new_pipeline, parse_beam_flags


def run_pipeline(pipeline: beam.Pipeline) -> PipelineResult:
    """Run a pipeline as a conversion does; what a step raises is a TpudataError without Beam's wrapping."""
    result = JobRun(pipeline.options, Launch(), lambda _: None).run(pipeline)
    assert result is not None
    return result


def run_with_limits(job: ModuleType, argv: Sequence[str], **limits: Any) -> int:
    """Run a conversion from the command line whose source has other limits.

    Args:
        job: `beam_jobs.images` or `beam_jobs.text`.
        argv: flags.
        limits: fields of its source; TypeError if it has no such field.
    """

    @contextlib.contextmanager
    def prepare(*args: Any) -> Iterator[Conversion]:
        with job.prepare(*args) as conversion:
            source: Any = conversion.source
            yield dataclasses.replace(conversion, source=dataclasses.replace(source, **limits))

    return run_job(job.new_parser("tpudata"), prepare, argv)


def local_pipeline(workers: int = 1, max_parts: int | None = None) -> beam.Pipeline:
    """Return a pipeline of the local runner, as a conversion of at most this many parts has it."""
    return new_pipeline(parse_beam_flags([], workers)[0], max_parts)

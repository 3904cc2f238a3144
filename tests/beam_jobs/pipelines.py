"""Pipelines of tests: run to their end in this process."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from beam_jobs.run.launch import JobRun, Launch


def run_pipeline(pipeline: beam.Pipeline) -> PipelineResult:
    """Run a pipeline as a conversion does; what a step raises is a TpudataError without Beam's wrapping."""
    result = JobRun(pipeline.options, Launch(), lambda _: None).run(pipeline)
    assert result is not None
    return result

"""Elements are spread over all workers if there are several.

The step changes no byte of a dataset, so the test looks for it in the pipeline.
"""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.run.runner import new_pipeline, parse_beam_flags
from beam_jobs.steps.spread import Spread


@pytest.mark.parametrize(
    ("options", "is_spread"),
    [
        (parse_beam_flags([], 1)[0], False),
        (parse_beam_flags([], 2)[0], True),
        (PipelineOptions(["--runner=DirectRunner"]), True),
    ],
    ids=["one worker", "two workers", "another runner"],
)
def test_spreads_elements_only_over_several_workers(options: PipelineOptions, is_spread: bool) -> None:
    pipeline = new_pipeline(options)
    _ = pipeline | beam.Create([1], reshuffle=False) | Spread()
    names = [part.unique_name for part in pipeline.to_runner_api().components.transforms.values()]
    assert any("Spread/Reshuffle" in name for name in names) == is_spread

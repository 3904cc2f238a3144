"""Spreading elements over workers."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions

from beam_jobs.run.runner import LOCAL_RUNNER


class Spread(beam.PTransform):  # type: ignore[misc]
    """Reshuffle, so that any worker can take any element; without effect on the local runner with one worker.

    A Reshuffle is a dozen transforms, which cost Beam 0.1 CPU seconds to build and run.
    """

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        """Return the elements after a Reshuffle, or unchanged for the local runner with one worker."""
        pipeline = elements.pipeline
        is_local = type(pipeline.runner).__name__ == LOCAL_RUNNER
        if is_local and pipeline.options.view_as(DirectOptions).direct_num_workers == 1:
            return elements
        return elements | beam.Reshuffle()

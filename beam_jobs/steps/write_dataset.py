"""The tail of every conversion: from packs of references and a plan to a complete dataset.

packs -> GroupByShard -> WriteShards -> WriteMetadata -> manifest
"""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsSingleton, PCollection

from beam_jobs.converter import ShardContext
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.planning.plan import Plan
from beam_jobs.run.progress import ProgressReport
from beam_jobs.steps.dataset_spec import DatasetSpec
from beam_jobs.steps.shards.group_by_shard import GroupByShard
from beam_jobs.steps.shards.write_shards import WriteShards
from beam_jobs.steps.write_metadata import WriteMetadata
from tpudata.format import Manifest


class WriteDataset(beam.PTransform):  # type: ignore[misc]
    """Transform from packs of references to a dataset; the result is its manifest, which exists once the dataset is complete.

    Args:
        spec: the dataset to write.
        plan: the Plan, a PCollection of one element.
        context: the ShardContext, a PCollection of one element.
        counts: the InputCounts of all inputs, a PCollection of one element, or an empty one if nothing is counted.
        progress: gets the bytes of each input; None reports nothing.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        plan: PCollection[Plan],
        context: PCollection[ShardContext],
        counts: PCollection[InputCounts],
        progress: ProgressReport | None = None,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._plan, self._context = AsSingleton(plan), AsSingleton(context)
        # The default is for `counts` without an element.
        self._counts = AsSingleton(counts, InputCounts())
        self._progress = progress

    def expand(self, packs: PCollection[bytes]) -> PCollection[Manifest]:
        """Write the shards, and then, once, the metadata and the manifest."""
        results = (
            packs
            | "GroupByShard" >> GroupByShard(self._plan)
            | "WriteShards" >> beam.ParDo(WriteShards(self._spec, self._progress), self._plan, self._context)
        )
        # One element, so that the last step runs once, after all shards, however many there are.
        return (
            packs.pipeline
            | "Complete" >> beam.Impulse()
            | "WriteMetadata"
            >> beam.ParDo(WriteMetadata(self._spec), AsIter(results), self._plan, self._context, self._counts)
        )

"""The steps that every conversion takes, whatever it reads and writes.

    source -> references -> plan -> shards -> metadata

References (path, key, class, size) travel; the bytes of a record are read by the worker that writes its shard, and nowhere else.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, AsSingleton

from beam_jobs.finish import WriteMetadata
from beam_jobs.grouping import GroupByShard
from beam_jobs.labels import CollectLabels
from beam_jobs.listing import IGNORED, NAMES, REFUSED, SAMPLE, TALLY, ListReferences
from beam_jobs.options import SKIP, ConvertOptions
from beam_jobs.output import Found, look_at_output, refuse_another_dataset, refuse_strays, remove_dataset
from beam_jobs.packing import batches, unpack
from beam_jobs.plan import Plan, SumTallies, make_plan
from beam_jobs.progress import ProgressReport, progress_bar
from beam_jobs.reference import Reference
from beam_jobs.runner import is_local, new_pipeline, run_pipeline
from beam_jobs.shards import Converter, WriteShards
from beam_jobs.sources import Source, raise_refusal
from beam_jobs.tally import Tally, TallyPart
from tpudata.errors import BadRecordError

# Of images whose ratios spread by a half of their mean, 200 give the mean to some 4 %.
_SAMPLE = 200


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A conversion, ready to be planned or run.

    Attributes:
        options: where to write, and how to cut shards.
        source: lists the records.
        converter: makes them.
        layout: name of the feature layout.
        overhead: bytes that a record takes in a shard beside its content.
        estimate: from a sample of references to bytes of their content in a shard over their bytes in the input; None where
            content is stored as it is.
        deciding: all options that decide what the shards hold, for the manifest: a JSON object.
    """

    options: ConvertOptions
    source: Source
    converter: Converter
    layout: str
    overhead: int
    estimate: Callable[[Iterable[Reference]], float] | None = None
    deciding: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def plan(self) -> Plan:
        """The plan, made in this process; nothing is written. BadRecordError as in a run that does not skip bad records."""
        refuse = _passed_over if self.options.on_bad_record == SKIP else raise_refusal
        tally, sample = Tally(), list[Reference]()
        for unit in self.source.units():
            for batch in batches(self.source.references(unit, [], refuse)):
                tally.add(TallyPart.of(batch, self.options.seed))
                if self.estimate:
                    sample = heapq.nsmallest(_SAMPLE, [*sample, *batch])
        ratio = self.estimate(sample) if self.estimate and sample else 1.0
        return make_plan(tally, ratio, self.options, self.overhead)

    def run(self, beam_options: PipelineOptions) -> None:
        """Runs the conversion; returns when the dataset is complete.

        Args:
            beam_options: where it runs.

        Raises:
            TpudataError: the input or the output is not as it should be, or a record was refused.
        """
        options = self.options
        pipeline = new_pipeline(beam_options)
        found = look_at_output(options.output, resume=options.resume, overwrite=options.overwrite)
        if found is Found.DATASET:
            # Whatever is wrong with the input or the options comes out before the old dataset goes.
            plan = self.plan()
            if options.resume:
                refuse_another_dataset(options.output, self.deciding, plan.fingerprint)
                return
            remove_dataset(options.output)
        with progress_bar(is_local(beam_options)) as progress:
            self._build(pipeline, progress)
            run_pipeline(pipeline)

    def _build(self, pipeline: beam.Pipeline, progress: ProgressReport) -> None:
        options = self.options
        listed = (
            pipeline
            | "Units" >> beam.Create(self.source.units(), reshuffle=True)
            | "List"
            >> beam.ParDo(ListReferences(self.source, options, _SAMPLE if self.estimate else 0)).with_outputs(
                TALLY, NAMES, SAMPLE, IGNORED, REFUSED, main="packs"
            )
        )
        tally = listed[TALLY] | "Tally" >> beam.CombineGlobally(SumTallies())
        ratio = AsSingleton(self._ratio(pipeline, listed[SAMPLE]))
        plan = AsSingleton(tally | "Plan" >> beam.Map(_planned, ratio, options, self.overhead, progress))
        labels = AsSingleton(self._labels(pipeline, listed[NAMES]))
        ignored = AsSingleton(listed[IGNORED] | "CountIgnored" >> beam.CombineGlobally(sum))
        refused = AsList(listed[REFUSED])
        (
            listed.packs
            | "GroupByShard" >> GroupByShard(plan)
            | "WriteShards" >> beam.ParDo(WriteShards(options, self.converter, progress), plan, labels)
            | "Collect" >> beam.combiners.ToList()
            | "WriteMetadata"
            >> beam.ParDo(
                WriteMetadata(options, self.converter, self.layout, self.source.has_classes, self.deciding),
                plan,
                labels,
                ignored,
                refused,
            )
        )

    def _ratio(self, pipeline: beam.Pipeline, samples: beam.PCollection) -> beam.PCollection:
        if self.estimate is None:
            return pipeline | "Ratio" >> beam.Create([1.0])
        collected = samples | "Samples" >> beam.combiners.ToList()
        return collected | "Ratio" >> beam.Map(_estimated, self.estimate)

    def _labels(self, pipeline: beam.Pipeline, names: beam.PCollection) -> beam.PCollection:
        if self.source.labels is not None:
            return pipeline | "Labels" >> beam.Create([self.source.labels])
        return names | "Labels" >> beam.CombineGlobally(CollectLabels(self.source.integer_labels))


def _planned(tally: Tally, ratio: float, options: ConvertOptions, overhead: int, progress: ProgressReport) -> Plan:
    """The plan, its totals reported."""
    plan = make_plan(tally, ratio, options, overhead)
    refuse_strays(options.output, plan.shard_names())
    progress.total(plan.files, plan.bytes)
    return plan


def _estimated(packs: list[bytes], estimate: Callable[[Iterable[Reference]], float]) -> float:
    """The estimate from the references with the smallest digests of all samples."""
    references = itertools.chain.from_iterable(map(unpack, packs))
    sample = heapq.nsmallest(_SAMPLE, references)
    return estimate(sample) if sample else 1.0


def _passed_over(error: BadRecordError) -> None:
    """A plan counts what can be converted; the run reports what cannot."""
    del error

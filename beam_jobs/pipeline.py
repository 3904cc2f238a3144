"""The steps of every conversion, independent of its input and output.

    source -> references -> plan -> shards -> metadata

References (path, key, class, size) travel; the bytes of a record are read by the worker that writes its shard, and nowhere else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tempfile
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsSingleton

from beam_jobs.append.base import Added, Base
from beam_jobs.append.known_file import write_known
from beam_jobs.append.new_inputs import NewInputs, known_count
from beam_jobs.converter import Converter, ShardContext
from beam_jobs.options import ConvertOptions
from beam_jobs.output.folder import (
    Found,
    check_has_dali_index,
    give_up,
    look_at_output,
    not_written,
    refuse_another_dataset,
    refuse_foreign_metadata,
    refuse_strays,
    remove_dataset,
)
from beam_jobs.output.rejects import remove_listing_rejects
from beam_jobs.planning.input_counts import InputCounts, SumInputCounts
from beam_jobs.planning.plan import Plan, SumTallies
from beam_jobs.planning.sample import MergeSamples
from beam_jobs.references.labels import CollectLabels, Labels
from beam_jobs.run.job import job_has_ended
from beam_jobs.run.launch import JobRun, Launch
from beam_jobs.run.lifetime import ends_with_process
from beam_jobs.run.package import with_package
from beam_jobs.run.progress import ProgressReport, progress_bar
from beam_jobs.run.runner import is_local, new_pipeline
from beam_jobs.sources import Source
from beam_jobs.steps.dataset_spec import DatasetSpec
from beam_jobs.steps.duplicates.keys import CheckDuplicates
from beam_jobs.steps.duplicates.texts import KEPT, LEFT_OUT
from beam_jobs.steps.list_references import COUNTS, NAMES, SAMPLE, TALLY, ListReferences, TextBytes
from beam_jobs.steps.list_units import SKIPPED, ListUnits, numbered_units
from beam_jobs.steps.make_plan import Estimate, estimated, plan_here, planned
from beam_jobs.steps.write_dataset import WriteDataset
from tpudata.errors import TpudataError
from tpudata.format import Feature, open_dataset
from tpudata.storage import RequestLimits, set_request_limits, storage_for
from tpudata.storage.claims.claim import JOB, PROCESS, Claim
from tpudata.storage.claims.hold import claimed, name_job
from tpudata.storage.claims.liveness import check_unclaimed, remove_dead_claim
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

# Those that an input itself may have: train, validation and test.
_NAMED_SPLITS = 3
# Number of partial counts, which many workers sum before one worker sums these.
FANOUT = 64
# Of an input that has more units, all workers of this machine list some.
_COUNTED_UNITS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """A conversion, ready to be planned or run.

    Attributes:
        options: where to write, and how to cut shards.
        source: lists the records.
        converter: makes them.
        layout: name of the feature layout.
        overhead: bytes that a record takes in a shard besides its content.
        text_bytes: given a pack, about how many bytes each record takes for texts besides its content: int64 [n].
        estimate: from a sample of references to bytes of their content in a shard over their bytes in the input.
        deciding: all options that decide what the shards hold, for the manifest: a JSON object.
        learn: makes the step from packs of references to the characters that the tokenizer is made of; or None.
        leave_out: makes the step from packs to those without duplicates, see steps/duplicates/texts.py; None keeps all.
        files: names of the files that the converter keeps next to the shards.
        unit: what one input is called.
        unique_keys: whether the source cannot list two inputs of one key.
        keys: whether the dataset is to know its inputs, which an append needs.
        why_ignored: says why files were ignored, after their number; None if by their names.
        base: the dataset that is added to, once it was looked at; its `source` then lists new records only.
        claim: of the run on the output, once it has one.
    """

    options: ConvertOptions
    source: Source
    converter: Converter
    layout: str
    overhead: int
    text_bytes: TextBytes
    estimate: Estimate
    deciding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    learn: Callable[[RequestLimits], beam.PTransform] | None = None
    leave_out: Callable[[RequestLimits], beam.PTransform] | None = None
    files: tuple[str, ...] = ()
    unit: str = "file"
    unique_keys: bool = False
    keys: bool = True
    why_ignored: Callable[[], str] | None = None
    base: Base | None = None
    claim: Claim | None = None

    def plan(self) -> Plan:
        """Return the plan, made in this process; write nothing.

        For an append, it covers what would be added, which may be nothing.

        Raises:
            BadRecordError: as in a run that does not skip bad records.
            OutputError: as from `run`.
        """
        found = self._look_at_output()
        if self.options.append and self.base is None:
            base = self._open_base()
            with tempfile.TemporaryDirectory(prefix="tpudata-known-") as folder:
                path = f"{folder}/known"
                write_known(base.dataset, path)
                return self._of_new(base, path).plan()
        plan = plan_here(self.source, self.options, self.text_bytes, self.estimate, self.overhead, self.base)
        self._refuse_output(found, plan)
        return plan

    def run(self, beam_options: PipelineOptions, launch: Launch | None = None) -> Added | None:
        """Run the conversion; return when the dataset is complete, or with `launch.detach` when the job is submitted.

        Args:
            beam_options: where it runs.
            launch: how the job is started; None waits for it and reports nothing.

        Returns:
            What an append has added; None if this is no append or the job is detached.

        Raises:
            TpudataError: the input or the output is invalid, or a record was rejected.
        """
        options = self.options.for_engine(local=is_local(beam_options))
        set_request_limits(options.request_limits)
        with with_package(beam_options) as used:
            return dataclasses.replace(self, options=options)._run_with(used, launch or Launch())

    def _run_with(self, beam_options: PipelineOptions, launch: Launch) -> Added | None:
        options = self.options
        pipeline = new_pipeline(beam_options, self._most_parts() if is_local(beam_options) else None)
        has_ended = functools.partial(job_has_ended, options=beam_options)
        check_unclaimed(options.output, has_ended)
        found = self._look_at_output()
        if found is Found.DATASET and options.resume and not options.append:
            self.plan()
            remove_dead_claim(options.output, has_ended)
            return None
        claim = Claim.new(PROCESS if ends_with_process(beam_options) else JOB)
        job = JobRun(beam_options, launch, functools.partial(name_job, options.output, claim))
        with claimed(options.output, claim, has_ended, lambda: job.goes_on):
            return dataclasses.replace(self, claim=claim)._run_claimed(pipeline, job, beam_options)

    def _run_claimed(self, pipeline: beam.Pipeline, job: JobRun, beam_options: PipelineOptions) -> Added | None:
        options = self.options
        # A run that ended before the claim was taken may have changed it.
        found = self._look_at_output()
        if options.append:
            return self._append(pipeline, job, beam_options)
        if found is Found.DATASET:
            # Errors in the input or the options must show before the old dataset is removed.
            self.plan()
            if options.resume:
                return None
            remove_dataset(options.output)
        remove_listing_rejects(options.output)
        self._run(pipeline, job, beam_options)
        return None

    def _most_parts(self) -> int | None:
        """Return how many parts are listed or written at the same time, at most; None if only the plan says."""
        options = self.options
        if options.num_shards is None:
            return None
        splits = _NAMED_SPLITS if options.split is None else len(options.split.shares)
        units = sum(1 for _ in itertools.islice(numbered_units(self.source, []), _COUNTED_UNITS))
        return max(units, options.num_shards * splits)

    def _append(self, pipeline: beam.Pipeline, job: JobRun, beam_options: PipelineOptions) -> Added | None:
        output = self.options.output
        base = self._open_base()
        storage = storage_for(output)
        known = storage.join(output, f"{TEMPORARY_PREFIX}known-{uuid.uuid4().hex}")
        try:
            write_known(base.dataset, known)
            # A killed append has left its lists, which this one overwrites.
            remove_listing_rejects(output, kept=base.manifest.rejects)
            result = self._of_new(base, known)._run(pipeline, job, beam_options)
        finally:
            # A detached job reads it, and removes it in its last step.
            if not job.goes_on:
                storage.delete(known)
        if result is None:
            return None
        return Added(base.manifest, open_dataset(output).manifest, known_count(result))

    def _open_base(self) -> Base:
        check_has_dali_index(self.options)
        return Base.open(
            self.options.output,
            self.deciding,
            self._features(),
            layout=self.layout,
            integer_labels=self.source.integer_labels,
        )

    def _features(self) -> tuple[Feature, ...]:
        """Return the schema of the records; their shapes and classes are not known yet."""
        classes = Labels(("any",)) if self.source.has_classes else Labels(())
        return self.converter.features(self.converter.new_summary(), classes)

    def _of_new(self, base: Base, known: str) -> Conversion:
        """Return the conversion of what a dataset lacks; the file `known` lists what it has."""
        return dataclasses.replace(self, base=base, source=NewInputs(self.source, base, known))

    def _look_at_output(self) -> Found:
        options = self.options
        return look_at_output(options.output, resume=options.resume, overwrite=options.overwrite, append=options.append)

    def _refuse_output(self, found: Found, plan: Plan) -> None:
        """Raise OutputError if the contents of the output do not match a plan."""
        options = self.options
        names = plan.shard_names() if self.base is None else self.base.all_shard_names(plan)
        if found is Found.DATASET and options.resume:
            refuse_another_dataset(options.output, self.deciding, plan.fingerprint, can_append=True)
            check_has_dali_index(options)
            return
        if found is Found.DATASET and options.overwrite:
            names |= open_dataset(options.output).manifest.shard_names()
            refuse_foreign_metadata(
                options.output,
                options.compression,
                self._features(),
                labelled=self.source.has_classes,
                files=self.files,
            )
        refuse_strays(options.output, names)

    def _run(
        self, pipeline: beam.Pipeline, job: JobRun, beam_options: PipelineOptions
    ) -> beam.runners.runner.PipelineResult | None:
        with progress_bar(is_local(beam_options)) as progress:
            self._build(pipeline, progress)
            try:
                return job.run(pipeline)
            except KeyboardInterrupt:
                if not job.goes_on:
                    give_up(self.options.output, self.claim)
                raise
            except TpudataError as error:
                # Spooled files may be as large as the input, and another run writes them again. A detached job needs them.
                if not job.goes_on:
                    give_up(self.options.output, self.claim)
                again = "--append" if self.options.append else "--resume"
                raise (not_written(error, self.options.output, again) or error) from error.__cause__

    def _build(self, pipeline: beam.Pipeline, progress: ProgressReport) -> None:
        """Add the steps to a pipeline; docs/concepts/architecture.md draws them."""
        options = self.options
        units = pipeline | "ListUnits" >> ListUnits(self.source, options)
        listed = (
            units.units
            | "SpreadUnits" >> beam.Reshuffle()
            | "List"
            >> beam.ParDo(ListReferences(self.source, options, self.text_bytes)).with_outputs(
                TALLY, NAMES, SAMPLE, COUNTS, main="packs"
            )
        )
        # The last sum is on one worker: of 10,000 parts it takes minutes.
        fanout = None if is_local(pipeline.options) else FANOUT
        tally = listed[TALLY] | "Tally" >> beam.CombineGlobally(SumTallies()).with_fanout(fanout)
        sample = listed[SAMPLE] | "Sample" >> beam.CombineGlobally(MergeSamples()).with_fanout(fanout)
        ratios = sample | "Estimate" >> beam.Map(estimated, self.estimate)
        packs, characters, omitted = self._read_first(listed.packs)
        counts = (
            (units[SKIPPED], listed[COUNTS], *omitted)
            | beam.Flatten()
            | "Count" >> beam.CombineGlobally(SumInputCounts())
        )
        plan = tally | "Plan" >> beam.Map(
            planned, AsSingleton(ratios), options, self.overhead, self.base, progress, AsSingleton(counts)
        )
        labels = self._labels(pipeline, listed[NAMES])
        learned = () if characters is None else (AsSingleton(characters),)
        context = labels | "Context" >> beam.Map(ShardContext, *learned)
        _ = packs | WriteDataset(self._spec(), plan, context, counts, progress)

    def _spec(self) -> DatasetSpec:
        return DatasetSpec(
            self.options,
            self.converter,
            self.layout,
            self.source.has_classes,
            self.deciding,
            keys=self.keys,
            base=self.base,
            claim=self.claim,
        )

    def _read_first(
        self, packs: beam.PCollection[bytes]
    ) -> tuple[beam.PCollection[bytes], beam.PCollection[str] | None, list[beam.PCollection[InputCounts]]]:
        """Add the steps that come before any write.

        Returns:
            The packs that are kept, the characters of all documents if they are collected, and the counts of omitted inputs.
        """
        omitted = [] if self.options.shuffle or self.unique_keys else [packs | "CheckDuplicates" >> CheckDuplicates()]
        characters = None
        if self.learn is not None or self.leave_out is not None:
            # What is read here was written aside by the listing, and is there once that has ended.
            ready = packs | "Listed" >> beam.Reshuffle()
            if self.learn is not None:
                characters = ready | "Learn" >> self.learn(self.options.request_limits)
            if self.leave_out is not None:
                kept = ready | "LeaveOut" >> self.leave_out(self.options.request_limits)
                packs = kept[KEPT]
                omitted.append(kept[LEFT_OUT])
        return packs, characters, omitted

    def _labels(self, pipeline: beam.Pipeline, names: beam.PCollection[set[str]]) -> beam.PCollection[Labels]:
        if self.source.labels is not None:
            return pipeline | "Labels" >> beam.Create([self.source.labels])
        collect = CollectLabels(self.source.integer_labels, are_all=self.base is None)
        labels = names | "Labels" >> beam.CombineGlobally(collect)
        return labels if self.base is None else labels | "Extend" >> beam.Map(self.base.extended)

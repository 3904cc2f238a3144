"""Planning a conversion in this process, and running it: check the output, claim it, and start the job."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tempfile
import uuid

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from beam_jobs.append.base import AppendResult, Base
from beam_jobs.append.entry_file import write_entry_file
from beam_jobs.append.new_inputs import count_stored_inputs
from beam_jobs.conversion import Conversion
from beam_jobs.output.folder import (
    OutputContents,
    add_resume_hint,
    check_has_dali_index,
    look_at_output,
    reject_another_dataset,
    reject_foreign_metadata,
    reject_strays,
)
from beam_jobs.output.rejects import remove_listing_rejects
from beam_jobs.output.removal import give_up, remove_dataset
from beam_jobs.pipeline import build_pipeline
from beam_jobs.planning.plan import Plan
from beam_jobs.run.job import check_job_server, job_has_ended
from beam_jobs.run.launch import JobRun, Launch
from beam_jobs.run.lifetime import ends_with_process
from beam_jobs.run.package import describe_network_problem, ship_package
from beam_jobs.run.progress import progress_bar
from beam_jobs.run.runner import is_local, temporary_pipeline
from beam_jobs.sources.source import ScannedSource
from beam_jobs.steps.listing.list_units import enumerate_units
from beam_jobs.steps.make_plan import plan_here
from tpudata.errors import TpudataError
from tpudata.format import open_dataset
from tpudata.storage import held_request_limits, storage_for
from tpudata.storage.claims.claim import JOB, PROCESS, Claim
from tpudata.storage.claims.hold import hold_claim, name_job
from tpudata.storage.claims.liveness import check_unclaimed, remove_dead_claim
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

# Number of splits that folder and file names may stand for: train, validation and test.
_MAX_NAMED_SPLITS = 3
_PLAN_BAR_DELAY_SECONDS = 2.0
# More units than this occupy every worker of a machine, so more are not counted.
_MAX_COUNTED_UNITS = 1024


def plan_conversion(conversion: Conversion, draws_bar: bool = False) -> Plan:
    """Plan a conversion in this process, without writing; the plan of an append covers only the inputs that the dataset lacks.

    Args:
        conversion: the conversion to plan.
        draws_bar: whether to draw a progress bar on stderr if planning takes more than two seconds.

    Raises:
        BadRecordError: a record is bad, and bad records are not skipped.
        SourceError: the input is invalid, has two rows with the same key, or has nothing to convert.
        UsageError: the options do not fit the input, or the requested number of shards cannot be made.
        OutputError: the output has other files, or the dataset there does not fit the conversion.
    """
    options = conversion.options
    contents = _look_at_output(conversion)
    # An append is planned by a second call, for the conversion of its new inputs, which has a base.
    if options.append and conversion.base is None:
        base = _open_base(conversion)
        with tempfile.TemporaryDirectory(prefix="tpudata-known-") as folder:
            entry_file = f"{folder}/known"
            write_entry_file(base.dataset, entry_file)
            return plan_conversion(conversion.select_new_inputs(base, entry_file), draws_bar)
    with progress_bar(draws_bar, _PLAN_BAR_DELAY_SECONDS) as progress:
        scanned = conversion.scan_here()
        plan = plan_here(
            scanned.source,
            options,
            scanned.extra_bytes,
            scanned.estimate,
            scanned.converter.record_overhead,
            scanned.base,
            scanned.facts,
            progress,
        )
    _check_output(scanned, contents, plan)
    return plan


def convert(conversion: Conversion, beam_options: PipelineOptions, launch: Launch | None = None) -> AppendResult | None:
    """Run a conversion; return when the dataset is complete, or with `launch.detach` when the job is submitted.

    Args:
        conversion: the conversion to run.
        beam_options: options of the pipeline.
        launch: how to start the job; None waits for it and reports nothing.

    Returns:
        The result of an append; None if this is not an append or the job is detached.

    Raises:
        TpudataError: the input or the output is invalid, a record is bad and bad records are not skipped, or the job failed.
    """
    launch = launch or Launch()
    options = conversion.options.apply_engine_limits(is_local=is_local(beam_options))
    if problem := describe_network_problem(beam_options):
        launch.report(f"warning: {problem}")
    conversion = dataclasses.replace(conversion, options=options)
    with held_request_limits(options.request_limits), ship_package(beam_options) as shipped_options:
        # Only the local runner limits its workers by this number.
        max_parts = _count_max_parts(conversion) if is_local(shipped_options) else None
        with temporary_pipeline(shipped_options, max_parts, launch.runner) as pipeline:
            return _convert(conversion, pipeline, shipped_options, launch)


def _convert(
    conversion: Conversion, pipeline: beam.Pipeline, beam_options: PipelineOptions, launch: Launch
) -> AppendResult | None:
    """Check the output, claim it, and run the conversion; return what `convert` returns.

    If --resume finds a complete dataset, only check that it has the same input and options.

    Args:
        conversion: the conversion, without a claim.
        pipeline: the empty pipeline of the job.
        beam_options: options of the pipeline, which ship this package to the workers if necessary.
        launch: how to start the job.
    """
    options = conversion.options
    check_job_server(beam_options, launch.report)
    has_ended = functools.partial(job_has_ended, options=beam_options)
    check_unclaimed(options.output, has_ended)
    contents = _look_at_output(conversion)
    if contents is OutputContents.DATASET and options.resume and not options.append:
        # Raises if the input or the options of the dataset differ.
        plan_conversion(conversion, launch.draws_bar)
        remove_dead_claim(options.output, has_ended)
        return None
    claim = Claim.new(PROCESS if ends_with_process(beam_options) else JOB)
    job = JobRun(beam_options, launch, functools.partial(name_job, options.output, claim))
    with hold_claim(options.output, claim, has_ended, lambda: job.goes_on):
        return _convert_with_claim(dataclasses.replace(conversion, claim=claim), pipeline, job, beam_options)


def _convert_with_claim(
    conversion: Conversion, pipeline: beam.Pipeline, job: JobRun, beam_options: PipelineOptions
) -> AppendResult | None:
    """Append to a dataset, write one in place of any old one, or do nothing if another run has completed it and --resume is passed.

    The caller has claimed the output.

    Args:
        conversion: the conversion, with its claim.
        pipeline: the empty pipeline of the job.
        job: the job, which is not started yet.
        beam_options: options of the pipeline.

    Returns:
        The result of an append; None if this is not an append or the job is detached.
    """
    options = conversion.options
    # Look again: another run may have changed the output before this one claimed it.
    contents = _look_at_output(conversion)
    if options.append:
        return _append(conversion, pipeline, job, beam_options)
    if contents is OutputContents.DATASET:
        # Errors in the input or the options must show before the old dataset is removed.
        plan_conversion(conversion, job.launch.draws_bar)
        if options.resume:
            # Another run has completed the same dataset in the meantime.
            return None
        remove_dataset(options.output)
    remove_listing_rejects(options.output)
    _run(conversion, pipeline, job, beam_options)
    return None


def _count_max_parts(conversion: Conversion) -> int | None:
    """Return the maximum number of units or shards that workers can process at once; None if unknown before the job runs."""
    options = conversion.options
    if options.num_shards is None or isinstance(conversion.source, ScannedSource):
        return None
    # --num-shards counts the shards of each split. Without shares, the input's folders may name up to three splits. Units are
    # counted only up to a number that occupies every worker of a machine.
    split_count = _MAX_NAMED_SPLITS if options.split is None else len(options.split.shares)
    unit_count = sum(1 for _ in itertools.islice(enumerate_units(conversion.source, []), _MAX_COUNTED_UNITS))
    return max(unit_count, options.num_shards * split_count)


def _append(
    conversion: Conversion, pipeline: beam.Pipeline, job: JobRun, beam_options: PipelineOptions
) -> AppendResult | None:
    """Run a conversion of the inputs that the dataset lacks, and return its result; None if the job is detached.

    Args:
        conversion: the conversion, with its claim.
        pipeline: the empty pipeline of the job.
        job: the job, which is not started yet.
        beam_options: options of the pipeline.
    """
    output = conversion.options.output
    base = _open_base(conversion)
    storage = storage_for(output)
    entry_file = storage.join(output, f"{TEMPORARY_PREFIX}known-{uuid.uuid4().hex}")
    try:
        write_entry_file(base.dataset, entry_file)
        # A killed append may have left lists of rejects that the manifest does not have.
        remove_listing_rejects(output, kept_names=base.manifest.rejects)
        pipeline_result = _run(conversion.select_new_inputs(base, entry_file), pipeline, job, beam_options)
    finally:
        # A job that continues without this process reads the file, and removes it in its last step.
        if not job.goes_on:
            storage.delete(entry_file)
    if pipeline_result is None:
        return None
    return AppendResult(base.manifest, open_dataset(output).manifest, count_stored_inputs(pipeline_result))


def _open_base(conversion: Conversion) -> Base:
    """Open the dataset to append to; raise OutputError if the options or the features of the new records do not fit it."""
    options = conversion.options
    check_has_dali_index(options)
    base = Base.open(
        options.output, conversion.deciding_options, layout=conversion.layout, path_options=conversion.path_options
    )
    dataclasses.replace(conversion, base=base).check_base()
    return base


def _look_at_output(conversion: Conversion) -> OutputContents:
    """Return what is in the output; OutputError if the options do not allow writing there."""
    options = conversion.options
    return look_at_output(options.output, resume=options.resume, overwrite=options.overwrite, append=options.append)


def _check_output(conversion: Conversion, contents: OutputContents, plan: Plan) -> None:
    """Raise OutputError if the output has files that a run would not overwrite.

    With --resume, a complete dataset is an error only if its input or its options differ, or if it lacks a requested index for
    DALI.
    """
    options, base = conversion.options, conversion.base
    if contents is OutputContents.DATASET and options.resume:
        reject_another_dataset(options.output, conversion.deciding_options, plan.fingerprint, can_append=True)
        check_has_dali_index(options)
        return
    shard_names = plan.shard_names() if base is None else base.list_shard_names(plan)
    if contents is OutputContents.DATASET and options.overwrite:
        shard_names |= open_dataset(options.output).manifest.shard_names()
        reject_foreign_metadata(
            options.output,
            options.compression,
            conversion.features(),
            has_classes=conversion.source.has_classes,
            files=conversion.files,
        )
    reject_strays(options.output, shard_names)


def _run(
    conversion: Conversion, pipeline: beam.Pipeline, job: JobRun, beam_options: PipelineOptions
) -> PipelineResult | None:
    """Build and run the pipeline; return its result, or None if the job is detached.

    If the run is interrupted or fails with a TpudataError, delete its temporary files, unless the job continues elsewhere.

    Args:
        conversion: the conversion, with its claim.
        pipeline: the empty pipeline of the job.
        job: the job, which is not started yet.
        beam_options: options of the pipeline.
    """
    output, claim = conversion.options.output, conversion.claim
    with progress_bar(job.launch.draws_bar and is_local(beam_options)) as progress:
        build_pipeline(conversion, pipeline, progress)
        try:
            return job.run(pipeline)
        except KeyboardInterrupt:
            if not job.goes_on:
                give_up(output, claim)
            raise
        except TpudataError as error:
            # Another run would not reuse the spooled files, which may be as large as the input. A job that continues needs them.
            if not job.goes_on:
                give_up(output, claim)
            flag = "--append" if conversion.options.append else "--resume"
            # An error with a hint replaces this one, so it gets its cause.
            raise (add_resume_hint(error, output, flag) or error) from error.__cause__

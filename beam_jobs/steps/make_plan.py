"""Planning of shards: on a worker in the middle of a run, from its counts, or in this process, without writing anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from beam_jobs.append.base import Base, plan_append
from beam_jobs.options import SKIP, ConvertOptions
from beam_jobs.output.folder import choose_suffix, reject_strays
from beam_jobs.output.rejects import list_listing_rejects
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.planning.plan import Plan, make_plan
from beam_jobs.planning.sample import Sample
from beam_jobs.planning.tally import Tally, TallyPart
from beam_jobs.planning.warning_lines import InputFacts, list_warnings
from beam_jobs.references.packs.pack import pack_references
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import raise_rejection
from beam_jobs.run.progress import ProgressReport
from beam_jobs.sources import Source
from beam_jobs.sources.installed.source_checks import list_references
from beam_jobs.sources.source import PackSource
from beam_jobs.steps.listing.list_references import ExtraBytes
from beam_jobs.steps.listing.list_units import enumerate_units
from tpudata.errors import BadRecordError, SourceError
from tpudata.format.layout import REJECTS_FOLDER

# Function from a sample of references to the estimated ratio of the bytes of their content in a shard to those in the input.
Estimate = Callable[[Iterable[Reference]], float]


def plan_here(
    source: Source,
    options: ConvertOptions,
    extra_bytes: ExtraBytes,
    estimate: Estimate,
    overhead: int,
    base: Base | None,
    facts: InputFacts,
    progress: ProgressReport,
) -> Plan:
    """List a source in this process, and return the plan for it.

    Args:
        source: the source of the conversion.
        options: options for the size and number of shards.
        extra_bytes: see `ExtraBytes`.
        estimate: see `Estimate`.
        overhead: bytes that a record takes in a shard besides its content and its texts.
        base: the dataset that is appended to, or None.
        facts: facts about the input that are known before it is listed.
        progress: gets the counts of listed inputs.

    Raises:
        BadRecordError: a record is bad, and bad records are not skipped.
        SourceError: there is nothing to convert, or the source needs classes and no record has one.
        UsageError: the requested number of shards cannot be made.
    """
    reject = _ignore_rejection if options.on_bad_record == SKIP else raise_rejection
    tally, sample, counts = Tally(), Sample(), InputCounts()
    source = source.noting(counts.notes.add)

    # Only sources of other packages need checks, and none of them is a PackSource.
    needs_checks = not isinstance(source, PackSource)

    def add_to_sample(references: Iterable[Reference]) -> Iterator[Reference]:
        """Add references to the sample, and yield them without the bytes that a reference to a compressed stream holds."""
        for reference in references:
            sample.add([reference])
            yield reference._replace(data=b"") if reference.data else reference

    # The empty lists take the paths of ignored files, which do not matter to the plan.
    for unit_index, unit in enumerate_units(source, []):
        listed = add_to_sample(
            list_references(source, unit, [], reject) if needs_checks else source.references(unit, [], reject)
        )
        for pack, digests in pack_references(listed, options.order, unit_index):
            tally.add(TallyPart.from_pack(pack, digests, is_shuffled=options.shuffle, extra_bytes=extra_bytes(pack)))
            counts.add(InputCounts(classes=pack.classes()))
            progress.add_listed(len(pack.keys), int(pack.sizes.sum()))
    return _plan_with_warnings(tally, estimate_splits(sample, estimate), options, overhead, base, counts, facts)


def plan_tally(
    impulse: bytes,
    tally: Tally,
    ratios: Mapping[str, float],
    options: ConvertOptions,
    overhead: int,
    base: Base | None,
    progress: ProgressReport,
    counts: InputCounts,
    facts: InputFacts,
) -> Plan:
    """Return the plan for the counts of a run, and report its totals.

    Args:
        impulse: the one element that starts the step; `tally`, `ratios` and `counts` are side inputs.
        tally: sizes of the listed inputs.
        ratios: by split, the estimated ratio of the bytes of content in a shard to those in the input.
        options: options for the size and number of shards.
        overhead: bytes that a record takes in a shard besides its content and its texts.
        base: the dataset that is appended to, or None.
        progress: gets the totals.
        counts: counts of classes, duplicates and rejected inputs.
        facts: facts about the input that are known before it is listed.

    Raises:
        OutputError: the output has shards of a different plan.
        SourceError: there is nothing to convert, or the source needs classes and no record has one.
        UsageError: the requested number of shards cannot be made.
    """
    del impulse
    # An append may have nothing to add.
    if base is None and not tally.splits and list_listing_rejects(options.output):
        raise SourceError(
            f"{options.input}: all that is in it was rejected. It is listed in {options.output}/{REJECTS_FOLDER}/. Fix it, and run"
            " again with --resume."
        )
    plan = _plan_with_warnings(tally, ratios, options, overhead, base, counts, facts)
    reject_strays(options.output, plan.shard_names() if base is None else base.list_shard_names(plan))
    progress.set_total(plan.input_count, plan.bytes)
    return plan


def estimate_splits(sample: Sample, estimate: Estimate) -> dict[str, float]:
    """Return the estimated ratio of each split, from its sample; see `Estimate`."""
    return {split: estimate(references) for split, references in sorted(sample.references_by_split.items())}


def _plan_with_warnings(
    tally: Tally,
    ratios: Mapping[str, float],
    options: ConvertOptions,
    overhead: int,
    base: Base | None,
    counts: InputCounts,
    facts: InputFacts,
) -> Plan:
    """Return the plan of a conversion or an append, with the suffix of its shards and its warnings.

    Args:
        tally: sizes of the listed inputs.
        ratios: by split, the estimated ratio of the bytes of content in a shard to those in the input.
        options: options for the size and number of shards.
        overhead: bytes that a record takes in a shard besides its content and its texts.
        base: the dataset that is appended to, or None.
        counts: counts of classes, duplicates and rejected inputs.
        facts: facts about the input that are known before it is listed.

    Raises:
        SourceError: there is nothing to convert, or the source needs classes and no record has one.
        UsageError: the requested number of shards cannot be made.
    """
    if base is not None:
        plan = plan_append(tally, ratios, options, overhead)
    else:
        plan = make_plan(tally, ratios, options, overhead, counts.duplicates)
        # An append has the classes of its dataset.
        if facts.needs_classes and not facts.classes and not any(counts.classes.values()):
            raise SourceError(
                f"{options.input}: no record has a class, and its source `has_classes` (expected one at least). Check the input, or"
                " change the source."
            )
    record_counts = {name: split.record_count for name, split in plan.splits.items()}
    base_labels = None if base is None else frozenset(base.labels or ())
    return dataclasses.replace(
        plan,
        suffix=choose_suffix(options, None if base is None else base.manifest),
        warnings=list_warnings(facts, counts, record_counts, base_labels),
    )


def _ignore_rejection(error: BadRecordError) -> None:
    """Ignore a rejection: a plan counts what can be converted, and the run reports what cannot."""
    del error

"""The steps of every conversion, independent of its input and output.

    source -> references -> plan -> shards -> metadata

References (path, key, class, size) travel between the steps; only the worker that writes a record's shard reads its bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, PCollection

from beam_jobs.append.base import Base
from beam_jobs.conversion import Conversion
from beam_jobs.converter import ShardContext
from beam_jobs.planning.input_counts import InputCounts, SumInputCounts
from beam_jobs.planning.plan import SumTallies
from beam_jobs.planning.sample import MergeSamples
from beam_jobs.planning.tally import Tally
from beam_jobs.references.labels import CollectLabels, Labels
from beam_jobs.run.progress import ProgressReport
from beam_jobs.run.runner import is_local
from beam_jobs.sources import Source
from beam_jobs.sources.source import ScanFacts, ScannedSource
from beam_jobs.steps.duplicates.keys import CheckDuplicates
from beam_jobs.steps.duplicates.texts import KEPT, OMITTED
from beam_jobs.steps.limited_step import apply_limits
from beam_jobs.steps.listing.list_references import COUNTS, NAMES, SAMPLE, TALLY, ListReferences
from beam_jobs.steps.listing.list_units import SKIPPED, ListUnits, Units, list_scanned_units
from beam_jobs.steps.listing.scan_source import ScanSource
from beam_jobs.steps.make_plan import estimate_splits, plan_tally
from beam_jobs.steps.spread import Spread
from beam_jobs.steps.write_dataset import WriteDataset
from tpudata.format import Manifest

# Number of partial sums that many workers make, before one worker adds them.
FANOUT = 64


def build_pipeline(conversion: Conversion, pipeline: beam.Pipeline, progress: ProgressReport) -> PCollection[Manifest]:
    """Add the steps of a conversion to a pipeline, and return the manifest; docs/concepts/architecture.md draws the steps.

    Args:
        conversion: conversion whose steps are added.
        pipeline: an empty pipeline.
        progress: gets the counts of listed inputs, the planned totals, and the bytes of each converted input.
    """
    options, limits = conversion.options, conversion.options.request_limits
    # Steps that run once begin with this impulse, and take sums as side inputs with defaults: a combine that makes its own default
    # adds four transforms, each 10 ms of CPU time.
    impulse = pipeline | "Begin" >> beam.Impulse()
    unit_outputs = _list_units(conversion, pipeline)
    listed = (
        unit_outputs.units
        | "SpreadUnits" >> Spread()
        | "List"
        >> beam.ParDo(
            ListReferences(conversion.source, options, conversion.extra_bytes, progress),
            *_make_side_inputs(unit_outputs.source),
        ).with_outputs(TALLY, NAMES, SAMPLE, COUNTS, main="packs")
    )
    # Without a fanout, one worker would add the sums of all parts, which takes minutes for 10,000 parts.
    fanout = None if is_local(pipeline.options) else FANOUT
    tally = listed[TALLY] | "Tally" >> beam.CombineGlobally(SumTallies()).with_fanout(fanout).without_defaults()
    sample = listed[SAMPLE] | "Sample" >> beam.CombineGlobally(MergeSamples()).with_fanout(fanout).without_defaults()
    ratios = sample | "Estimate" >> beam.Map(apply_limits(limits, estimate_splits), conversion.estimate)
    early = _add_early_steps(conversion, listed.packs)
    counts = (
        (unit_outputs.counts, listed[COUNTS], *early.omitted)
        | beam.Flatten()
        | "Count" >> beam.CombineGlobally(SumInputCounts()).without_defaults()
    )
    overhead: Any = conversion.converter.record_overhead
    if unit_outputs.source is not None:
        overhead = AsSingleton(unit_outputs.source | "Overhead" >> beam.Map(_find_record_overhead, conversion))
    plan = impulse | "Plan" >> beam.Map(
        apply_limits(limits, plan_tally),
        AsSingleton(tally, Tally()),
        AsSingleton(ratios, {}),
        options,
        overhead,
        conversion.base,
        progress,
        AsSingleton(counts, InputCounts()),
        conversion.facts,
    )
    if unit_outputs.source is not None:
        context = unit_outputs.source | "Context" >> beam.Map(_make_context, conversion.base)
    else:
        labels = _collect_labels(conversion, impulse, listed[NAMES])
        context = labels | "Context" >> beam.Map(ShardContext, *_make_side_inputs(early.characters))
    return early.packs | WriteDataset(conversion.spec(), plan, context, counts, progress)


@dataclasses.dataclass(frozen=True)
class _UnitOutputs:
    """Outputs of the steps that find the units to list.

    Attributes:
        units: units of the source.
        counts: counts of inputs that are in no unit; for a source that is scanned, an empty one, which exists once all
            keys are compared and none is repeated.
        source: the source with its schema, if it is scanned in the pipeline; otherwise None.
    """

    units: PCollection[Units]
    counts: PCollection[InputCounts]
    source: PCollection[Source] | None = None


@dataclasses.dataclass(frozen=True)
class _EarlyResults:
    """Results of the steps that end before the plan is made.

    Attributes:
        packs: packs of the inputs that are not omitted.
        characters: the characters of all documents; None if no vocabulary is made of them.
        omitted: counts of omitted inputs, from each step that omits some.
    """

    packs: PCollection[bytes]
    characters: PCollection[str] | None
    omitted: list[PCollection[InputCounts]]


def _list_units(conversion: Conversion, pipeline: beam.Pipeline) -> _UnitOutputs:
    """Add the steps that find the units of the source, after a scan for its schema if it is a ScannedSource."""
    options = conversion.options
    if not isinstance(conversion.source, ScannedSource):
        outputs = pipeline | "ListUnits" >> ListUnits(conversion.source, options)
        return _UnitOutputs(outputs.units, outputs[SKIPPED])
    scanned = pipeline | "ScanSource" >> ScanSource(conversion.source, options)
    source = scanned.facts | "Schema" >> beam.Map(_apply_facts, conversion)
    # Without a shuffle, units are numbered in the order of the input, so the number of units before each part is needed.
    first_units = None if options.shuffle else scanned.facts | "First" >> beam.Map(_find_first_units)
    list_units = apply_limits(options.request_limits, list_scanned_units)
    units = scanned.parts | "Units" >> beam.Map(list_units, AsSingleton(source), *_make_side_inputs(first_units))
    return _UnitOutputs(units, scanned.checked, source)


def _add_early_steps(conversion: Conversion, packs: PCollection[bytes]) -> _EarlyResults:
    """Add the steps that must end before the plan is made, if the conversion needs them.

    These are the check for repeated keys, the vocabulary, and the omission of duplicates.
    """
    limits = conversion.options.request_limits
    omitted: list[PCollection[InputCounts]] = []
    # In a shuffle, records with the same key meet in one shard, whose worker finds them.
    if not (conversion.options.shuffle or conversion.has_unique_keys):
        omitted.append(packs | "CheckDuplicates" >> CheckDuplicates())
    characters = None
    if conversion.collect_characters is not None or conversion.omit_duplicates is not None:
        # Both steps read documents, some of which the listing spools, so they begin when it has ended.
        ready = packs | "Listed" >> beam.Reshuffle()
        if conversion.collect_characters is not None:
            characters = ready | "Learn" >> conversion.collect_characters(limits)
        if conversion.omit_duplicates is not None:
            omitted_and_kept = ready | "Omit" >> conversion.omit_duplicates(limits)
            packs = omitted_and_kept[KEPT]
            omitted.append(omitted_and_kept[OMITTED])
    return _EarlyResults(packs, characters, omitted)


def _collect_labels(
    conversion: Conversion, impulse: PCollection[bytes], names: PCollection[set[str]]
) -> PCollection[Labels]:
    """Return the source's classes if it knows them; otherwise the listed names, in an append after the dataset's classes."""
    source, base = conversion.source, conversion.base
    if source.labels is not None:
        return impulse | "Labels" >> beam.Map(_return_labels, source.labels)
    labels = names | "Labels" >> beam.CombineGlobally(CollectLabels(source.integer_labels, has_all_names=base is None))
    return labels if base is None else labels | "Extend" >> beam.Map(base.extend_labels, source.integer_labels)


def _return_labels(impulse: bytes, labels: Labels) -> Labels:
    """Return classes that are known when the pipeline is built, in place of the one element that starts the step."""
    del impulse
    return labels


def _make_side_inputs(side: PCollection[Any] | None) -> tuple[AsSingleton, ...]:
    """Return a step's additional arguments: a side input of one element, or nothing for None."""
    return () if side is None else (AsSingleton(side),)


def _apply_facts(facts: ScanFacts, conversion: Conversion) -> Source:
    """Return the conversion's source with the schema of the merged `facts` of its scan.

    Raises what `Conversion.replace_source` raises.
    """
    assert isinstance(conversion.source, ScannedSource)
    # `replace_source` also checks the options and the dataset to append to; only the source is needed here.
    return conversion.replace_source(conversion.source.apply_scans(facts)).source


def _find_first_units(facts: ScanFacts) -> dict[int, int]:
    """Return, by index of a scanned part of the input, the index of its first unit: each block of a part becomes a unit."""
    first_units: dict[int, int] = facts.first_blocks()
    return first_units


def _find_record_overhead(source: Source, conversion: Conversion) -> int:
    """Return the size in bytes of a record in addition to its content and texts, which only a scanned source determines."""
    return conversion.replace_source(source).converter.record_overhead


def _make_context(source: Source, base: Base | None) -> ShardContext:
    """Return what shards need to know of a scanned source: its record columns and its classes."""
    labels = source.labels
    if labels is None:
        # After the scan, None means that there are no classes; an append keeps those of the dataset.
        labels = Labels(()) if base is None else base.extend_labels(Labels(()), source.integer_labels)
    return ShardContext(labels, columns=source.record_columns)

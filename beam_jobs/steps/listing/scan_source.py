"""The step before listing, for a source whose schema depends on all of its input: workers read its parts.

The numbers of the rows in a part are known only when it is read from its start, so one worker reads a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, PCollection, TaggedOutput

from beam_jobs.options import ConvertOptions
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.references.repeated_keys import Repeat, find_first_repeat, group_key_rows
from beam_jobs.sources import Source
from beam_jobs.sources.installed.source_checks import list_parts
from beam_jobs.sources.source import Scan, ScanFacts, ScannedSource, SourcePart
from beam_jobs.steps.limited_step import LimitedStep, apply_limits, holds_limits
from beam_jobs.steps.listing.growing_batches import batch_growing
from beam_jobs.steps.spread import Spread
from tpudata.storage import held_request_limits

_FACTS, _KEYS = "facts", "keys"
# Rows whose keys a worker holds back, so that a group gets some hundreds of them at a time.
_MAX_HELD_ROWS = 1 << 16
# Parts of the scanned source: (index of the part of the input that has it, its index in that part, the part).
ScannedParts: TypeAlias = list[tuple[int, int, SourcePart]]


class ScanOutputs(NamedTuple):
    """Results of a scan.

    Attributes:
        parts: parts of the scanned source.
        facts: facts about all parts: one element.
        checked: empty InputCounts: one element, which exists once all keys are compared, if no two rows have the same key.
    """

    parts: PCollection[ScannedParts]
    facts: PCollection[ScanFacts]
    checked: PCollection[InputCounts]


class ScanSource(beam.PTransform):  # type: ignore[misc]
    """Transform that scans all parts of a source, and yields its facts and parts.

    Args:
        source: source of the conversion.
        options: options with the limits of requests.
    """

    def __init__(self, source: ScannedSource, options: ConvertOptions) -> None:
        super().__init__()
        self._source = source
        self._options = options

    def expand(self, begin: beam.pvalue.PBegin) -> ScanOutputs:
        """Scan the parts of the source on all workers; sum up their facts, and check that no key is repeated."""
        outputs = (
            begin
            | "Begin" >> beam.Impulse()
            | "Number" >> beam.FlatMap(_number_parts, self._source, self._options)
            | "SpreadParts" >> Spread()
            | "Scan" >> beam.ParDo(_ScanParts(self._source, self._options)).with_outputs(_FACTS, _KEYS, main="parts")
        )
        facts = outputs[_FACTS] | "Facts" >> beam.CombineGlobally(_SumFacts(self._source))
        repeats = outputs[_KEYS] | "ByKey" >> beam.GroupByKey() | "Repeats" >> beam.FlatMap(_find_repeats)
        checked = (
            repeats
            | "Repeat" >> beam.combiners.ToList()
            | "Check"
            >> beam.Map(apply_limits(self._options.request_limits, _check_repeats), self._source, AsSingleton(facts))
        )
        return ScanOutputs(outputs.parts, facts, checked)


def scan_here(source: ScannedSource) -> Source:
    """Scan a source in this process, and return it with its schema and the parts that were found.

    Raises:
        SourceError: two rows have the same key, or the input is invalid.
        UsageError: the options do not fit the input.
    """
    facts = source.no_facts()
    parts: list[Any] = []
    key_rows: list[bytes] = []
    for index, part in enumerate(list_parts(source)):
        scan = source.scan(index, part)
        for scanned_part in scan.parts():
            parts.append(scanned_part)
            key_rows.append(scan.take_rows().tobytes())
        facts.merge(scan.facts)
    repeat = find_first_repeat(key_rows)
    if repeat is not None:
        raise source.describe_repeat(repeat, facts)
    return source.apply_scans(facts, parts)


def _number_parts(
    impulse: bytes, source: ScannedSource, options: ConvertOptions
) -> Iterator[list[tuple[int, SourcePart]]]:
    """Yield the parts of a source, each with its index, in batches; `impulse` is the one element that starts the step."""
    del impulse
    with held_request_limits(options.request_limits):
        yield from batch_growing(enumerate(list_parts(source)), first_size=1)


class _ScanParts(LimitedStep):
    """DoFn that yields the ScannedParts of some parts of the input, and as side outputs their facts, and keys of rows by group."""

    def __init__(self, source: ScannedSource, options: ConvertOptions) -> None:
        super().__init__(options.request_limits)
        self._source = source

    @holds_limits
    def process(self, indexed_parts: Sequence[tuple[int, SourcePart]]) -> Iterator[Any]:
        """Scan some parts of the input; yield their ScannedParts in batches, and after each batch the side outputs so far."""
        side_outputs: list[TaggedOutput] = []
        for parts in batch_growing(self._scan_parts(indexed_parts, side_outputs), len(indexed_parts)):
            yield parts
            yield from side_outputs
            side_outputs.clear()
        # The facts of the last part, and its last keys, are there only after its batch.
        yield from side_outputs

    def _scan_parts(
        self, indexed_parts: Sequence[tuple[int, SourcePart]], side_outputs: list[TaggedOutput]
    ) -> Iterator[tuple[int, int, SourcePart]]:
        """Yield the scanned parts with their indices; append to `side_outputs` their facts, and keys of rows by group."""
        for part_index, part in indexed_parts:
            scan = self._source.scan(part_index, part)
            for index_in_part, scanned_part in enumerate(scan.parts()):
                yield part_index, index_in_part, scanned_part
                if scan.held >= _MAX_HELD_ROWS:
                    side_outputs += _tag_groups(scan)
            side_outputs += _tag_groups(scan)
            side_outputs.append(TaggedOutput(_FACTS, scan.facts))


def _tag_groups(scan: Scan) -> list[TaggedOutput]:
    """Take the rows that a scan holds, and return their keys by group, as elements of the side output."""
    return [TaggedOutput(_KEYS, group) for group in group_key_rows(scan.take_rows())] if scan.held else []


class _SumFacts(beam.CombineFn):  # type: ignore[misc]
    """Combination of the facts about parts of a source."""

    def __init__(self, source: ScannedSource) -> None:
        super().__init__()
        self._source = source

    def create_accumulator(self) -> ScanFacts:
        return self._source.no_facts()

    def add_input(self, total: ScanFacts, facts: ScanFacts) -> ScanFacts:
        total.merge(facts)
        return total

    def merge_accumulators(self, totals: Iterable[ScanFacts]) -> ScanFacts:
        total = self._source.no_facts()
        for facts in totals:
            total.merge(facts)
        return total

    def extract_output(self, total: ScanFacts) -> ScanFacts:
        return total


def _find_repeats(group: tuple[int, Iterable[bytes]]) -> Iterator[Repeat]:
    """Yield the first repeated key of a group, if there is one."""
    _, key_rows = group
    repeat = find_first_repeat(key_rows)
    if repeat is not None:
        yield repeat


def _check_repeats(repeats: list[Repeat], source: ScannedSource, facts: ScanFacts) -> InputCounts:
    """Raise the error of the source if a key is repeated; otherwise return empty InputCounts, for which the plan waits."""
    if repeats:
        # The first one by order, so that the message does not depend on the workers.
        raise source.describe_repeat(min(repeats), facts)
    return InputCounts()

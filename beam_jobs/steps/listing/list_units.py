"""The first step: from a source to the units that workers list; workers find them, not the process that starts the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from beam_jobs.options import ConvertOptions
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.sources import Source
from beam_jobs.sources.installed.source_checks import list_parts, list_units
from beam_jobs.sources.source import SourcePart, SourceUnit
from beam_jobs.steps.limited_step import LimitedStep, holds_limits
from beam_jobs.steps.listing.growing_batches import batch_growing
from beam_jobs.steps.listing.scan_source import ScannedParts
from beam_jobs.steps.spread import Spread
from tpudata.storage import held_request_limits

# Name of the side output: InputCounts of ignored files, and of notes, which are facts about the input that become warnings.
SKIPPED = "skipped"
# Units that one worker lists one after the other, each with its index; with --no-shuffle, the index decides the order of records.
Units: TypeAlias = list[tuple[int, SourceUnit]]


class ListUnits(beam.PTransform):  # type: ignore[misc]
    """Transform from the beginning of a pipeline to Units, with the side output SKIPPED.

    Parts are found by one worker, and split by many. With --no-shuffle one worker does both, since it counts the units.

    Args:
        source: source of the conversion.
        options: options for the shuffle and the limits of requests.
    """

    def __init__(self, source: Source, options: ConvertOptions) -> None:
        super().__init__()
        self._source = source
        self._options = options

    def expand(self, begin: beam.pvalue.PBegin) -> Any:
        """Divide the source into parts if records are shuffled, and list the units of each part, or of the whole source."""
        parts = begin | "Begin" >> beam.Impulse()
        if self._options.shuffle:
            parts |= "Parts" >> beam.FlatMap(_group_parts, self._source, self._options) | "SpreadParts" >> Spread()
        return parts | "Units" >> beam.ParDo(_SplitParts(self._source, self._options)).with_outputs(
            SKIPPED, main="units"
        )


def enumerate_units(source: Source, ignored: list[str]) -> Iterator[tuple[int, SourceUnit]]:
    """Yield all units of a source, each with its index.

    Args:
        source: source of a conversion.
        ignored: list to which the path of each file that is ignored because of its name is appended.
    """
    yield from enumerate(unit for part in list_parts(source) for unit in list_units(source, part, ignored))


def _group_parts(impulse: bytes, source: Source, options: ConvertOptions) -> Iterator[list[SourcePart]]:
    """Yield the parts of a source in batches; `impulse` is the one element that starts the step."""
    del impulse
    with held_request_limits(options.request_limits):
        yield from batch_growing(list_parts(source), first_size=1)


def list_scanned_units(parts: ScannedParts, source: Source, first_units: Mapping[int, int] | None = None) -> Units:
    """Return the units of parts that a scan has found, each with its index.

    Args:
        parts: parts of the source; each is one unit.
        source: the source, with its schema.
        first_units: by index of a scanned part of the input, the index of its first unit; None if the order does not matter.
    """
    indices = [
        0 if first_units is None else first_units[part_index] + index_in_part for part_index, index_in_part, _ in parts
    ]
    # `list_units` adds ignored files to the list: none here, since `units` ignores nothing in a block of a file or a range
    # of a folder.
    units = (unit for _, _, part in parts for unit in list_units(source, part, []))
    return list(zip(indices, units, strict=True))


class _SplitParts(LimitedStep):
    """DoFn that yields the Units of some parts; for the impulse, which is bytes, the Units of the whole source."""

    def __init__(self, source: Source, options: ConvertOptions) -> None:
        super().__init__(options.request_limits)
        self._source = source

    @holds_limits
    def process(self, parts: Sequence[SourcePart] | bytes) -> Iterator[Any]:
        """Yield batches of units, and to SKIPPED the ignored files and the notes, if there are any."""
        counts = InputCounts()
        ignored: list[str] = []
        source = self._source.noting(counts.notes.add)
        if isinstance(parts, bytes):
            indexed_units: Iterable[tuple[int, SourceUnit]] = enumerate_units(source, ignored)
        else:
            # This is a shuffle, in which the order of units does not matter, so all have the index 0.
            indexed_units = ((0, unit) for part in parts for unit in list_units(source, part, ignored))
        # The impulse is b"", of length 0; the first batches of its units have one unit each.
        for units in batch_growing(indexed_units, len(parts) or 1):
            yield units
            counts.ignored_count += len(ignored)
            ignored.clear()
        # Files that were ignored after the last unit.
        counts.ignored_count += len(ignored)
        if counts != InputCounts():
            yield TaggedOutput(SKIPPED, counts)

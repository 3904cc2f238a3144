"""A source of the inputs that a dataset does not have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.metrics.metric import MetricResults
from apache_beam.runners.runner import PipelineResult

from beam_jobs.append.base import Base
from beam_jobs.append.entries import Standing, make_entries, make_sought_words, split_words
from beam_jobs.append.entry_file import open_entry_file
from beam_jobs.references.labels import Labels
from beam_jobs.references.notes import Note
from beam_jobs.references.packs.listed_pack import ListedPack
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.references.repeated_keys import Repeat
from beam_jobs.run.job import counter_value
from beam_jobs.sources import Source
from beam_jobs.sources.installed.source_checks import list_parts, list_references, list_units
from beam_jobs.sources.source import PackSource, Scan, ScannedSource
from tpudata.errors import BadRecordError, SourceError
from tpudata.format import Feature

if TYPE_CHECKING:
    from beam_jobs.image_records.annotated.schema import AnnotationSchema

# Beam counter: inputs whose records the dataset has.
_KNOWN_COUNTER = "known"
# Inputs that are looked up together, and the bytes of their documents at most.
_HELD_INPUTS, _HELD_BYTES = 1 << 15, 1 << 24


@dataclasses.dataclass(frozen=True)
class NewInputs(Source):
    """The new records of a source: a Source itself.

    Attributes:
        source: source of all records.
        base: the dataset that has some of them.
        path: the file that `write_entry_file` has written.
    """

    source: Source
    base: Base
    path: str

    @property
    def has_classes(self) -> bool:
        """As the source."""
        return self.source.has_classes

    @property
    def several_labels(self) -> bool:
        """As the source."""
        return self.source.several_labels

    @property
    def labels(self) -> Labels | None:
        """The classes of the dataset, then those that the source adds, if it knows them before listing."""
        return (
            None
            if self.source.labels is None
            else self.base.extend_labels(self.source.labels, self.source.integer_labels)
        )

    @property
    def integer_labels(self) -> bool:
        """As the source."""
        return self.source.integer_labels

    @property
    def features(self) -> tuple[Feature, ...]:
        """As the source."""
        return self.source.features

    @property
    def annotations(self) -> AnnotationSchema | None:
        """As the source."""
        return self.source.annotations

    def noting(self, note: Note) -> NewInputs:
        """Return the new records of the source that notes if it can."""
        return dataclasses.replace(self, source=self.source.noting(note))

    def parts(self) -> Iterable[Any]:
        """Delegate to the source."""
        return list_parts(self.source)

    def units(self, part: Any, ignored: list[str]) -> Iterator[Any]:
        """Yield the units of the source, each with the number of the append, so that names from units differ from earlier runs'.

        Args:
            part: one of `parts()`.
            ignored: gets the path of each file that is skipped by its name.
        """
        return ((self.base.number, unit) for unit in list_units(self.source, part, ignored))

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to each new record of a unit, and pass on the rejections that the dataset does not list.

        Args:
            unit: one of `units`.
            ignored: gets the path of each file that is skipped by its name.
            reject: called with a new rejection.

        Raises:
            SourceError: an input that has a record in the dataset has changed.
        """
        # References and rejections in the order in which they are listed.
        batch: list[Reference | BadRecordError] = []
        size = 0
        for reference in list_references(self.source, unit[1], ignored, batch.append):
            batch.append(reference)
            size += len(reference.data)
            if len(batch) >= _HELD_INPUTS or size >= _HELD_BYTES:
                yield from self._select_references(batch, reject)
                batch.clear()
                size = 0
        yield from self._select_references(batch, reject)

    def _select_references(self, inputs: Sequence[Reference | BadRecordError], reject: Reject) -> Iterator[Reference]:
        """Yield new inputs, reject new errors, and count inputs that have a record; SourceError if one of these has changed."""
        count = 0
        for listed_input, standing in zip(inputs, open_entry_file(self.path).standings(inputs), strict=True):
            if standing is Standing.NEW and isinstance(listed_input, BadRecordError):
                reject(listed_input)
            elif standing is Standing.NEW and isinstance(listed_input, Reference):
                yield listed_input
            elif standing is Standing.CHANGED and isinstance(listed_input, Reference):
                raise self._describe_change(listed_input)
            count += standing is Standing.RECORD
        Metrics.counter("tpudata", _KNOWN_COUNTER).inc(count)

    def _describe_change(self, reference: Reference) -> SourceError:
        return SourceError(
            f"{reference.origin}: {self.base.output} has a record of {reference.key!r} already, and its size, class,"
            " split or columns are not what they were then. --append changes no record: put back what was there, give the"
            " new one another name, or pass --overwrite to convert everything again."
        )


class NewPacks(NewInputs, PackSource):
    """The new records of a PackSource; it is a PackSource itself."""

    source: PackSource

    def noting(self, note: Note) -> NewPacks:
        """Return the new records of the source that notes."""
        return dataclasses.replace(self, source=self.source.noting(note))

    def packs(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[ListedPack]:
        """Yield the new records of a unit by column, and pass on rejections as `references` does."""
        batch: list[ListedPack | BadRecordError] = []
        count = size = 0
        for pack in self.source.packs(unit[1], ignored, batch.append):
            batch.append(pack)
            count += len(pack.digests)
            size += pack.held_bytes
            if count >= _HELD_INPUTS or size >= _HELD_BYTES:
                yield from self._select_rows(batch, reject)
                batch, count, size = [], 0, 0
        yield from self._select_rows(batch, reject)

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield the same references one by one."""
        return PackSource.references(self, unit, ignored, reject)

    def _select_rows(self, inputs: Sequence[ListedPack | BadRecordError], reject: Reject) -> Iterator[ListedPack]:
        """Yield packs of only the new inputs; otherwise as `_select_references`."""
        file, count = open_entry_file(self.path), 0
        words = [
            make_sought_words([listed_input])
            if isinstance(listed_input, BadRecordError)
            else split_words(make_entries([listed_input.pack], [listed_input.digests]))
            for listed_input in inputs
        ]
        if not words:
            return
        lengths = list(map(len, words))
        is_error = np.repeat([isinstance(listed_input, BadRecordError) for listed_input in inputs], lengths)
        standings = file.look_up_standings(np.concatenate(words), is_error)
        for listed_input, standing_of_rows in zip(inputs, np.split(standings, np.cumsum(lengths)[:-1]), strict=True):
            rows = np.flatnonzero(standing_of_rows == Standing.NEW)
            if isinstance(listed_input, BadRecordError):
                if len(rows):
                    reject(listed_input)
                continue
            changed = np.flatnonzero(standing_of_rows == Standing.CHANGED)
            if len(changed):
                raise self._describe_change(listed_input.pack.reference(int(changed[0])))
            count += int((standing_of_rows == Standing.RECORD).sum())
            if len(rows):
                yield listed_input if len(rows) == len(standing_of_rows) else listed_input.take(rows)
        Metrics.counter("tpudata", _KNOWN_COUNTER).inc(count)


class NewScannedInputs(NewInputs, ScannedSource):
    """The new records of a ScannedSource: one itself."""

    source: ScannedSource

    def no_facts(self) -> Any:
        """Delegate to the source."""
        return self.source.no_facts()

    def scan(self, index: int, part: Any) -> Scan:
        """Delegate to the source."""
        return self.source.scan(index, part)

    def apply_scans(self, facts: Any, parts: Iterable[Any] | None = None) -> NewInputs:
        """Return the new records of the source with its schema."""
        return _select_new(self.source.apply_scans(facts, parts), self.base, self.path)

    def describe_repeat(self, repeat: Repeat, facts: Any) -> SourceError:
        """Delegate to the source."""
        return self.source.describe_repeat(repeat, facts)


def new_inputs(source: Source, base: Base, path: str) -> NewInputs:
    """Return the new records of a source, which is listed as the source itself is; see `NewInputs`."""
    if isinstance(source, ScannedSource):
        return NewScannedInputs(source, base, path)
    return _select_new(source, base, path)


def _select_new(source: Source, base: Base, path: str) -> NewInputs:
    """Return the new records of a source that needs no scan."""
    return (NewPacks if isinstance(source, PackSource) else NewInputs)(source, base, path)


def count_stored_inputs(result: PipelineResult) -> int | None:
    """Return the number of a run's inputs that have a record in the dataset; None if the runner keeps no count."""
    counters = result.metrics().query(MetricsFilter().with_name(_KNOWN_COUNTER))[MetricResults.COUNTERS]
    counts = [counter_value(counter) for counter in counters]
    # An engine that sends a counter without its value keeps none.
    return None if not counts or None in counts else sum(count for count in counts if count is not None)

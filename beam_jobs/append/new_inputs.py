"""Sources of the new inputs of another source: those that a dataset does not have yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.metrics.metric import MetricResults
from apache_beam.runners.runner import PipelineResult

from beam_jobs.append.base import Base
from beam_jobs.append.entries import Standing, make_entries, split_words
from beam_jobs.append.entry_file import open_entry_file
from beam_jobs.references.labels import Labels
from beam_jobs.references.notes import Note
from beam_jobs.references.packs.listed_pack import ListedPack
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.references.repeated_keys import Repeat
from beam_jobs.run.job import counter_value
from beam_jobs.sources.installed.source_checks import list_parts, list_references, list_units
from beam_jobs.sources.source import PackSource, Scan, ScanFacts, ScannedSource, Source, SourcePart, SourceUnit
from tpudata.errors import BadRecordError, SourceError
from tpudata.format import Feature

if TYPE_CHECKING:
    from beam_jobs.image_records.annotated.schema import AnnotationSchema

# Beam counter: inputs that have a record in the dataset.
_STORED_COUNTER = "known"
# Inputs are looked up together once there are this many, or their documents have this many bytes.
_MAX_HELD_INPUTS, _MAX_HELD_BYTES = 1 << 15, 1 << 24
# Rejections are looked up together once there are this many: about 1 MB.
_MAX_HELD_REJECTIONS = 1 << 11


@dataclasses.dataclass(frozen=True)
class NewInputs(Source):
    """A source of the new inputs of another source.

    Attributes:
        source: source of all inputs.
        base: the dataset that has some of them.
        path: path of the dataset's entry file, written by `write_entry_file`.
    """

    source: Source
    base: Base
    path: str

    @property
    def has_classes(self) -> bool:
        """Whether the source has classes."""
        return self.source.has_classes

    @property
    def several_labels(self) -> bool:
        """Whether records of the source may have any number of classes."""
        return self.source.several_labels

    @property
    def labels(self) -> Labels | None:
        """The classes of the dataset, then those that the source adds; None if the listing collects classes."""
        if self.source.labels is None:
            return None
        return self.base.extend_labels(self.source.labels, self.source.integer_labels)

    @property
    def integer_labels(self) -> bool:
        """Whether the class names of the source are integers that are the labels themselves."""
        return self.source.integer_labels

    @property
    def features(self) -> tuple[Feature, ...]:
        """Schema of the features of the source's references."""
        return self.source.features

    @property
    def annotations(self) -> AnnotationSchema | None:
        """Schema of the source's annotations; None without annotations."""
        return self.source.annotations

    def noting(self, note: Note) -> NewInputs:
        """Return the new inputs of the source that calls `note`; see `Source.noting`."""
        return dataclasses.replace(self, source=self.source.noting(note))

    def parts(self) -> Iterable[SourcePart]:
        """Return the parts of the source."""
        return list_parts(self.source)

    def units(self, part: SourcePart, ignored: list[str]) -> Iterator[tuple[int, SourceUnit]]:
        """Yield (number of the append, unit) for each unit of the source.

        Files of rejects are named after units: without the number, an append could replace files of an earlier run.

        Args:
            part: one of `parts()`.
            ignored: list to which the path of each file that is skipped by its name is appended.
        """
        return ((self.base.number, unit) for unit in list_units(self.source, part, ignored))

    def references(
        self, unit: tuple[int, SourceUnit], ignored: list[str], reject: Reject = raise_rejection
    ) -> Iterator[Reference]:
        """Yield a reference to each new input of a unit, and pass on the rejections that the dataset does not list.

        Args:
            unit: (number of the append, unit of the source), from `units`.
            ignored: list to which the path of each file that is skipped by its name is appended.
            reject: called with a new rejection.

        Raises:
            SourceError: an input that has a record in the dataset has changed.
        """
        new_rejections = _NewRejections(self.path, reject)
        batch: list[Reference] = []
        held_bytes = 0
        for reference in list_references(self.source, unit[1], ignored, new_rejections.add):
            batch.append(reference)
            held_bytes += len(reference.data)
            if len(batch) >= _MAX_HELD_INPUTS or held_bytes >= _MAX_HELD_BYTES:
                new_rejections.pass_on()
                yield from self._select_references(batch)
                batch, held_bytes = [], 0
        new_rejections.pass_on()
        yield from self._select_references(batch)

    def _select_references(self, references: Sequence[Reference]) -> Iterator[Reference]:
        """Yield new references, and count inputs with a record; SourceError if an input has changed."""
        stored_count = 0
        for reference, standing in zip(references, open_entry_file(self.path).find_standings(references), strict=True):
            if standing is Standing.NEW:
                yield reference
            elif standing is Standing.CHANGED:
                raise self._make_change_error(reference)
            stored_count += standing is Standing.RECORD
        Metrics.counter("tpudata", _STORED_COUNTER).inc(stored_count)

    def _make_change_error(self, reference: Reference) -> SourceError:
        """Return the error of an input that has a record in the dataset and has changed since."""
        return SourceError(
            f"{reference.origin}: {self.base.output} has a record of {reference.key!r} already, and its size, class,"
            " split or columns have changed since. --append changes no record: restore the old input, give the new one another"
            " name, or pass --overwrite to convert everything again."
        )


class NewPacks(NewInputs, PackSource):
    """The new inputs of a PackSource, as a PackSource."""

    source: PackSource

    def noting(self, note: Note) -> NewPacks:
        """Return the new inputs of the source that calls `note`; see `Source.noting`."""
        return dataclasses.replace(self, source=self.source.noting(note))

    def packs(
        self, unit: tuple[int, SourceUnit], ignored: list[str], reject: Reject = raise_rejection
    ) -> Iterator[ListedPack]:
        """Yield packs of the new inputs of a unit, and pass on the rejections that the dataset does not list."""
        new_rejections = _NewRejections(self.path, reject)
        batch: list[ListedPack] = []
        held_inputs = held_bytes = 0
        for pack in self.source.packs(unit[1], ignored, new_rejections.add):
            batch.append(pack)
            held_inputs += len(pack.digests)
            held_bytes += pack.held_bytes
            if held_inputs >= _MAX_HELD_INPUTS or held_bytes >= _MAX_HELD_BYTES:
                new_rejections.pass_on()
                yield from self._select_packs(batch)
                batch = []
                held_inputs = held_bytes = 0
        new_rejections.pass_on()
        yield from self._select_packs(batch)

    def references(
        self, unit: tuple[int, SourceUnit], ignored: list[str], reject: Reject = raise_rejection
    ) -> Iterator[Reference]:
        """Yield the references in `packs` one by one."""
        # Called by name, since `super` would take the method of NewInputs.
        return PackSource.references(self, unit, ignored, reject)

    def _select_packs(self, packs: Sequence[ListedPack]) -> Iterator[ListedPack]:
        """Yield packs of the new inputs, and count inputs with a record; SourceError if an input has changed."""
        if not packs:
            return
        entries = make_entries([pack.pack for pack in packs], [pack.digests for pack in packs])
        is_error = np.zeros(len(entries), np.bool_)
        all_standings = open_entry_file(self.path).look_up_standings(split_words(entries), is_error)
        pack_ends = np.cumsum([len(pack.digests) for pack in packs])
        stored_count = 0
        for pack, standings in zip(packs, np.split(all_standings, pack_ends[:-1]), strict=True):
            changed_rows = np.flatnonzero(standings == Standing.CHANGED)
            if len(changed_rows):
                raise self._make_change_error(pack.pack.reference(int(changed_rows[0])))
            new_rows = np.flatnonzero(standings == Standing.NEW)
            stored_count += int((standings == Standing.RECORD).sum())
            if len(new_rows):
                yield pack if len(new_rows) == len(standings) else pack.take(new_rows)
        Metrics.counter("tpudata", _STORED_COUNTER).inc(stored_count)


class _NewRejections:
    """Passes the rejections that a dataset does not list on to `reject`, in their order, a batch at a time.

    Args:
        path: path of the dataset's entry file.
        reject: called with each new rejection.
    """

    def __init__(self, path: str, reject: Reject) -> None:
        self._path = path
        self._reject = reject
        self._held: list[BadRecordError] = []

    def add(self, rejection: BadRecordError) -> None:
        """Hold a rejection, and pass a full batch on."""
        self._held.append(rejection)
        if len(self._held) >= _MAX_HELD_REJECTIONS:
            self.pass_on()

    def pass_on(self) -> None:
        """Pass on the held rejections that the dataset does not list, and hold none."""
        if not self._held:
            return
        held, self._held = self._held, []
        for rejection, standing in zip(held, open_entry_file(self._path).find_standings(held), strict=True):
            if standing is Standing.NEW:
                self._reject(rejection)


class NewScannedInputs(NewInputs, ScannedSource):
    """The new inputs of a ScannedSource, as a ScannedSource."""

    source: ScannedSource

    def no_facts(self) -> ScanFacts:
        """Return empty facts of the source."""
        return self.source.no_facts()

    def scan(self, index: int, part: SourcePart) -> Scan:
        """Return the source's scan of a part."""
        return self.source.scan(index, part)

    def apply_scans(self, facts: ScanFacts, parts: Iterable[SourcePart] | None = None) -> NewInputs:
        """Return the new inputs of the source that the scans complete."""
        return _select_new(self.source.apply_scans(facts, parts), self.base, self.path)

    def describe_repeat(self, repeat: Repeat, facts: ScanFacts) -> SourceError:
        """Return the source's error of two rows that have the same key."""
        return self.source.describe_repeat(repeat, facts)


def make_new_inputs(source: Source, base: Base, path: str) -> NewInputs:
    """Return the new inputs of a source as a source of the same kind, so that it is listed in the same way; see `NewInputs`."""
    if isinstance(source, ScannedSource):
        return NewScannedInputs(source, base, path)
    return _select_new(source, base, path)


def _select_new(source: Source, base: Base, path: str) -> NewInputs:
    """Return the new inputs of a source that needs no scan."""
    if isinstance(source, PackSource):
        return NewPacks(source, base, path)
    return NewInputs(source, base, path)


def count_stored_inputs(result: PipelineResult) -> int | None:
    """Return the number of a run's inputs that have a record in the dataset; None if the runner keeps no count."""
    counters = result.metrics().query(MetricsFilter().with_name(_STORED_COUNTER))[MetricResults.COUNTERS]
    counts = [counter_value(counter) for counter in counters]
    reported_counts = [count for count in counts if count is not None]
    # Some runners list a counter without its value, so that the sum is unknown.
    return sum(reported_counts) if counts and len(reported_counts) == len(counts) else None

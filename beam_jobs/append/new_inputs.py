"""What an input has that a dataset has not: a source that lists only that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.metrics.metric import MetricResults
from apache_beam.runners.runner import PipelineResult

from beam_jobs.append.base import Base
from beam_jobs.append.known_keys import Standing, known_in
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.sources import Refuse, Source, raise_refusal
from tpudata.errors import BadRecordError, SourceError
from tpudata.format import Feature

# Beam counter: inputs whose records the dataset has.
_KNOWN = "known"


@dataclasses.dataclass(frozen=True)
class NewInputs:
    """The new records of a source: a Source itself.

    Attributes:
        source: lists all records.
        base: the dataset that has some of them.
        path: the file that `write_known` has written.
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
        """The classes of the dataset, then those that the source adds, where it knows them before listing."""
        return None if self.source.labels is None else self.base.extended(self.source.labels)

    @property
    def integer_labels(self) -> bool:
        """As the source."""
        return self.source.integer_labels

    @property
    def extra(self) -> tuple[Feature, ...]:
        """As the source."""
        return self.source.extra

    def units(self) -> Sequence[Any]:
        """Those of the source, each with the number of the append: what is named after a unit is then no earlier run's."""
        return [(self.base.number, unit) for unit in self.source.units()]

    def references(self, unit: Any, ignored: list[str], refuse: Refuse = raise_refusal) -> Iterator[Reference]:
        """Yields a reference to each new record of a unit, and passes on the refusals that the dataset does not list.

        Raises:
            SourceError: an input that the dataset has a record of is not what it was.
        """
        known = known_in(self.path)
        count = 0

        def refuse_new(error: BadRecordError) -> None:
            if not known.has_refused(error):
                refuse(error)

        for reference in self.source.references(unit[1], ignored, refuse_new):
            standing = known.standing(reference)
            if standing is Standing.NEW:
                yield reference
            elif standing is Standing.CHANGED:
                raise SourceError(
                    f"{reference.origin}: {self.base.output} has a record of {reference.key!r} already, and its size, class,"
                    " split or columns are not what they were then. --append changes no record: put back what was there, give the"
                    " new one another name, or say --overwrite to convert everything again."
                )
            else:
                count += standing is Standing.RECORD
        Metrics.counter("tpudata", _KNOWN).inc(count)


def known_count(result: PipelineResult) -> int | None:
    """How many inputs a run has met whose records the dataset has; None where the runner keeps no count."""
    found = result.metrics().query(MetricsFilter().with_name(_KNOWN))[MetricResults.COUNTERS]
    return sum(int(counter.result) for counter in found) if found else None

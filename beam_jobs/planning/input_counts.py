"""Counts of a conversion's inputs that get no record, and notes about its input."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

import apache_beam as beam

from beam_jobs.references.notes import Notes


@dataclasses.dataclass
class InputCounts:
    """Counts of inputs that get no record, and notes, of a part of the input or of all of it.

    Attributes:
        ignored_count: number of files that were ignored, mostly because of their names.
        rejected: number of records that were rejected before the plan, by kind.
        duplicates: by split, (number, bytes) of inputs that were listed and then omitted as duplicates.
        notes: notes of the source.
        classes: class names that occur, by split.
    """

    ignored_count: int = 0
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    duplicates: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    notes: Notes = dataclasses.field(default_factory=Notes)
    classes: dict[str, set[str]] = dataclasses.field(default_factory=dict)

    def add(self, part: InputCounts) -> None:
        """Add the counts of another part."""
        self.ignored_count += part.ignored_count
        self.rejected = dict(Counter(self.rejected) + Counter(part.rejected))
        for split, (count, size) in part.duplicates.items():
            earlier_count, earlier_size = self.duplicates.get(split, (0, 0))
            self.duplicates[split] = earlier_count + count, earlier_size + size
        self.notes.merge(part.notes)
        for split, names in part.classes.items():
            self.classes.setdefault(split, set()).update(names)

    @classmethod
    def sum(cls, parts: Iterable[InputCounts]) -> InputCounts:
        """Return the counts of several parts together."""
        total = cls()
        for part in parts:
            total.add(part)
        return total


class SumInputCounts(beam.CombineFn):  # type: ignore[misc]
    """Combination of InputCounts into one."""

    def create_accumulator(self) -> InputCounts:
        """Return zero counts."""
        return InputCounts()

    def add_input(self, total: InputCounts, part: InputCounts) -> InputCounts:
        """Add a part to the total."""
        total.add(part)
        return total

    def merge_accumulators(self, parts: Iterable[InputCounts]) -> InputCounts:
        """Return the sum."""
        return InputCounts.sum(parts)

    def extract_output(self, total: InputCounts) -> InputCounts:
        """Return the counts."""
        return total

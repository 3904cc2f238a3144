"""Counts of a conversion's inputs that get no record."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

import apache_beam as beam


@dataclasses.dataclass(frozen=True)
class InputCounts:
    """Counts of inputs that get no record, in a part of the input or in all of it.

    Attributes:
        ignored: files that were skipped by their names.
        rejected: records that were rejected before the plan, by kind.
        duplicates: inputs that were planned and then omitted, by split: their number and bytes.
    """

    ignored: int = 0
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    duplicates: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def sum(cls, parts: Iterable[InputCounts]) -> InputCounts:
        """Return the counts of several parts together."""
        ignored, rejected, duplicates = 0, Counter[str](), dict[str, tuple[int, int]]()
        for part in parts:
            ignored += part.ignored
            rejected.update(part.rejected)
            for split, (count, size) in part.duplicates.items():
                before = duplicates.get(split, (0, 0))
                duplicates[split] = before[0] + count, before[1] + size
        return cls(ignored, dict(rejected), duplicates)


class SumInputCounts(beam.CombineFn):  # type: ignore[misc]
    """Combination of InputCounts into one."""

    def create_accumulator(self) -> InputCounts:
        """Return zero counts."""
        return InputCounts()

    def add_input(self, total: InputCounts, part: InputCounts) -> InputCounts:
        """Return the sum of both."""
        return InputCounts.sum([total, part])

    def merge_accumulators(self, parts: Iterable[InputCounts]) -> InputCounts:
        """Return the sum."""
        return InputCounts.sum(parts)

    def extract_output(self, total: InputCounts) -> InputCounts:
        """Return the counts."""
        return total

"""Counts of a conversion's inputs besides those that are planned."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

import apache_beam as beam


@dataclasses.dataclass(frozen=True)
class InputCounts:
    """Inputs that get no record, of a part of the input or of all of it.

    Attributes:
        ignored: files that were skipped by their names.
        rejected: records that were rejected before there was a plan, by kind.
        duplicates: inputs that were planned and then omitted, by split: how many, and their bytes.
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
    """Combines InputCounts into one."""

    def create_accumulator(self) -> InputCounts:
        """Return counts of nothing."""
        return InputCounts()

    def add_input(self, total: InputCounts, part: InputCounts) -> InputCounts:
        """Return both together."""
        return InputCounts.sum([total, part])

    def merge_accumulators(self, parts: Iterable[InputCounts]) -> InputCounts:
        """Return all together."""
        return InputCounts.sum(parts)

    def extract_output(self, total: InputCounts) -> InputCounts:
        """Return the counts."""
        return total

"""A sample of the references of each split: those whose keys have the smallest digests, so it does not depend on the order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import apache_beam as beam

from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import Reference, key_digest

# For images whose ratios vary by half of their mean, 200 determine the mean within 4 %.
SAMPLE_SIZE = 200


class Sample:
    """Sample of the references that were added."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[int, Reference]]] = {}

    @property
    def splits(self) -> dict[str, list[Reference]]:
        """By split, 200 references at most, in the order of their digests."""
        return {
            split: [reference for _, reference in _keep_smallest(smallest)] for split, smallest in self._kept.items()
        }

    def add(self, references: Iterable[Reference]) -> None:
        """Add references."""
        for reference in references:
            smallest = self._kept.setdefault(reference.split, [])
            smallest.append((key_digest(reference.key), reference))
            if len(smallest) >= 2 * SAMPLE_SIZE:
                smallest[:] = _keep_smallest(smallest)

    def merge(self, other: Sample) -> None:
        """Add the references of another sample."""
        for split, other_references in other._kept.items():
            self._kept[split] = _keep_smallest([*self._kept.get(split, ()), *other_references])


class MergeSamples(beam.CombineFn):  # type: ignore[misc]
    """Combination of packs of sampled references into one Sample."""

    def create_accumulator(self) -> Sample:
        """Return an empty sample."""
        return Sample()

    def add_input(self, sample: Sample, data: bytes) -> Sample:
        """Add a pack."""
        sample.add(Pack.from_bytes(data).references())
        return sample

    def merge_accumulators(self, samples: Iterable[Sample]) -> Sample:
        """Merge samples."""
        total = Sample()
        for sample in samples:
            total.merge(sample)
        return total

    def extract_output(self, sample: Sample) -> Sample:
        """Return the sample."""
        return sample


def _keep_smallest(references: list[tuple[int, Reference]]) -> list[tuple[int, Reference]]:
    return heapq.nsmallest(SAMPLE_SIZE, references, key=lambda item: (item[0], item[1].key))

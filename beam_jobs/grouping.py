"""From packs of references in any order to the ordered references of each shard.

Grouping by shard at once would make an element of every reference, since a pack of a few thousand holds one or two of each
shard. So references are grouped by runs of neighbouring shards first, and a run, some 64,000 references, is sorted and cut into
its shards by one worker.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.packing import batches, pack, unpack
from beam_jobs.plan import Plan
from beam_jobs.reference import Reference

# (split, number): of a run of shards, or of a shard.
Key = tuple[str, int]
# References that a worker holds back to make packs that are worth their name.
_HELD_REFERENCES = 1 << 16


class GroupByShard(beam.PTransform):  # type: ignore[misc]
    """Turns packs of references into ((split, shard number), packs of the shard's references in order).

    Args:
        plan: the Plan, as a side input.
    """

    def __init__(self, plan: beam.pvalue.AsSingleton) -> None:
        super().__init__()
        self._plan = plan

    def expand(self, packs: beam.PCollection) -> beam.PCollection:
        """Applies the transform."""
        return (
            packs
            | "ByRun" >> beam.ParDo(_ByRun(), self._plan)
            | "Group" >> beam.GroupByKey()
            | "ByShard" >> beam.FlatMap(_by_shard, self._plan)
            | "Spread" >> beam.Reshuffle()
        )


class _ByRun(beam.DoFn):  # type: ignore[misc]
    """Yields ((split, run of shards), pack), holding references back until there are enough for full packs."""

    def start_bundle(self) -> None:
        self._held: dict[Key, list[Reference]] = defaultdict(list)
        self._count = 0

    def process(self, references: bytes, plan: Plan) -> Iterator[tuple[Key, bytes]]:
        runs = {name: (split.shard_of, split.group_width) for name, split in plan.splits.items()}
        for reference in unpack(references):
            shard_of, width = runs[reference.split]
            self._held[reference.split, shard_of(plan.position(reference.digest)) // width].append(reference)
            self._count += 1
        if self._count >= _HELD_REFERENCES:
            yield from self._release()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        window = GlobalWindow()
        for item in self._release():
            yield WindowedValue(item, window.max_timestamp(), [window])

    def _release(self) -> Iterator[tuple[Key, bytes]]:
        held, self._held, self._count = self._held, defaultdict(list), 0
        for key, references in held.items():
            for batch in batches(references):
                yield key, pack(batch)


def _by_shard(element: tuple[Key, Iterable[bytes]], plan: Plan) -> Iterator[tuple[Key, list[bytes]]]:
    """Sorts the references of a run of shards, and yields those of each shard."""
    (split, _), packs = element
    shard_of = plan.splits[split].shard_of
    # Equal digests can only be equal keys; the key decides between them all the same.
    placed = sorted(
        (
            (plan.position(reference.digest), reference)
            for reference in itertools.chain.from_iterable(map(unpack, packs))
        ),
        key=lambda item: (item[0], item[1].key),
    )
    for number, items in itertools.groupby(placed, key=lambda item: shard_of(item[0])):
        yield (split, number), [pack(batch) for batch in batches(reference for _, reference in items)]

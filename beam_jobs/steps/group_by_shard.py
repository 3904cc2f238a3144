"""From packs of references in any order to the ordered references of each shard.

Grouping by shard at once would make an element of every reference, since a pack of a few thousand holds one or two of each
shard. So references are grouped by runs of neighbouring shards first, and a run, some 64,000 references, is sorted and cut into
its shards by one worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.planning.plan import Plan
from beam_jobs.references.pack import Pack

# (split, number) of a shard.
ShardKey = tuple[str, int]
# (split, number) of a run of neighbouring shards.
_RunKey = tuple[str, int]
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

    def expand(self, packs: beam.PCollection[bytes]) -> beam.PCollection[tuple[ShardKey, list[bytes]]]:
        """Apply the transform."""
        return (
            packs
            | "ByRun" >> beam.ParDo(ByRun(), self._plan)
            | "Group" >> beam.GroupByKey()
            | "ByShard" >> beam.FlatMap(by_shard, self._plan)
            | "Spread" >> beam.Reshuffle()
        )


class ByRun(beam.DoFn):  # type: ignore[misc]
    """Yields ((split, run of shards), pack), holding references back until there are enough for full packs."""

    def start_bundle(self) -> None:
        """Hold nothing back."""
        self._held: dict[_RunKey, list[Pack]] = defaultdict(list)
        self._count = 0

    def process(self, references: bytes, plan: Plan) -> Iterator[tuple[_RunKey, bytes]]:
        """Take a pack apart, and yield what is held back if that is enough."""
        for split, part in Pack.from_bytes(references).by_split():
            split_plan = plan.splits[split]
            for run, inside in part.grouped(split_plan.shards_of(part.positions) // split_plan.group_width):
                self._held[split, run].append(inside)
            self._count += len(part.keys)
        if self._count >= _HELD_REFERENCES:
            yield from self._release()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yield what is still held back."""
        window = GlobalWindow()
        for item in self._release():
            yield WindowedValue(item, window.max_timestamp(), [window])

    def _release(self) -> Iterator[tuple[_RunKey, bytes]]:
        held, self._held, self._count = self._held, defaultdict(list), 0
        for key, packs in held.items():
            yield key, Pack.joined(packs).to_bytes()


def by_shard(element: tuple[_RunKey, Iterable[bytes]], plan: Plan) -> Iterator[tuple[ShardKey, list[bytes]]]:
    """Sorts the references of a run of shards, and yields those of each shard."""
    (split, _), packs = element
    references = _in_order(Pack.joined([Pack.from_bytes(data) for data in packs]))
    for number, inside in references.grouped(plan.splits[split].shards_of(references.positions)):
        yield (split, number), [part.to_bytes() for part in inside.in_parts()]


def _in_order(pack: Pack) -> Pack:
    order = np.argsort(pack.positions, kind="stable")
    positions = pack.positions[order]
    if (positions[1:] == positions[:-1]).any():
        # Equal positions are almost always equal keys; the key decides between them all the same.
        order = np.array(sorted(range(len(order)), key=lambda row: (pack.positions[row], pack.keys[row])))
    return pack.take(order)

"""Grouping of packs of references by shard, and ordering of the references of each shard.

Grouping by shard in one step would make an element of almost every reference, since a pack of a few thousand has one or two for
each shard. So references are grouped by runs of neighbouring shards first; one worker then sorts the references of a run, some
64,000, and divides them into shards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np

from beam_jobs.planning.plan import Plan
from beam_jobs.references.packs.pack import Pack
from beam_jobs.steps.global_window import put_in_global_window
from beam_jobs.steps.spread import Spread

# (split, number) of a shard.
ShardKey = tuple[str, int]
# (split, number) of a run of neighbouring shards.
_RunKey = tuple[str, int]
# Number of references that a worker holds back: `_RUN_REFERENCES` for each run of shards, so that packs are worth their overhead,
# but at least `_MIN_HELD` and at most `_MAX_HELD`.
_RUN_REFERENCES, _MIN_HELD, _MAX_HELD = 256, 1 << 16, 1 << 18


class GroupByShard(beam.PTransform):  # type: ignore[misc]
    """Transform from packs of references to ((split, shard number), packs of the shard's references in order).

    Args:
        plan: the Plan, as a side input.
    """

    def __init__(self, plan: beam.pvalue.AsSingleton) -> None:
        super().__init__()
        self._plan = plan

    def expand(self, packs: beam.PCollection[bytes]) -> beam.PCollection[tuple[ShardKey, list[bytes]]]:
        """Group references by runs of shards, then divide each run into its shards, and spread these over all workers."""
        return (
            packs
            | "ByRun" >> beam.ParDo(SplitByRun(), self._plan)
            | "Group" >> beam.GroupByKey()
            | "ByShard" >> beam.FlatMap(split_by_shard, self._plan)
            | "Spread" >> Spread()
        )


class SplitByRun(beam.DoFn):  # type: ignore[misc]
    """DoFn that yields ((split, number of a run of shards), pack), and holds references back until they fill large packs."""

    def start_bundle(self) -> None:
        """Begin a bundle: hold no references back; `process` sets the plan."""
        self._held_packs: dict[str, list[Pack]] = defaultdict(list)
        self._held_count = 0
        self._plan: Plan | None = None

    def process(self, data: bytes, plan: Plan) -> Iterator[tuple[_RunKey, bytes]]:
        """Hold the references of a pack back, and yield all that are held if they are enough."""
        # The plan is kept for `finish_bundle`, which gets no side inputs.
        self._plan = plan
        for split, part in Pack.from_bytes(data).group_by_split():
            self._held_packs[split].append(part)
            self._held_count += len(part.keys)
        # About the number of runs: a last run of fewer shards is not counted, but `_MIN_HELD` is enough for a few runs.
        run_count = sum(split.shard_count // split.group_width for split in plan.splits.values())
        if self._held_count >= min(_MAX_HELD, max(_MIN_HELD, _RUN_REFERENCES * run_count)):
            yield from self._release(plan)

    def finish_bundle(self) -> Iterator[Any]:
        """Yield the references that are still held."""
        if self._plan is not None:
            yield from put_in_global_window(self._release(self._plan))

    def _release(self, plan: Plan) -> Iterator[tuple[_RunKey, bytes]]:
        """Yield the references held back, a pack for each run of shards, and hold nothing back."""
        packs_by_split, self._held_packs, self._held_count = self._held_packs, defaultdict(list), 0
        for split, packs in packs_by_split.items():
            # The packs are joined first, since a single pack of 4,096 has only a few references for each of a thousand runs.
            pack, split_plan = Pack.join(packs), plan.splits[split]
            run_numbers = split_plan.find_shards(pack.positions) // split_plan.group_width
            for run_number, pack_of_run in pack.group(run_numbers):
                yield (split, run_number), pack_of_run.to_bytes()


def split_by_shard(element: tuple[_RunKey, Iterable[bytes]], plan: Plan) -> Iterator[tuple[ShardKey, list[bytes]]]:
    """Sort the references of a run of shards, and yield the references of each shard."""
    (split, _), packs = element
    references = _sort_references(Pack.join([Pack.from_bytes(data) for data in packs]))
    for number, pack_of_shard in references.group(plan.splits[split].find_shards(references.positions)):
        yield (split, number), [part.to_bytes() for part in pack_of_shard.divide()]


def _sort_references(pack: Pack) -> Pack:
    """Return the references by position, and by key if positions are equal."""
    order = np.argsort(pack.positions, kind="stable")
    positions = pack.positions[order]
    if (positions[1:] == positions[:-1]).any():
        # This may be slow, since it is rare: almost only equal keys have equal positions.
        order = np.array(sorted(range(len(order)), key=lambda row: (pack.positions[row], pack.keys[row])))
    return pack.take(order)

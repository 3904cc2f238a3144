"""References come out of the grouping as a sort in memory would put them."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.util import assert_that
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.planning.plan import Plan, SplitPlan
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.record_order import Order
from beam_jobs.references.reference import WHOLE_FILE, Reference, key_digests
from beam_jobs.steps.shards.group_by_shard import GroupByShard

SPLITS = ("train", "test")
Item = tuple[int, Reference]


def reference(number: int, split: str) -> Reference:
    return Reference(f"key {number}", split, (), f"/in/{number}", WHOLE_FILE, number)


def plan_of(items: list[Item], starts: dict[str, tuple[int, ...]]) -> Plan:
    splits = {}
    for split in {item.split for _, item in items}:
        count = sum(item.split == split for _, item in items)
        splits[split] = SplitPlan(count, 1, starts[split])
    return Plan(splits, len(items), 0, "")


def by_sorting(items: list[Item], plan: Plan) -> dict[tuple[str, int], list[Reference]]:
    """The oracle: everything in memory, sorted by position and then by key."""
    shards: dict[tuple[str, int], list[Reference]] = defaultdict(list)
    for position, item in sorted(items, key=lambda pair: (pair[0], pair[1].key)):
        number = sum(start <= position for start in plan.splits[item.split].starts)
        shards[item.split, number].append(item)
    return dict(shards)


def check(items: list[Item], plan: Plan, packs: int) -> None:
    due = by_sorting(items, plan)

    def compare(found: list[tuple[tuple[str, int], list[bytes]]]) -> None:
        assert len(found) == len(due)
        for shard, parts in found:
            assert [item for data in parts for item in Pack.from_bytes(data).references()] == due[shard], shard

    made = []
    for number in range(packs):
        some = items[number::packs]
        if some:
            positions = np.array([position for position, _ in some], np.uint64)
            made.append(Pack.of([item for _, item in some], positions).to_bytes())
    with beam.Pipeline("FnApiRunner") as pipeline:
        plans = beam.pvalue.AsSingleton(pipeline | "Plan" >> beam.Create([plan]))
        grouped = pipeline | "Packs" >> beam.Create(made) | GroupByShard(plans)
        assert_that(grouped, compare)


@settings(max_examples=6)
@given(
    # Few positions, so that some are equal, and the largest there is.
    positions=st.lists(st.integers(0, 40) | st.sampled_from([2**63, 2**64 - 1]), min_size=1, max_size=60),
    starts=st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 40), unique=True, max_size=12),
    packs=st.integers(1, 5),
    data=st.data(),
)
def test_it_is_equal_to_a_sort_in_memory(positions: list[int], starts: list[int], packs: int, data: Any) -> None:
    splits = data.draw(st.lists(st.sampled_from(SPLITS), min_size=len(positions), max_size=len(positions)))
    items = [(at, reference(n, split)) for n, (at, split) in enumerate(zip(positions, splits, strict=True))]
    check(items, plan_of(items, {split: tuple(sorted(starts)) for split in SPLITS}), packs)


@pytest.mark.parametrize("shards", [1, 130])
def test_many_shards_of_shuffled_references(shards: int) -> None:
    references = [reference(number, SPLITS[number % 5 == 0]) for number in range(3000)]
    digests = key_digests(item.key for item in references)[:, 0]
    items = list(zip(Order(True, 7).positions(digests, 0, 0).tolist(), references, strict=True))
    random.Random(0).shuffle(items)
    starts = tuple(2**64 // shards * number for number in range(1, shards))
    check(items, plan_of(items, dict.fromkeys(SPLITS, starts)), 9)

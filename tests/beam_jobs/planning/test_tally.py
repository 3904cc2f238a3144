"""Bytes and records by place in the order add up, however they are divided.

Real tallies cover some million records on many workers, more than a test can convert.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.options import ConvertOptions
from beam_jobs.planning.plan import Plan, SumTallies, cut_buckets, make_plan
from beam_jobs.planning.tally import Buckets, Tally, TallyPart, join_fingerprints
from beam_jobs.references.packs.pack import pack_references
from beam_jobs.references.record_order import RecordOrder
from beam_jobs.references.reference import WHOLE_FILE, Reference
from tpudata.errors import SourceError
from tpudata.format.tfrecord.framing import FRAME_BYTES


def listed(sizes: list[int], start: int = 0) -> list[Reference]:
    numbers = range(start, start + len(sizes))
    return [
        Reference(f"{n}", ("train", "test")[n % 3 == 0], (), f"/in/{n}", WHOLE_FILE, size)
        for n, size in zip(numbers, sizes, strict=True)
    ]


def tallied(units: list[list[Reference]], shuffle: bool) -> Tally:
    order, tally = RecordOrder(shuffle, 0), Tally()
    for number, references in enumerate(units):
        for pack, digests in pack_references(references, order, number):
            tally.add(TallyPart.from_pack(pack, digests, is_shuffled=shuffle, extra_bytes=np.arange(len(pack.keys))))
    return tally


SIZES = st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60)


@given(st.lists(SIZES, min_size=1, max_size=4), st.booleans())
def test_buckets_add_up_to_the_listed_references(sizes: list[list[int]], shuffle: bool) -> None:
    starts = itertools.accumulate(map(len, sizes), initial=0)
    units = [listed(part, start) for part, start in zip(sizes, starts, strict=False)]
    tally = tallied(units, shuffle)
    references = [reference for unit in units for reference in unit]
    assert tally.bytes == sum(reference.size for reference in references)
    assert tally.splits == sorted({reference.split for reference in references})
    for split in tally.splits:
        inside = [reference for reference in references if reference.split == split]
        buckets = tally.add_up_buckets(split)
        assert (np.diff(buckets.starts.astype(object)) > 0).all()
        assert buckets.bytes.sum() == sum(reference.size for reference in inside)
        assert buckets.record_counts.sum() == len(inside)
        if not shuffle:
            assert buckets.record_counts.max() <= 16


@given(SIZES, st.booleans(), st.integers(0, 60))
def test_merged_tallies_equal_the_tally_of_all(sizes: list[int], shuffle: bool, middle: int) -> None:
    units = [part for part in (listed(sizes[:middle]), listed(sizes[middle:], len(sizes[:middle]))) if part]
    whole, merged = tallied(units, shuffle), Tally()
    parts = [Tally() for _ in units]
    for number, (unit, part) in enumerate(zip(units, parts, strict=True)):
        for pack, digests in pack_references(unit, RecordOrder(shuffle, 0), number):
            part.add(TallyPart.from_pack(pack, digests, is_shuffled=shuffle))
    for part in reversed(parts):
        merged.merge(part)
    assert (merged.bytes, merged.fingerprint, merged.splits) == (whole.bytes, whole.fingerprint, whole.splits)
    for split in whole.splits:
        mine, theirs = merged.add_up_buckets(split), whole.add_up_buckets(split)
        assert mine.starts.tolist() == theirs.starts.tolist()
        assert mine.bytes.tolist() == theirs.bytes.tolist()
        assert mine.record_counts.tolist() == theirs.record_counts.tolist()


def test_fingerprint_depends_on_keys_and_sizes_but_not_their_order() -> None:
    items = listed([5, 6, 7, 8])
    one = tallied([items], True).fingerprint
    assert len(one) == 32
    assert tallied([items[::-1]], True).fingerprint == one
    assert tallied([items[:2], items[2:]], False).fingerprint == one
    assert tallied([[items[0]._replace(size=9), *items[1:]]], True).fingerprint != one
    assert tallied([[items[0]._replace(key="other"), *items[1:]]], True).fingerprint != one
    parts = [tallied([half], True).fingerprint for half in (items[:1], items[1:])]
    assert join_fingerprints(*parts) == one
    # Two sizes that change places.
    swapped = [items[0]._replace(size=6), items[1]._replace(size=5), *items[2:]]
    assert tallied([swapped], True).fingerprint != one


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=100), st.integers(1, 120))
def test_cuts_leave_no_run_empty(sizes: list[int], count: int) -> None:
    cuts = [0, *cut_buckets(np.array(sizes, np.int64), count).tolist(), len(sizes)]
    assert len(cuts) - 1 == min(count, len(sizes))
    assert all(start < end for start, end in itertools.pairwise(cuts))


@pytest.mark.parametrize("shuffle", [True, False])
def test_shards_are_within_15_percent_of_the_target(shuffle: bool) -> None:
    random = np.random.default_rng(0)
    units = [listed(random.integers(20_000, 200_000, 700).tolist(), 700 * number) for number in range(20)]
    options = ConvertOptions("in", "out", shard_bytes=20_000_000, shuffle=shuffle)
    plan = make_plan(tallied(units, shuffle), {}, options, 0)
    assert min(split.shard_count for split in plan.splits.values()) >= 20
    for sizes in shard_bytes(plan, units, shuffle).values():
        assert all(17_000_000 <= size <= 23_000_000 for size in sizes)


def shard_bytes(plan: Plan, units: list[list[Reference]], shuffle: bool) -> dict[str, list[int]]:
    """Bytes of each shard, by the plan."""
    found = {name: [0] * split.shard_count for name, split in plan.splits.items()}
    for number, unit in enumerate(units):
        for pack, _ in pack_references(unit, RecordOrder(shuffle, 0), number):
            for split, part in pack.group_by_split():
                shards = plan.splits[split].find_shards(part.positions).tolist()
                for shard, reference in zip(shards, part.references(), strict=True):
                    found[split][shard] += reference.size + FRAME_BYTES
    return found


def test_make_plan_rejects_an_empty_tally() -> None:
    with pytest.raises(SourceError, match="in: no files to convert"):
        make_plan(Tally(), {}, ConvertOptions("in", "out"), 0)


@given(st.lists(SIZES, min_size=1, max_size=4), st.booleans())
def test_pickling_keeps_a_tally(sizes: list[list[int]], shuffle: bool) -> None:
    starts = itertools.accumulate(map(len, sizes), initial=0)
    tally = tallied([listed(part, start) for part, start in zip(sizes, starts, strict=False)], shuffle)
    copy = pickle.loads(pickle.dumps(tally))
    assert (copy.bytes, copy.splits, copy.fingerprint) == (tally.bytes, tally.splits, tally.fingerprint)
    for split in tally.splits:
        for name in ("starts", "bytes", "record_counts", "extra_bytes"):
            one, other = (getattr(each.add_up_buckets(split), name) for each in (tally, copy))
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_pickled_buckets_take_less_than_13_bytes_each() -> None:
    units = [[Reference(f"{n}", "train", (), f"/in/{n}", WHOLE_FILE, 100_000 + n) for n in range(10_000)]]
    assert len(pickle.dumps(tallied(units, shuffle=True))) < 10_000 * 32 / 2.5


def test_merging_does_not_recompute_sums_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    added = Buckets.add_up

    def counted(parts: Iterable[Buckets]) -> Buckets:
        nonlocal made
        made += 1
        return added(parts)

    monkeypatch.setattr(Buckets, "add_up", counted)
    combine, total = SumTallies(), Tally()
    rows, parts = 4096, 200
    for number in range(parts):
        starts = np.arange(number * rows, (number + 1) * rows, dtype=np.uint64)
        ones = np.ones(rows, np.int64)
        part = Tally()
        part.add(TallyPart({"train": Buckets(starts, ones, ones, ones)}, rows, (0, 0)))
        total = combine.merge_accumulators([total, part])
    # More rows than are collected before they are added up, 1 << 18.
    assert 1 <= made < 10
    assert total.add_up_buckets("train").record_counts.sum() == rows * parts

"""Cuts between shards: every record is in one shard, and each shard is near its size.

Real plans have some million records in tens of thousands of shards, more than a test can convert.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.options import ConvertOptions, SplitShares
from beam_jobs.planning.plan import Plan, SplitPlan, SumTallies, cut_buckets, make_plan
from beam_jobs.planning.tally import BUCKET_BITS, Buckets, Tally, TallyPart
from beam_jobs.references.packs.pack import pack_references
from beam_jobs.references.record_order import RecordOrder
from beam_jobs.references.reference import WHOLE_FILE, Reference
from tpudata.errors import SourceError, UsageError
from tpudata.format import shard_name
from tpudata.format.tfrecord.framing import FRAME_BYTES

OVERHEAD = 5


def listed(sizes: list[int]) -> list[Reference]:
    return [
        Reference(f"{number}", ("train", "test")[size % 3 == 0], (), f"/in/{number}", WHOLE_FILE, size)
        for number, size in enumerate(sizes)
    ]


def tallied(references: list[Reference], shuffle: bool) -> Tally:
    tally = Tally()
    for pack, digests in pack_references(references, RecordOrder(shuffle, 0), 0):
        tally.add(TallyPart.from_pack(pack, digests, is_shuffled=shuffle))
    return tally


def planned(sizes: list[int], *, shuffle: bool = True, ratios: dict[str, float] | None = None, **said: Any) -> Plan:
    options = ConvertOptions("in", "out", shuffle=shuffle, **said)
    return make_plan(tallied(listed(sizes), shuffle), ratios or {}, options, OVERHEAD)


def placed(plan: Plan, references: list[Reference], shuffle: bool) -> dict[str, list[tuple[int, Reference]]]:
    """By split, each reference with the number of its shard."""
    found: dict[str, list[tuple[int, Reference]]] = {name: [] for name in plan.splits}
    for pack, _ in pack_references(references, RecordOrder(shuffle, 0), 0):
        for split, part in pack.group_by_split():
            numbers = plan.splits[split].find_shards(part.positions).tolist()
            found[split].extend(zip(numbers, part.references(), strict=True))
    return found


SIZES = st.lists(st.integers(0, 10**6), min_size=1, max_size=200)
# Within one pack; a unit of fewer than 256 records has a bucket for each.
WISHES = st.one_of(
    st.fixed_dictionaries({"shard_bytes": st.integers(4000, 10**7)}), st.fixed_dictionaries({"num_shards": st.just(1)})
)


@given(SIZES, WISHES, st.booleans())
def test_places_every_record_in_exactly_one_named_shard(sizes: list[int], wish: dict[str, Any], shuffle: bool) -> None:
    plan = planned(sizes, shuffle=shuffle, **wish)
    references = listed(sizes)
    found = placed(plan, references, shuffle)
    assert sorted(reference for part in found.values() for _, reference in part) == sorted(references)
    assert (plan.input_count, plan.bytes) == (len(sizes), sum(sizes))
    for split, part in found.items():
        # None is empty, and none is beyond the last.
        assert sorted({number for number, _ in part}) == list(range(plan.splits[split].shard_count))
        assert plan.splits[split].record_count == len(part)
    names = {
        shard_name(split, number, plan.splits[split].shard_count) for split, part in found.items() for number, _ in part
    }
    assert plan.shard_names() == names


@given(SIZES, WISHES, st.booleans())
def test_shards_differ_from_their_mean_by_at_most_the_largest_record(
    sizes: list[int], wish: dict[str, Any], shuffle: bool
) -> None:
    plan = planned(sizes, shuffle=shuffle, **wish)
    for split, part in placed(plan, listed(sizes), shuffle).items():
        shards: Counter[int] = Counter()
        for number, reference in part:
            shards[number] += reference.size + OVERHEAD + FRAME_BYTES
        total, largest = shards.total(), max(reference.size for _, reference in part) + OVERHEAD + FRAME_BYTES
        assert plan.splits[split].estimated_bytes == total
        mean = total / len(shards)
        assert all(abs(size - mean) <= largest for size in shards.values())


@given(st.lists(st.integers(50, 99), min_size=60, max_size=90), st.integers(2, 9))
def test_shards_are_cut_at_the_bucket_nearest_to_equal_parts(sizes: list[int], count: int) -> None:
    ends = np.cumsum(sizes)
    for number, bucket in enumerate(cut_buckets(np.array(sizes, np.int64), count).tolist(), 1):
        off = abs(ends - ends[-1] * number / count)
        assert off[bucket - 1] <= off.min() + 1e-6


@given(SIZES, st.booleans())
def test_unshuffled_shards_keep_the_order_of_the_list(sizes: list[int], several: bool) -> None:
    plan = planned(sizes, shuffle=False, shard_bytes=10**5 if several else 10**9)
    for part in placed(plan, listed(sizes), shuffle=False).values():
        numbers = [number for number, _ in part]
        assert numbers == sorted(numbers)


@given(st.lists(SIZES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_the_division_into_parts(parts: list[list[int]], random: Any) -> None:
    references = [
        reference._replace(key=f"{n}", path=f"{n}")
        for n, reference in enumerate(listed([size for part in parts for size in part]))
    ]
    whole = make_plan(tallied(references, True), {}, ConvertOptions("in", "out", shard_bytes=10**6), OVERHEAD)
    ends = list(itertools.accumulate(map(len, parts), initial=0))
    combine = SumTallies()
    tallies = []
    for start, end in itertools.pairwise(ends):
        tally = combine.create_accumulator()
        for pack, digests in pack_references(references[start:end], RecordOrder(True, 0), 0):
            tally = combine.add_input(tally, TallyPart.from_pack(pack, digests, is_shuffled=True))
        tallies.append(tally)
    random.shuffle(tallies)
    merged = combine.extract_output(combine.merge_accumulators(tallies))
    assert make_plan(merged, {}, ConvertOptions("in", "out", shard_bytes=10**6), OVERHEAD) == whole


def test_estimates_bytes_by_the_ratio_of_each_split() -> None:
    sizes = [1000 + number for number in range(400)]
    half = planned(sizes, ratios={"train": 0.5, "test": 2.0})
    for split, ratio in (("train", 0.5), ("test", 2.0)):
        inside = [reference.size for reference in listed(sizes) if reference.split == split]
        due = ratio * sum(inside) + len(inside) * (OVERHEAD + FRAME_BYTES)
        assert half.splits[split].estimated_bytes == pytest.approx(due, rel=1e-3)


def test_follows_the_requested_number_or_size_of_shards() -> None:
    sizes = [10_000] * 300
    assert planned(sizes, num_shards=7).splits["train"].shard_count == 7
    assert planned(sizes, shard_bytes=300_000).splits["train"].shard_count == 10
    assert planned(sizes, shard_bytes=300_000, shards_multiple_of=4).splits["train"].shard_count in (8, 12)
    with pytest.raises(UsageError, match=r"--num-shards is 301, but split train of 300 records fills 300 of them"):
        planned(sizes, num_shards=301)
    with pytest.raises(UsageError, match=r"--shards-multiple-of is 301, but split train of 300 records fills 300"):
        planned(sizes, shards_multiple_of=301)
    with pytest.raises(
        UsageError,
        match=r"expected 65,536 shards or fewer, or 256 records in each.*Give a larger",
    ):
        planned(sizes, shard_bytes=1)


def test_shards_smaller_than_a_bucket_are_within_15_percent_of_the_target() -> None:
    rng = np.random.default_rng(0)
    count = 1 << BUCKET_BITS
    records = rng.integers(450, 550, count)
    starts = np.arange(count, dtype=np.uint64) << np.uint64(64 - BUCKET_BITS)
    content = records * (100_000 - OVERHEAD - FRAME_BYTES)
    buckets = Buckets(starts, content, records, np.zeros(count, np.int64))
    tally = Tally()
    tally.add(TallyPart({"train": buckets}, int(content.sum()), (0, 0)))
    shards = 120_000
    target = 100_000 * int(records.sum()) // shards
    plan = make_plan(tally, {}, ConvertOptions("in", "out", shard_bytes=target), OVERHEAD)
    split = plan.splits["train"]
    assert split.shard_count == shards
    # Of records at even distances, as shuffled positions are.
    inside = np.arange(64, dtype=np.uint64) << np.uint64(64 - BUCKET_BITS - 6)
    filled = np.bincount(
        split.find_shards((starts[:, None] + inside).ravel()), np.repeat(100_000 * records / 64, 64), minlength=shards
    )
    assert np.abs(filled / target - 1).max() < 0.15
    with pytest.raises(UsageError, match="or 256 records in each"):
        make_plan(tally, {}, ConvertOptions("in", "out", shard_bytes=target // 10), OVERHEAD)


def test_rejects_empty_inputs_and_empty_splits() -> None:
    with pytest.raises(SourceError, match="in: no files to convert"):
        planned([])
    with pytest.raises(SourceError, match="--split: no record falls into test; the input has 2"):
        planned([1, 1], split=SplitShares.parse("train=0.9,test=0.1"))


@given(st.integers(1, 10**7), st.integers(1, 2000))
def test_groups_shards_to_at_most_65_536_references(records: int, count: int) -> None:
    count = min(count, records)
    plan = SplitPlan(records, 1, tuple(range(1, count)))
    assert plan.shard_count == count
    assert 1 <= plan.group_width <= 64
    assert plan.group_width == 1 or plan.group_width * records // count <= 1 << 16
    assert plan.find_shards(np.array([0, count - 1, 2**64 - 1], np.uint64)).tolist() == [0, count - 1, count - 1]


def test_omitted_records_take_no_shards() -> None:
    tally = tallied(listed([100] * 999), True)
    options = ConvertOptions("in", "out", shard_bytes=5000)
    whole = make_plan(tally, {}, options, OVERHEAD).splits
    half = make_plan(tally, {}, options, OVERHEAD, {"train": (500, 50_000)}).splits
    assert half["train"].shard_count == round(whole["train"].shard_count * 499 / 999)
    assert half["train"].record_count == 999
    # If every record of a split is omitted, one shard remains.
    assert make_plan(tally, {}, options, OVERHEAD, {"train": (999, 99_900)}).splits["train"].shard_count == 1

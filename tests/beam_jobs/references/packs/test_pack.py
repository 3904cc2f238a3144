from __future__ import annotations

import dataclasses
import itertools
import json
import tracemalloc
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.references.packs.columns import narrow
from beam_jobs.references.packs.pack import Pack, full_packs, packs
from beam_jobs.references.packs.packed_keys import PackedKeys
from beam_jobs.references.payload import SELF_DESCRIBING, Payload
from beam_jobs.references.record_order import Order
from beam_jobs.references.reference import WHOLE_FILE, Reference, key_digest, key_digests

NAMES = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["a", "caf\udce9", "x/y", "a\0b"])
# What ends with a number, and what only looks so.
NUMBERED = st.builds("{}{}".format, st.sampled_from(["", ":", "a:", "caf\udce9:1:"]), st.integers(0, 2**66))
NEARLY = st.sampled_from(["a:01", "a:-0", "a:-7", "a: 7", "a:1_0", "a:٣", "a:+1", "7 ", "a:", "a", "007"])


VALUES = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    NAMES,
    st.binary(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.sampled_from([1, 1.0, True, 0.0, -0.0, "1", b"1"]),
)


@dataclasses.dataclass(frozen=True)
class Numbered(Payload):
    """A kind of bytes."""

    number: int


@st.composite
def references(draw: st.DrawFn) -> Reference:
    key = draw(NAMES.filter(bool))
    root = draw(st.sampled_from(["/in/", "gs://b/", "elsewhere:"]))
    return Reference(
        key,
        draw(st.sampled_from(["train", "validation"])),
        tuple(draw(st.lists(NAMES, max_size=2))),
        draw(st.sampled_from([root + key, "/one.tar", key])),
        draw(st.integers(WHOLE_FILE, 2**50)),
        draw(st.integers(0, 2**50)),
        draw(st.sampled_from([SELF_DESCRIBING, Numbered(1), Numbered(2)])),
        draw(st.none() | st.integers(0, 2**32 - 1)),
        draw(st.just({}) | st.dictionaries(st.sampled_from("abc"), VALUES)),
        spool=draw(st.sampled_from(["", "/out/.spool"])),
    )


MANY = st.lists(references(), min_size=1, max_size=12)


def same(found: Iterable[Reference], items: Iterable[Reference]) -> bool:
    """Whether references are equal, also in the types and the order of their features: 1, 1.0 and True differ."""
    return [(one, repr(one)) for one in found] == [(one, repr(one)) for one in items]


def packed(items: list[Reference]) -> Pack:
    return Pack.of(items, np.arange(len(items), dtype=np.uint64))


@given(MANY)
def test_references_come_back_from_columns_and_from_bytes(items: list[Reference]) -> None:
    pack = packed(items)
    assert same(pack.references(), items)
    again = Pack.from_bytes(pack.to_bytes())
    assert same(again.references(), items)
    assert again.positions.tolist() == list(range(len(items)))
    splits = {item.split for item in items if item.labels}
    assert pack.classes() == {
        split: {name for item in items if item.split == split for name in item.labels} for split in splits
    }


@given(st.lists(MANY, min_size=1, max_size=4))
def test_joined_packs_hold_all_references_in_order(parts: list[list[Reference]]) -> None:
    joined = Pack.joined([packed(part) for part in parts])
    assert same(joined.references(), [item for part in parts for item in part])
    assert joined.positions.tolist() == [number for part in parts for number in range(len(part))]


@given(MANY, st.randoms(use_true_random=False))
def test_taken_rows_come_in_the_order_asked_for(items: list[Reference], random: object) -> None:
    rows = list(range(len(items)))
    random.shuffle(rows)  # type: ignore[attr-defined]
    rows = rows[: len(rows) // 2 + 1]
    taken = packed(items).take(np.array(rows))
    assert same(taken.references(), [items[row] for row in rows])
    assert taken.positions.tolist() == rows


@given(st.lists(MANY, min_size=1, max_size=3))
def test_entries_do_not_depend_on_how_references_are_packed(parts: list[list[Reference]]) -> None:
    items = [item for part in parts for item in part]
    texts = [(item.split, item.labels, *item.entry_texts()) for item in items]
    for pack in (packed(items), Pack.joined([packed(part) for part in parts])):
        found = pack.entry_texts()
        assert (found if len(found) > 1 else found * len(items)) == texts


def test_features_may_be_arrays() -> None:
    arrays = [np.arange(size, dtype=np.float32).reshape(-1, 2) for size in (2, 2, 4)]
    items = [
        Reference(f"{n}", "train", (), f"/in/{n}", 0, 1, features={"box": array, "n": 7})
        for n, array in enumerate(arrays)
    ]
    pack = Pack.from_bytes(Pack.joined([packed(items[:1]), packed(items[1:])]).to_bytes())
    found = [reference.features["box"] for reference in pack.take(np.array([2, 0, 1])).references()]
    assert [box.tolist() for box in found] == [arrays[row].tolist() for row in (2, 0, 1)]
    assert pack.features["n"] == [7]
    assert [text for _, _, _, text in pack.entry_texts()] == [
        json.dumps({"box": array.tolist(), "n": 7}) for array in arrays
    ]


@given(MANY, st.data())
def test_groups_partition_a_pack(items: list[Reference], data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.integers(0, 3), min_size=len(items), max_size=len(items)))
    found = {number: list(part.references()) for number, part in packed(items).grouped(np.array(groups))}
    assert list(found) == sorted(set(groups))
    assert found == {
        group: [item for item, its in zip(items, groups, strict=True) if its == group] for group in set(groups)
    }


@given(MANY)
def test_splits_partition_a_pack(items: list[Reference]) -> None:
    found = {split: list(part.references()) for split, part in packed(items).by_split()}
    assert found == {split: [item for item in items if item.split == split] for split in {i.split for i in items}}


def test_a_unit_is_packed_with_positions_that_go_on() -> None:
    items = [Reference(f"{n}", "train", (), f"/in/{n}", WHOLE_FILE, n) for n in range(10_000)]
    parts = list(packs(iter(items), Order(shuffle=False, seed=0), unit=2))
    assert [len(pack.keys) for pack, _ in parts] == [4096, 4096, 1808]
    positions = np.concatenate([pack.positions for pack, _ in parts])
    assert (np.diff(positions) == 1).all()
    assert np.concatenate([digests for _, digests in parts]).tolist() == key_digests(map(str, range(10_000))).tolist()
    assert [list(part.keys) for part in Pack.joined([pack for pack, _ in parts]).in_parts()][2] == list(
        parts[2][0].keys
    )


@pytest.mark.parametrize("sizes", [[4096], [1], [4095, 1], [4095, 2, 4096], [5000, 4000, 3288, 5], [1] * 30, []])
def test_packs_are_filled(sizes: list[int]) -> None:
    items = [Reference(f"{n}", "train", (), f"/in/{n}", WHOLE_FILE, n) for n in range(sum(sizes))]
    ends = list(itertools.accumulate(sizes, initial=0))
    parts = [packed(items[start:end]) for start, end in itertools.pairwise(ends)]
    found = list(full_packs((part, part.keys.digests()) for part in parts))
    counts = [len(digests) for _, digests in found]
    assert counts == [4096] * (len(items) // 4096) + [len(items) % 4096] * (len(items) % 4096 > 0)
    assert [one for pack, _ in found for one in pack.references()] == items
    assert all(pack.keys.digests().tolist() == digests.tolist() for pack, digests in found)


def test_the_sample_is_of_the_smallest_digests_of_each_split() -> None:
    items = [Reference(f"{n}", ("train", "test")[n % 4 == 0], (), f"/in/{n}", WHOLE_FILE, n) for n in range(100)]
    pack, digests = next(packs(items, Order(shuffle=False, seed=0), 0))
    due = {
        split: set(sorted((item.key for item in items if item.split == split), key=key_digest)[:7])
        for split in ("train", "test")
    }
    bounds: dict[str, np.uint64] = {}
    assert {part.splits[0]: set(part.keys) for part in pack.smallest(digests, 7, bounds)} == due
    # Of packs after it, only references that may be among the smallest count.
    assert {key for part in pack.smallest(digests, 7, bounds) for key in part.keys} == due["train"] | due["test"]
    highest = np.argsort(digests[:, 0])[-20:]
    assert not list(pack.take(highest).smallest(digests[highest], 7, bounds))


@given(st.lists(NUMBERED | NEARLY, min_size=1, max_size=8))
def test_digests_of_packed_keys_are_those_of_the_keys(keys: list[str]) -> None:
    assert PackedKeys.of(keys).digests().tolist() == key_digests(keys).tolist()


@given(st.lists(NUMBERED | NEARLY, min_size=1, max_size=8) | st.lists(NUMBERED, min_size=1, max_size=8), st.data())
def test_keys_come_back_from_heads_and_numbers(keys: list[str], data: st.DataObject) -> None:
    packed_keys = PackedKeys.of(keys)
    assert list(packed_keys) == keys
    assert [packed_keys[row] for row in range(len(packed_keys))] == keys
    rows = data.draw(st.lists(st.integers(0, len(keys) - 1), min_size=1))
    assert list(packed_keys.take(np.array(rows))) == [keys[row] for row in rows]
    cut = data.draw(st.integers(1, len(keys)))
    parts = [PackedKeys.of(part) for part in (keys[:cut], keys[cut:]) if part]
    assert list(PackedKeys.joined(parts)) == keys


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_narrow_integers_are_the_same_integers(numbers: list[int]) -> None:
    assert narrow(numbers).tolist() == numbers
    assert np.concatenate([narrow(numbers), narrow([-(2**63), 2**63 - 1])]).dtype == np.int64


def test_lines_of_a_file_take_a_few_bytes_each() -> None:
    lines = [Reference(f"a.txt:{35 * n}", "train", (), "/in/a.txt", 35 * n, 34, Numbered(0)) for n in range(40_000)]
    tracemalloc.start()
    inside = [pack for pack, _ in packs(iter(lines), Order(shuffle=True, seed=0), 0)]
    joined = Pack.joined(inside)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 * 18 * len(lines)
    assert sum(len(pack.to_bytes()) for pack in inside) < 18 * len(lines)
    assert list(joined.references()) == lines


def test_a_pack_takes_few_bytes_a_reference() -> None:
    items = [
        Reference(f"n01/n01_{n}.JPEG", "train", ("n01",), f"/data/train/n01/n01_{n}.JPEG", WHOLE_FILE, 110_000 + n)
        for n in range(4096)
    ]
    pack, _ = next(packs(items, Order(shuffle=True, seed=0), 0))
    assert len(pack.to_bytes()) < 20 * len(items)

"""Pieces of shards: their cuts, the bytes fetched twice, and the number of lanes.

Plans are private: the records of these shards would take terabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.datasets import write_dataset, write_sparse_shards
from tpudata import Reading
from tpudata.format import Feature, open_dataset
from tpudata.input.graph.reading.piece_plan import PiecePlan, plan_reading
from tpudata.input.order.streams import StreamOrder

MEBIBYTE = 1 << 20
BLOCK = 64 * MEBIBYTE


def piece_plan(folder: Path, shards: Sequence[npt.NDArray[np.int64]], **options: int) -> PiecePlan:
    """Return the plan in pieces for shards of records of these sizes, whose files are never read."""
    write_sparse_shards(folder, shards)
    plan = plan_reading(open_dataset(str(folder)), "train", Reading(pieces=True, **options))
    assert isinstance(plan, PiecePlan)
    return plan


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_pieces_cover_their_shards(tmp_path: Path, data: st.DataObject) -> None:
    sizes = st.lists(st.integers(17, 5000), min_size=1, max_size=60).map(np.array)
    shards = data.draw(st.lists(sizes, min_size=1, max_size=4), "sizes of the records of shards")
    piece_bytes = data.draw(st.integers(100, 20_000), "bytes of a piece")
    pieces = piece_plan(tmp_path, shards, piece_bytes=piece_bytes).pieces
    assert pieces.firsts[0] == 0
    assert pieces.stops[-1] == sum(map(len, shards))
    np.testing.assert_array_equal(pieces.firsts[1:], pieces.stops[:-1])
    ends = np.cumsum([len(shard) for shard in shards])
    for start, stop, begin, end, size in zip(
        pieces.firsts, pieces.stops, pieces.begins, pieces.ends, pieces.file_bytes, strict=True
    ):
        shard = int(np.searchsorted(ends, start, "right"))
        offsets = np.append(0, np.cumsum(shards[shard]))
        first = int(start - ends[shard] + len(shards[shard]))
        assert stop <= ends[shard]
        assert (begin, end, size) == (offsets[first], offsets[first + stop - start], offsets[-1])
        # A piece that does not end with its shard fits a block, and one more record would not fit.
        assert end == size or end - begin < piece_bytes or stop - start == 1
        assert end - begin <= 2 * piece_bytes or stop - start == 1
        if end < size:
            assert end - begin + shards[shard][first + stop - start] > piece_bytes - 64


def spans_of_slots(order: StreamOrder) -> Iterator[tuple[int, int, int]]:
    """Yield the slot, the first record and the record after the last one of what all slots read, in turn."""

    def spans(slot: tf.Tensor) -> tf.data.Dataset:
        return order.list_stream_ranges(slot, 0).map(lambda first, last: (slot, first, last))

    slots = len(order.find_slots(0, order.batch_size))
    for found in tf.data.Dataset.range(slots).interleave(spans, cycle_length=slots).as_numpy_iterator():
        yield tuple(map(int, found))  # type: ignore[misc]  # of three


def simulate_fetches(plan: PiecePlan, order: StreamOrder, epochs: int) -> float:
    """Return the bytes that TensorFlow's client requests for each byte of some epochs."""
    pieces, bytes_before = plan.pieces, plan.sizes.sum_bytes_before
    total, taken = 0.0, [0] * order.num_lanes
    for slot, first, last in spans_of_slots(order):
        if taken[slot] >= epochs * plan.count // order.num_lanes:
            if min(taken) >= epochs * plan.count // order.num_lanes:
                break
            continue
        piece = int(np.searchsorted(pieces.firsts, first, "right")) - 1
        begin, end = bytes_before(np.array([first, last]))
        file_end = begin - bytes_before(pieces.firsts[piece : piece + 1])[0]
        left = pieces.file_bytes[piece] - pieces.begins[piece] - file_end
        size = end - begin
        is_exact = pieces.begins[piece] + file_end == 0 and size > BLOCK
        total += size if is_exact else min(left, -(-size // BLOCK) * BLOCK)
        taken[slot] += last - first
    return total / (epochs * plan.sizes.total_bytes)


@pytest.mark.parametrize(
    ("shards", "shard_bytes", "lanes"),
    [
        (16, 75 * 10**6, 4),
        (60, 100 * 10**6, 32),
        (1340, 107 * 10**6, 32),
        (8, 1 << 30, 4),
        pytest.param(400, 20 * 10**6, 16, marks=pytest.mark.matrix),
    ],
)
def test_chooses_as_many_lanes_as_cost_3_percent(tmp_path: Path, shards: int, shard_bytes: int, lanes: int) -> None:
    random = np.random.default_rng(0)
    counts = shard_bytes // 110_000 + random.integers(-20, 20, shards)
    plan = piece_plan(tmp_path, [np.full(count, 110_000) for count in counts])
    assert plan.count_lanes(1024) == lanes
    assert plan.count_lanes(1) == 1
    order = StreamOrder.with_lanes(
        plan.mixed_chunks, 1024, 4881, 7, num_lanes=plan.count_lanes(1024), max_run_records=9
    )
    assert 1 <= simulate_fetches(plan, order, 2) <= 1.03
    assert plan.compute_fetch_ratio(1024, 1) <= 1.031
    # A host of each lane, and two that share it.
    assert plan.compute_fetch_ratio(1024, lanes) == plan.compute_fetch_ratio(1024, 1)
    assert plan.compute_fetch_ratio(1024, 2 * lanes) == 2 * plan.compute_fetch_ratio(1024, 1)


def test_a_slot_reads_the_same_pieces_in_every_epoch(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    plan = piece_plan(tmp_path, [np.full(count, 110_000) for count in 900 + random.integers(-40, 40, 64)])
    order = StreamOrder.with_lanes(plan.mixed_chunks, 64, 4000, 3, num_lanes=8, max_run_records=9)
    assert plan.count % 8  # So slots have other lanes in each epoch.
    read: list[list[list[int]]] = [[[], [], []] for _ in range(8)]
    taken = [0] * 8
    for slot, first, last in spans_of_slots(order):
        epoch = (taken[slot] * 8 + slot) // plan.count
        if epoch < 3:
            read[slot][epoch].append(int(np.searchsorted(plan.pieces.firsts, first, "right")) - 1)
        taken[slot] += last - first
        if min(taken) * 8 >= 3 * plan.count:
            break
    for slot, epochs in enumerate(read):
        own = set(np.flatnonzero(order.chunk_slots == slot).tolist())
        assert len(own) == 8
        # Besides its part, it reads the ends of a lane.
        assert [own <= set(pieces) and len(set(pieces) - own) <= 2 for pieces in epochs] == [True] * 3
        assert epochs[0] != epochs[1]


def test_the_default_window_is_half_a_gibibyte_or_2048_records(tmp_path: Path) -> None:
    plan = piece_plan(tmp_path, [np.full(9000, 110_000)])
    assert plan.count_window_records(None, plan.record_bytes) == (512 * MEBIBYTE) // 110_000
    plan = piece_plan(tmp_path, [np.full(9000, 400_000)])
    assert plan.count_window_records(None, plan.record_bytes) == 2048
    plan = piece_plan(tmp_path, [np.full(900, 4 * MEBIBYTE)])
    assert plan.count_window_records(None, plan.record_bytes) == 256


def test_limits_concurrent_reads_by_memory(tmp_path: Path) -> None:
    plan = piece_plan(tmp_path, [np.full(900, 110_000)] * 4)
    assert plan.reading.count_reads(plan.piece_memory, None) == 32
    # A quarter of the memory, for pieces of 99 MB that are held twice.
    assert plan.reading.count_reads(plan.piece_memory, 8 * 10**9) == 10
    assert plan.reading.count_reads(plan.piece_memory, 1) == 1
    assert piece_plan(tmp_path, [np.full(900, 110_000)] * 4, memory=10**9, streams=4).num_reads == 4


@pytest.mark.parametrize(("compression", "copies"), [(None, 1), ("gzip", 2)])
def test_counts_the_unpacked_bytes_of_a_compressed_piece_twice(
    tmp_path: Path, compression: str | None, copies: int
) -> None:
    # It is unpacked whole, and its records are copied out of it.
    records = [{"x": bytes(1000)} for _ in range(400)]
    features = [Feature("x", "bytes", "uint8", (1000,), "raw")]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="", shards=2, compression=compression)
    dataset = open_dataset(path)
    shards = dataset.manifest.split("train").shards
    unpacked = sum(int(dataset.index(shard).offsets[-1]) for shard in shards) // 2
    plan = plan_reading(dataset, "train", Reading(pieces=True))
    assert isinstance(plan, PiecePlan)
    assert plan.piece_memory == shards[0].bytes + copies * unpacked
    assert plan.reading.count_reads(plan.piece_memory, 8 * 5 * plan.piece_memory) == 10

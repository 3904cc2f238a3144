"""How well training mixes, what its hosts read, and that its epochs differ; that it is exact is in test_order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tpudata.input.chunks import Chunks
from tpudata.input.order.training_order import TrainingOrder, lane_count


def test_epochs_and_seeds_differ_and_repeat() -> None:
    chunks = Chunks.of([500, 700], 16)

    def epochs(seed: int, window: int) -> list[list[int]]:
        order = TrainingOrder(chunks, 48, window, seed)
        return [order.ids(np.arange(e * 1200, (e + 1) * 1200)).tolist() for e in range(3)]

    for window in (1, 300, 1200):
        found = epochs(1, window)
        assert found == epochs(1, window)
        assert all(first != second for first, second in itertools.combinations([*found, *epochs(2, window)], 2))


def test_a_host_reads_its_share() -> None:
    order = TrainingOrder(Chunks.of([20_000], 64), 256, 3200, 0)

    def records_read(hosts: int) -> list[int]:
        share = 256 // hosts
        return [
            sum(
                last - first
                for lane in order.lanes(0, h * share, (h + 1) * share)
                for first, last in _pieces(lane, 600)
            )
            for h in range(hosts)
        ]

    def _pieces(lane: Any, rows: int) -> Any:
        for window in lane.windows:
            yield from window.pieces
            rows -= window.rows
            if rows <= 0:
                return

    whole = records_read(1)[0]
    for hosts in (2, 4, 8):
        assert max(records_read(hosts)) < 1.1 * whole / hosts


def test_the_windows_of_lanes_do_not_end_together() -> None:
    order = TrainingOrder(Chunks.of([200_000], 64), 1024, 32_000, 0)
    firsts = [next(lane.windows).rows for lane in order.lanes(0, 0, 1024)]
    assert len(firsts) == len(set(firsts)) == 32
    # From nearly nothing to a whole window; what ends in the chunk in which it begins goes on to the next cut.
    assert min(firsts) < 128
    assert 980 - 64 < max(firsts) < 1000 + 64


@pytest.mark.parametrize("window", [4 * 64 * 32, 10_000])
def test_windows_end_where_chunks_end(window: int) -> None:
    chunks = Chunks.of([9000, 11_003], 64)
    lanes = TrainingOrder(chunks, 256, window, 3).lanes(0, 0, 256)
    pieces: list[tuple[int, int]] = []
    for lane in lanes:
        rows = 0
        while rows < 20_003 // 32:
            part = next(lane.windows)
            assert part.rows <= lane.longest
            pieces += part.pieces
            rows += part.rows
    # Each record once; and of 315 chunks, only those are read in parts in which one of 32 lanes ends and the next one begins.
    assert sorted(np.concatenate([np.arange(*piece) for piece in pieces]).tolist()) == list(range(20_003))
    assert len(pieces) <= len(chunks.starts) + 31


def test_a_sorted_dataset_is_mixed_like_a_permutation() -> None:
    # 8,000 chunks of 4 records, in windows of 2,400: as 3.5 GB of 110 kB pictures with the default window of 256 MB.
    records, batch_size, classes = 32_000, 256, 1000
    order = TrainingOrder(Chunks.of([8000] * 4, 4), batch_size, 2400, 7)
    stream = order.ids(np.arange(records))
    distance = np.abs(stream - np.arange(records))
    assert distance.mean() == pytest.approx(records / 3, rel=0.02)
    # Quartiles of the distance of two random places in [0, 1): 1 - sqrt(1 - q).
    for quantile in (0.25, 0.5, 0.75):
        assert np.quantile(distance, quantile) / records == pytest.approx(1 - np.sqrt(1 - quantile), abs=0.01)
    # How many classes a batch has, where the dataset is sorted by class: nearly as many as in a permutation.
    labels = order.ids(np.concatenate([order.positions(k, 0, batch_size) for k in range(records // batch_size)])) // (
        records // classes
    )
    found = np.mean([len(np.unique(batch)) for batch in labels.reshape(-1, batch_size)])
    permuted = np.random.default_rng(0).permutation(records) // (records // classes)
    expected = np.mean([len(np.unique(batch)) for batch in permuted.reshape(-1, batch_size)])
    assert 0.85 * expected < found < 1.1 * expected


@pytest.mark.parametrize(
    ("batch_size", "lanes"),
    [(1, 1), (2, 2), (7, 7), (37, 1), (96, 32), (100, 25), (1024, 32), (3 * 2**10, 32), (1000, 25)],
)
def test_lanes_divide_the_batch(batch_size: int, lanes: int) -> None:
    assert lane_count(batch_size) == lanes

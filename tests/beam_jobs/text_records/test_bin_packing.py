"""Best-fit decreasing, compared with a plain loop over all bins.

A dataset shows which documents share a row, but not whether fewer rows were possible.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.text_records.bin_packing import best_fit_decreasing


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_packs_as_few_bins_as_a_plain_loop(sizes: list[int]) -> None:
    bins = best_fit_decreasing(np.array(sizes), 20)
    filled = np.bincount(bins, weights=sizes)
    assert filled.max() <= 20
    assert filled.min() > 0
    # No two bins fit into one, or the items of one would have gone into the other.
    assert len(filled) == 1 or sum(sorted(filled)[:2]) > 20
    assert len(filled) == loop_bins(sizes, 20)


def loop_bins(sizes: list[int], capacity: int) -> int:
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - size)
        else:
            rooms.append(capacity - size)
    return len(rooms)


@pytest.mark.parametrize("capacity", [1, 63, 64, 65, 512, 9000])
def test_fills_bins_of_any_capacity(capacity: int) -> None:
    sizes = np.random.default_rng(0).integers(1, capacity + 1, 3000)
    filled = np.bincount(best_fit_decreasing(sizes, capacity), weights=sizes)
    assert filled.max() <= capacity
    assert len(filled) == loop_bins(sizes.tolist(), capacity)
    assert best_fit_decreasing(np.zeros(0, np.int64), capacity).tolist() == []

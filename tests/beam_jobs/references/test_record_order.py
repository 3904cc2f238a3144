from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.references.record_order import Order

WORD = 2**64 - 1


def splitmix64(state: int) -> int:
    """The next output of the generator as its authors' C code has it."""
    state = state + 0x9E3779B97F4A7C15 & WORD
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & WORD
    state = (state ^ state >> 27) * 0x94D049BB133111EB & WORD
    return state ^ state >> 31


@given(st.lists(st.integers(0, WORD), max_size=20), st.integers(0, 2**40))
def test_shuffled_positions_are_splitmix64_of_the_digest(digests: list[int], seed: int) -> None:
    positions = Order(shuffle=True, seed=seed).positions(np.array(digests, np.uint64), 3, 100)
    assert positions.dtype == np.uint64
    assert positions.tolist() == [splitmix64(digest + seed * 0x9E3779B97F4A7C15 & WORD) for digest in digests]


def test_shuffled_positions_depend_on_nothing_but_digest_and_seed() -> None:
    digests = np.array([7, 8], np.uint64)
    first, other = Order(shuffle=True, seed=1), Order(shuffle=True, seed=2)
    assert first.positions(digests, 0, 0).tolist() == first.positions(digests[::-1], 9, 5)[::-1].tolist()
    assert first.positions(digests, 0, 0).tolist() != other.positions(digests, 0, 0).tolist()


def test_a_negative_seed_is_a_seed() -> None:
    digests = np.arange(5, dtype=np.uint64)
    assert len(set(Order(shuffle=True, seed=-3).positions(digests, 0, 0).tolist())) == 5


@given(st.integers(0, 2**20), st.integers(0, 2**30), st.integers(1, 50))
def test_unshuffled_positions_ascend_with_units_and_records(unit: int, first: int, count: int) -> None:
    order = Order(shuffle=False, seed=0)
    digests = np.zeros(count, np.uint64)
    positions = order.positions(digests, unit, first).tolist()
    assert positions == list(range(positions[0], positions[0] + count))
    assert order.positions(digests, unit, first + count)[0] == positions[-1] + 1
    assert order.positions(digests, unit + 1, 0)[0] > positions[-1]

"""Windows read into rows that are used again, against a plain list of the records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.input.order.order import Window
from tpudata.input.reading import reading_of
from tpudata.input.source import Piece
from tpudata.input.window_rows import Room, WindowRows


class Numbers:
    """Records that are their own numbers, of which some are damaged."""

    def __init__(self, damaged: frozenset[int] = frozenset(), readers: int = 4) -> None:
        self._damaged = damaged
        self.readers = readers

    def expect(self, first: int, last: int) -> None:
        """They are there."""

    def read(self, first: int, last: int) -> Piece:
        """As sources do: the first whole record of all stands in."""
        whole = next(number for number in range(10**6) if number not in self._damaged)
        damaged = [number for number in range(first, last) if number in self._damaged]
        numbers = [whole if number in damaged else number for number in range(first, last)]
        return Piece({"number": np.array(numbers)}, tuple(number - first for number in damaged))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=12),
    st.frozensets(st.integers(0, 60), max_size=20),
    st.integers(1, 3),
    st.sampled_from([1, 4]),
    st.randoms(use_true_random=False),
)
def test_windows_hold_their_records_while_others_come_and_go(
    sizes: list[list[int]], damaged: frozenset[int], most_open: int, readers: int, random: np.random.RandomState
) -> None:
    room, source = Room(most_open * 20), Numbers(damaged, readers)
    under_way: list[tuple[WindowRows, list[int]]] = []
    begin = 0
    reading = reading_of(source)
    for number, window_sizes in enumerate(sizes):
        ends = begin + np.cumsum(window_sizes)
        pieces = tuple(zip((begin, *ends[:-1].tolist()), ends.tolist(), strict=True))
        ids = np.arange(begin, ends[-1])
        take = np.random.default_rng(number).permutation(len(ids)) if number % 2 else None
        under_way.append((WindowRows(Window(pieces, take), reading, room), ids[take].ravel().tolist()))
        begin = int(ends[-1])
        reading.fed(random.randrange(10))  # type: ignore[attr-defined]
        if len(under_way) == most_open:
            check(*under_way.pop(random.randrange(most_open)), room, damaged)  # type: ignore[attr-defined]
    for window, ids_left in under_way:
        check(window, ids_left, room, damaged)
    reading.close()


def check(window: WindowRows, ids: list[int], room: Room, damaged: frozenset[int]) -> None:
    """Every record in its place, or another one that is not damaged."""
    rows = window.result()
    found = room.columns["number"][rows].tolist()
    assert [number for number in ids if number not in damaged] == [
        value for value, number in zip(found, ids, strict=True) if number not in damaged
    ]
    assert not damaged.intersection(found)
    assert room.good[rows].tolist() == [number not in damaged for number in ids]
    window.give_back()


def test_rows_are_given_again_in_one_piece() -> None:
    room = Room(10)
    runs = [room.take(count) for count in (3, 3, 4)]
    with pytest.raises(IndexError):
        room.take(1)
    room.give_back(runs[0])
    room.give_back(runs[2])
    assert room.take(7) == [(0, 3), (6, 10)]
    room.give_back([(0, 3), (6, 10), *runs[1]])
    assert room.take(10) == [(0, 10)]

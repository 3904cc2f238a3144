"""Which record stands in which row: exactness for any sizes, hosts and starts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.input.chunks import Chunks
from tpudata.input.order.order import EvaluationOrder, Order
from tpudata.input.order.training_order import TrainingOrder


@st.composite
def orders(draw: st.DrawFn) -> tuple[Order, int, list[int]]:
    """An order, its batch size, and the records per shard."""
    shards = draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    chunks = Chunks.of(shards, draw(st.sampled_from([1, 2, 8, 64])))
    batch_size = draw(st.sampled_from([1, 2, 7, 12, 24, 37, 64, 96, 200]))
    if draw(st.booleans()):
        return EvaluationOrder(chunks, batch_size), batch_size, shards
    window = draw(st.sampled_from([1, 5, 40, 100, 10**9]))
    return TrainingOrder(chunks, batch_size, window, draw(st.integers(0, 2**32 - 1))), batch_size, shards


def read(order: Order, step: int, first: int, last: int, steps: int) -> Any:
    """[steps, rows]: the records of a host's rows as a plain loop takes them from the windows."""
    parts = []
    for lane in order.lanes(step, first, last):
        taken: list[int] = []
        for window in lane.windows:
            taken += window.ids().tolist()
            assert window.rows == len(window.ids())
            if len(taken) >= steps * lane.stride:
                break
        parts.append(np.array(taken[: steps * lane.stride]).reshape(steps, lane.stride)[:, lane.first : lane.last])
    return np.concatenate(parts, axis=1)


def length(order: Order, step: int, most: int) -> int:
    return most if order.steps is None else min(most, order.steps - step)


@settings(max_examples=150)
@given(orders(), st.data())
def test_what_the_windows_hold_are_the_rows_for_any_host_and_start(found: Any, data: st.DataObject) -> None:
    order, batch_size, _ = found
    if isinstance(order, TrainingOrder) and order.is_whole:
        return
    hosts = data.draw(st.sampled_from([h for h in (1, 2, 3, 4, 8) if batch_size % h == 0]), "hosts")
    step = data.draw(st.integers(0, 40 if order.steps is None else order.steps - 1), "step")
    steps = length(order, step, 3)
    want = [order.ids(order.positions(k, 0, batch_size)) for k in range(step, step + steps)]
    share = batch_size // hosts
    got = [read(order, step, host * share, (host + 1) * share, steps) for host in range(hosts)]
    np.testing.assert_array_equal(np.concatenate(got, axis=1), np.stack(want))


@settings(max_examples=100)
@given(orders())
def test_every_record_comes_once_per_epoch(found: Any) -> None:
    order, batch_size, shards = found
    records = sum(shards)
    steps = length(order, 0, -(-3 * records // batch_size))
    positions = np.concatenate([order.positions(k, 0, batch_size) for k in range(steps)])
    assert sorted(positions) == list(range(steps * batch_size))
    stream = order.ids(np.arange(steps * batch_size))
    if order.steps is not None:
        assert stream[:records].tolist() == list(range(records))
        assert set(stream[records:]) <= {records - 1}
        assert order.is_real(np.arange(steps * batch_size)).sum() == records
        return
    for epoch in range(3):
        assert sorted(stream[epoch * records : (epoch + 1) * records]) == list(range(records))


@settings(max_examples=60)
@given(orders())
def test_pieces_are_of_one_shard(found: Any) -> None:
    order, batch_size, shards = found
    if isinstance(order, TrainingOrder) and order.is_whole:
        return
    ends = np.cumsum(shards)
    for lane in order.lanes(0, 0, batch_size):
        for window in itertools.islice(lane.windows, 20):
            for first, last in window.pieces:
                assert first < last
                assert np.searchsorted(ends, first, "right") == np.searchsorted(ends, last - 1, "right")

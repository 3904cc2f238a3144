"""The order of training without a shuffle, compared with numpy.

Ranges are private: batches show the records, but not at which ones a read begins.
"""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks
from tpudata.input.order.order import HostPart, compute_batch_positions
from tpudata.input.order.sequential import SequentialOrder


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 16),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 50),
    st.data(),
)
def test_ranges_repeat_the_records_in_order(
    shards: list[int], length: int, hosts: int, rows: int, step: int, data: st.DataObject
) -> None:
    chunks = Chunks.cut(shards, length)
    total, batch = sum(shards), rows * hosts
    order = SequentialOrder(chunks, batch)
    host = data.draw(st.integers(0, hosts - 1), "host")
    first, last = rows * host, rows * (host + 1)
    expected = (np.arange(step, step + 3)[:, None] * batch + np.arange(first, last)).reshape(-1) % total
    found: list[int] = []
    for begin, end in order.list_ranges(step, first, last).as_numpy_iterator():
        assert begin < end
        # A range is of one chunk.
        assert np.searchsorted(chunks.firsts, begin, "right") == np.searchsorted(chunks.firsts, end - 1, "right")
        found += range(begin, end)
        if len(found) >= len(expected):
            break
    assert found[: len(expected)] == expected.tolist()


def test_computes_a_distant_step_without_replay() -> None:
    chunks = Chunks.cut([1_000_003, 17], 4096)
    order = SequentialOrder(chunks, 1024)
    step = 10**12
    ranges = list(itertools.islice(order.list_ranges(step, 0, 1024).as_numpy_iterator(), 3))
    assert ranges[0][0] == step * 1024 % 1_000_020
    positions = compute_batch_positions(1024, HostPart(Rows(2, 1024, 0, 2), step), tf.constant(0, tf.int64))
    assert positions.numpy().tolist() == [step * 1024, step * 1024 + 1]

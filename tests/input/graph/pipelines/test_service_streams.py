"""Streams of a tf.data service: their rows, and the time that a client waits for their elements.

Streams are private: a service shows neither how they divide the rows, nor a worker that is slow in a certain element.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import tensorflow as tf

from tpudata.input.graph.pipelines.service.receive_stream import limit_waits
from tpudata.input.graph.pipelines.service.streams import divide_rows
from tpudata.input.options.hosts import Rows


@pytest.mark.parametrize(
    ("batches", "size", "workers"), [(1, 24, 1), (1, 24, 5), (1, 3, 8), (4, 6, 2), (4, 6, 3), (4, 6, 9), (2, 5, 100)]
)
def test_streams_hold_each_row_once(batches: int, size: int, workers: int) -> None:
    rows = Rows(size, 3 * batches * size, batches * size, 2 * batches * size)
    groups = divide_rows(rows, workers)
    streams = [stream for group in groups for stream in group]
    assert 1 <= len(streams) <= workers
    assert [row for stream in streams for row in range(stream.first, stream.stop)] == list(range(rows.first, rows.stop))
    assert all(stream.total == rows.total and stream.count % stream.batch_size == 0 for stream in streams)
    for group in groups:
        assert len(group) == 1 or sum(stream.batch_size for stream in group) == size


def make_slow_dataset(started: threading.Event, ended: threading.Event) -> tf.data.Dataset:
    """Return a dataset of 0 and 1, the second after an event."""

    def wait(number: Any) -> Any:
        if number == 1:
            started.set()
            assert ended.wait(600)
        return number

    def late(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])

    return tf.data.Dataset.range(2).map(late)


def test_the_timeout_counts_waiting_time() -> None:
    started, ended = threading.Event(), threading.Event()
    iterator = iter(limit_waits(make_slow_dataset(started, ended), 2.0, "too late"))
    try:
        assert int(next(iterator)) == 0
        with pytest.raises(tf.errors.InvalidArgumentError, match="too late"):
            next(iterator)
        assert started.is_set()
    finally:
        ended.set()


def test_the_timeout_does_not_count_time_between_elements() -> None:
    iterator = iter(limit_waits(tf.data.Dataset.range(3), 4.0, "too late"))
    found = [int(next(iterator))]
    time.sleep(5)  # As a step does.
    assert [*found, *map(int, iterator)] == [0, 1, 2]


def test_the_end_of_a_pass_does_not_wait_for_the_clock() -> None:
    begin = time.monotonic()
    assert list(limit_waits(tf.data.Dataset.range(3), 36_000.0, "too late").as_numpy_iterator()) == [0, 1, 2]
    assert time.monotonic() - begin < 300

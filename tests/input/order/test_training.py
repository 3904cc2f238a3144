"""The order of training: each record once per epoch, and the same rows on any hosts and from any step.

Orders are private: an input_fn takes the chunks and lanes of its files.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.input.dataset_ops import list_range_numbers
from tpudata.input.order.chunks import Chunks
from tpudata.input.order.streams import StreamOrder
from tpudata.input.order.training import TrainingOrder, find_largest_divisor


def taken(order: TrainingOrder, steps: int, first: int, last: int, start: int = 0) -> npt.NDArray[np.int64]:
    """Return the records in the rows [first, stop) of some steps, as a host finds them."""
    slots, block = order.find_slots(first, last), start // order.steps_per_block
    if isinstance(order, StreamOrder):

        def runs(slot: tf.Tensor) -> tf.data.Dataset:
            return order.list_stream_ranges(slot, block).map(tf.range).rebatch(order.turns_per_run)

        # A run of each slot in turn.
        records = tf.data.Dataset.range(slots.start, slots.stop).interleave(runs, cycle_length=len(slots))
    else:
        records = order.list_block_ranges(slots, block).map(lambda *spans: list_range_numbers(*spans)[1])
    rows = tf.data.Dataset.range(block, 1 << 62).map(lambda number: order.find_block_indices(slots, number))
    pairs = tf.data.Dataset.zip((records.rebatch(len(slots) * order.turns_per_block), rows))
    blocks = pairs.map(tf.gather).as_numpy_iterator()
    offset = slots.start * order.turns_per_step
    found: list[npt.NDArray[np.int64]] = []
    skipped = start - block * order.steps_per_block
    while len(found) < steps + skipped:
        batches = next(blocks)
        found += list(batches[:, first - offset : last - offset])
    return np.array(found[skipped : skipped + steps])


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_the_order_is_a_permutation_per_epoch_on_any_hosts_and_steps(data: st.DataObject) -> None:
    # A step costs a millisecond here, and a batch of one record makes as many steps as there are records.
    shards = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4), "records of the shards")
    chunks = Chunks.cut(shards, data.draw(st.integers(1, 8), "records of a chunk"))
    batch_size = data.draw(st.sampled_from([1, 2, 4, 6, 8, 12, 32, 64, 100]), "batch size")
    window = data.draw(st.integers(1, sum(shards)), "window")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    order = TrainingOrder.make(chunks, batch_size, window, seed)
    if data.draw(st.booleans(), "in streams"):
        lanes = data.draw(st.sampled_from([n for n in range(1, batch_size + 1) if batch_size % n == 0]), "lanes")
        max_run = data.draw(st.integers(1, 8), "records of a run")
        order = StreamOrder.with_lanes(chunks, batch_size, window, seed, num_lanes=lanes, max_run_records=max_run)
    steps = -(-2 * sum(shards) // batch_size) + 2
    batches = taken(order, steps, 0, batch_size)
    stream = np.empty(batches.size, np.int64)
    positions = tf.data.Dataset.range(steps).map(lambda step: order.compute_positions(step, 0, batch_size))
    for place, batch in zip(positions.as_numpy_iterator(), batches, strict=True):
        stream[place] = batch
    for epoch in np.split(stream[: 2 * sum(shards)], 2):
        assert sorted(epoch) == list(range(sum(shards)))
    start = data.draw(st.integers(0, steps - 1), "start step")
    hosts = data.draw(st.sampled_from([n for n in (1, 2, 3, 4) if batch_size % n == 0]), "hosts")
    host = data.draw(st.integers(0, hosts - 1), "host")
    first, last = batch_size // hosts * host, batch_size // hosts * (host + 1)
    late = taken(order, steps - start, first, last, start)
    np.testing.assert_array_equal(late, batches[start:, first:last])


def test_neighbours_separate_and_epochs_differ() -> None:
    order = TrainingOrder.make(Chunks.cut([4096], 16), 32, 1024, 5)
    epochs = taken(order, 3 * 4096 // 32, 0, 32).reshape(3, -1)
    for epoch in epochs:
        # Random numbers would have one pair on average.
        assert np.count_nonzero(np.abs(np.diff(epoch)) == 1) < 10
        # Rows of a batch come from all over the dataset.
        assert np.ptp(epoch.reshape(-1, 32), axis=1).mean() > 0.8 * 4096
    assert np.count_nonzero(epochs[0] == epochs[1]) < 10
    other = TrainingOrder.make(order.chunks, 32, 1024, 6)
    assert np.count_nonzero(taken(other, 128, 0, 32).ravel() == epochs[0]) < 10


def test_all_places_are_equally_likely() -> None:
    # 64 records, all in the window, over 256 epochs.
    order = TrainingOrder.make(Chunks.cut([64], 1), 8, 64, 3)
    places = np.argsort(taken(order, 256 * 8, 0, 8).reshape(256, 64), axis=1)
    counts = np.array([np.bincount(column, minlength=64) for column in places.T])
    # Chi-squared of 64 x 63 degrees of freedom: 4032, with a standard deviation of 90.
    assert abs(((counts - 4) ** 2 / 4).sum() - 4032) < 6 * 90


def test_a_window_of_one_reads_lanes_in_order() -> None:
    order = TrainingOrder.make(Chunks.cut([60], 60), 4, 1, 0)
    lanes = taken(order, 15, 0, 4).T
    assert (np.diff(lanes, axis=1) == 1).all()


def test_memory_is_a_window_or_one_chunk_per_lane() -> None:
    order = TrainingOrder.make(Chunks.cut([10**6], 128), 1024, 100_000, 0)
    assert order.turns_per_block * order.num_lanes <= 100_000
    assert TrainingOrder.make(Chunks.cut([10**6], 128), 32, 1, 0).turns_per_block == 128


def test_lanes_divide_the_batch() -> None:
    assert [find_largest_divisor(size, 32) for size in (1, 7, 24, 32, 37, 96, 1000)] == [1, 7, 24, 32, 1, 32, 25]


def test_hosts_read_only_the_lanes_of_their_rows() -> None:
    order = TrainingOrder.make(Chunks.cut([640], 4), 64, 100, 0)
    for hosts in (1, 2, 4):
        rows = 64 // hosts
        slots = [slot for host in range(hosts) for slot in order.find_slots(rows * host, rows * (host + 1))]
        assert slots == list(range(order.num_lanes))

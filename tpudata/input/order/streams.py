"""The order of training from large pieces, each of whose slots reads one stream.

It is the order of `training`, with pieces of shards as chunks. A piece has more records than a slot has in a block, so that blocks
share pieces: a slot's ranges run on from block to block and from epoch to epoch.

Each slot has its part of the pieces, neighbouring ones, which an epoch permutes among themselves. So a host reads its own part of
the split in every epoch, and can keep it. A lane is an exact share of the records, and a part is not: it ends inside of the last
piece of its part or the first one of the next. If only the first records of that piece were in the lane, they would cost a whole
block of TensorFlow's client; it takes the last ones instead, and the next lane begins with the first ones.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tpudata.input.dataset_ops import as_written, count_up_to
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.draws import DRAW_BITS
from tpudata.input.order.order import Ranges
from tpudata.input.order.training import TrainingOrder, largest_divisor, window_turns


@dataclasses.dataclass(frozen=True, eq=False)
class StreamOrder(TrainingOrder):
    """The order of N records in pieces.

    Attributes:
        run: turns of a slot that are passed on together; divides V. A block has the first run of each slot, then the second one.
    """

    run: int = 1

    @functools.cached_property
    def parts(self) -> Integers:
        """The slot whose part of the split each piece belongs to, int64 [chunks], ascending."""
        middles = (self.chunks.starts + self.chunks.stops) // 2
        parts: Integers = np.minimum(middles * self.lanes // self.records, self.lanes - 1)
        return parts

    @classmethod
    def in_lanes(
        cls, chunks: Chunks, batch_size: int, window: int, seed: int, *, lanes: int, most_run: int
    ) -> StreamOrder:
        """Return the order with a shuffle window of about `window` records over all lanes.

        Args:
            chunks: the pieces.
            batch_size: rows of the global batch.
            window: records that are permuted together.
            seed: seed, from 0 to 2**32 - 1.
            lanes: number of lanes, a divisor of the batch size.
            most_run: largest number of records of a run.
        """
        stride = batch_size // lanes
        window = window_turns(window, lanes, stride)
        turns = max(window, stride)
        return cls(chunks, batch_size, lanes, turns, window, seed, largest_divisor(turns, max(1, most_run)))

    def starts(self, rows: Rows) -> Integers:
        """Return the first records of the pieces that a host reads in every epoch, int64 [n]."""
        return self.chunks.starts[np.isin(self.parts, self.slots(rows.first, rows.last))]

    def read(self, ranges: Ranges, slots: range, block: int) -> tf.data.Dataset:
        """Return a dataset of what is read of slots from a block on, in runs: of each slot the next one in turn."""
        load = ranges.load(ranges.seeks(self.chunks))
        ahead = 1 if ranges.reads is None else -(-ranges.reads // len(slots))

        def read_slot(slot: tf.Tensor) -> tf.data.Dataset:
            # A piece waits while another is used up and more are in flight: all slots would wait for the slowest request.
            elements = ranges.read(self.stream(slot, block), load, ahead).prefetch(1)
            return elements.rebatch(self.run, drop_remainder=True)

        return tf.data.Dataset.range(slots.start, slots.stop).interleave(
            as_written(read_slot),
            cycle_length=len(slots),
            block_length=1,
            num_parallel_calls=len(slots),
            deterministic=True,
        )

    def stream(self, slot: tf.Tensor, block: int) -> tf.data.Dataset:
        """Return the ranges that a slot reads from a block on: an endless dataset of [first, last) of records, int64 each."""
        begin, slots = block * self.turns, tf.expand_dims(slot, 0)

        def list_spans(epoch: tf.Tensor) -> tf.data.Dataset:
            first, after = self._first_turn(epoch, slots), self._first_turn(epoch + 1, slots)
            low = tf.maximum(first, begin)
            spans = self._spans_of(self._permute_chunks(epoch), epoch, slots, first, low, tf.maximum(low, after))
            return tf.data.Dataset.from_tensor_slices(spans)

        epochs = tf.data.Dataset.range((begin * self.lanes + slot) // self.records, tf.int64.max)
        return epochs.flat_map(as_written(list_spans))

    def rows(self, slots: range, block: tf.Tensor) -> tf.Tensor:
        """Return which of a block's records stands in each row: int64 [steps, slots * stride]."""
        numbers = tf.range(slots.start, slots.stop, dtype=tf.int64)[:, tf.newaxis]
        turn = tf.range(self.turns, dtype=tf.int64)
        turns = block * self.turns + turn
        epoch = (numbers + turns * self.lanes) // self.records
        first = tf.maximum(self._first_turn(epoch, numbers), block * self.turns)
        place = (numbers - slots.start) * self.run + turn % self.run
        return self._mix_rows(slots, block, first, turn // self.run * (len(slots) * self.run) + place)

    def _chunk_keys(self, epoch: tf.Tensor) -> tf.Tensor:
        lane = tf.math.floormod(tf.constant(self.parts) - epoch * self.records, self.lanes)
        return tf.bitwise.left_shift(lane, tf.constant(DRAW_BITS, tf.int64)) + super()._chunk_keys(epoch)

    def _permute_chunks(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        begins, ends, firsts = super()._permute_chunks(epoch)
        if self.lanes == 1:
            return begins, ends, firsts
        lane = np.arange(1, self.lanes)
        bounds = tf.constant(lane * (self.records // self.lanes) + np.minimum(lane, self.records % self.lanes))
        # The first bound inside of each chunk, counted from its begin.
        before = count_up_to(bounds, begins)
        head = tf.gather(bounds, tf.minimum(before, self.lanes - 2)) - begins
        sizes = ends - begins
        is_turned = tf.equal(count_up_to(bounds, ends - 1) - before, 1) & (2 * head < sizes)
        places = tf.sort(tf.concat([begins, bounds], 0))
        # With fewer records than lanes, some bounds are at the end.
        chunk = tf.minimum(count_up_to(ends, places), len(self.chunks.starts) - 1)
        offset, size = places - tf.gather(begins, chunk), tf.gather(sizes, chunk)
        turned = tf.math.floormod(offset - tf.gather(head, chunk), size)
        offset = tf.where(tf.gather(is_turned, chunk), turned, offset)
        return places, tf.concat([places[1:], ends[-1:]], 0), tf.gather(firsts, chunk) + offset

    def _first_turn(self, epoch: tf.Tensor, slots: tf.Tensor) -> tf.Tensor:
        """Return the first turn of an epoch in each slot."""
        return -((slots - epoch * self.records) // self.lanes)

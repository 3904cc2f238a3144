"""The order of training from large pieces, each of whose slots reads one stream.

It is the order of `training`, with pieces of shards as chunks. A piece has more records than a slot has in a block, so that blocks
share pieces: a slot's ranges run on from block to block and from epoch to epoch.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tpudata.input.dataset_ops import as_written
from tpudata.input.order.chunks import Chunks
from tpudata.input.order.training import TrainingOrder, largest_divisor, window_turns


@dataclasses.dataclass(frozen=True, eq=False)
class StreamOrder(TrainingOrder):
    """The order of N records in pieces.

    Attributes:
        run: turns of a slot that are passed on together; divides V. A block has the first run of each slot, then the second one.
    """

    run: int = 1

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

    def stream(self, slot: tf.Tensor, block: int) -> tf.data.Dataset:
        """Return what a slot reads from a block on: an endless dataset of [first, last) of records, int64 each."""
        begin, slots = block * self.turns, tf.expand_dims(slot, 0)

        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            first, after = self._first_turn(epoch, slots), self._first_turn(epoch + 1, slots)
            low = tf.maximum(first, begin)
            spans = self._spans_of(self._permute_chunks(epoch), epoch, slots, first, low, tf.maximum(low, after))
            return tf.data.Dataset.from_tensor_slices(spans)

        epochs = tf.data.Dataset.range((begin * self.lanes + slot) // self.records, tf.int64.max)
        return epochs.flat_map(as_written(of_epoch))

    def rows(self, slots: range, block: tf.Tensor) -> tf.Tensor:
        """Return which of a block's records stands in each row: int64 [steps, slots * stride]."""
        numbers = tf.range(slots.start, slots.stop, dtype=tf.int64)[:, tf.newaxis]
        turn = tf.range(self.turns, dtype=tf.int64)
        turns = block * self.turns + turn
        epoch = (numbers + turns * self.lanes) // self.records
        first = tf.maximum(self._first_turn(epoch, numbers), block * self.turns)
        of_slot = (numbers - slots.start) * self.run + turn % self.run
        return self._mix_rows(slots, block, first, turn // self.run * (len(slots) * self.run) + of_slot)

    def _first_turn(self, epoch: tf.Tensor, slots: tf.Tensor) -> tf.Tensor:
        """Return the first turn of slots that is of an epoch."""
        return -((slots - epoch * self.records) // self.lanes)

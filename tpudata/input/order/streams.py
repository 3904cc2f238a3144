"""The order of training from large pieces, in which each slot reads one stream.

It is the order of `training`, with pieces of shards as chunks. A piece has more records than a slot has in a block, so blocks share
pieces: a slot's ranges continue from block to block and from epoch to epoch.

Each slot has its part of the pieces, neighbouring ones, which an epoch permutes among themselves. So a host reads its own part of
the split in every epoch, and can keep it. A lane is an exact share of the records, so it ends inside the last piece of its part or
the first one of the next. If less than half of that piece belongs to the lane, the piece is rotated: the lane takes its last
records and the next lane begins with its first ones, because reading only the first records would fetch a whole block of
TensorFlow's client.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tpudata.input.dataset_ops import count_up_to, without_autograph
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.draws import DRAW_BITS
from tpudata.input.order.order import Ranges
from tpudata.input.order.training import PermutedChunks, TrainingOrder, count_window_turns, find_largest_divisor


@dataclasses.dataclass(frozen=True, eq=False)
class StreamOrder(TrainingOrder):
    """The order of N records in pieces.

    Attributes:
        turns_per_run: number of consecutive turns of a slot that form a run, a divisor of V: a block has the first run of each
            slot, then the second.
    """

    turns_per_run: int = 1

    @functools.cached_property
    def chunk_slots(self) -> Integers:
        """For each piece, the slot whose part of the split contains it: int64 [chunks], ascending."""
        # A piece that crosses the end of a part belongs to the part that has its middle.
        middles = (self.chunks.firsts + self.chunks.stops) // 2
        chunk_slots: Integers = np.minimum(middles * self.num_lanes // self.num_records, self.num_lanes - 1)
        return chunk_slots

    @classmethod
    def with_lanes(
        cls, chunks: Chunks, batch_size: int, window_records: int, seed: int, *, num_lanes: int, max_run_records: int
    ) -> StreamOrder:
        """Return the order with `num_lanes` lanes, and a shuffle window of about `window_records` records over all of them.

        Args:
            chunks: the pieces.
            batch_size: rows of the global batch.
            window_records: number of records that are permuted together.
            seed: seed, from 0 to 2**32 - 1.
            num_lanes: number of lanes, a divisor of the batch size.
            max_run_records: maximum number of records in a run, which a slot passes on together; 0 counts as 1.
        """
        turns_per_step = batch_size // num_lanes
        turns_per_window = count_window_turns(window_records, num_lanes, turns_per_step)
        # A block has whole windows and whole steps. The turns of a window divide those of a step, or the reverse: the larger number
        # is a multiple of both.
        turns_per_block = max(turns_per_window, turns_per_step)
        turns_per_run = find_largest_divisor(turns_per_block, max(1, max_run_records))
        return cls(chunks, batch_size, num_lanes, turns_per_block, turns_per_window, seed, turns_per_run)

    def list_first_records(self, rows: Rows) -> Integers:
        """Return the first records of the pieces that a host reads in every epoch, int64 [n]."""
        return self.chunks.firsts[np.isin(self.chunk_slots, self.find_slots(rows.first, rows.stop))]

    def read(self, ranges: Ranges, slots: range, block: int) -> tf.data.Dataset:
        """Return a dataset of the records of slots from a block on: the next run of each slot in turn.

        A run is `turns_per_run` consecutive turns of a slot.
        """
        load = ranges.make_loader(ranges.find_read_starts(self.chunks))
        # The slots share the concurrent reads, each at least one.
        reads_per_slot = 1 if ranges.num_reads is None else -(-ranges.num_reads // len(slots))

        def read_slot(slot: tf.Tensor) -> tf.data.Dataset:
            # Each slot prefetches a piece, so that not all slots wait for the slowest request.
            elements = ranges.read(self.list_stream_ranges(slot, block), load, reads_per_slot).prefetch(1)
            return elements.rebatch(self.turns_per_run, drop_remainder=True)

        return tf.data.Dataset.range(slots.start, slots.stop).interleave(
            without_autograph(read_slot),
            cycle_length=len(slots),
            block_length=1,
            num_parallel_calls=len(slots),
            deterministic=True,
        )

    def list_stream_ranges(self, slot: tf.Tensor, block: int) -> tf.data.Dataset:
        """Return the ranges that a slot reads from a block on: an endless dataset of [first, stop) of records, int64 each."""
        start_turn = block * self.turns_per_block
        slots = tf.expand_dims(slot, 0)

        def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            """Return the ranges of the slot's turns in an epoch, from `start_turn` on."""
            first_turn, stop_turn = self._find_first_turn(epoch, slots), self._find_first_turn(epoch + 1, slots)
            # The first epoch may begin before the block.
            begin_turn = tf.maximum(first_turn, start_turn)
            chunks = self._permute_chunks(epoch)
            firsts_and_stops = self._list_turn_ranges(chunks, epoch, slots, first_turn, begin_turn, stop_turn)
            return tf.data.Dataset.from_tensor_slices(firsts_and_stops)

        epochs = tf.data.Dataset.range((start_turn * self.num_lanes + slot) // self.num_records, tf.int64.max)
        return epochs.flat_map(without_autograph(list_epoch))

    def find_block_indices(self, slots: range, block: tf.Tensor) -> tf.Tensor:
        """Return for each row of a block's steps the index of its record in the block: int64 [steps, slots * turns_per_step]."""
        slot_numbers = tf.range(slots.start, slots.stop, dtype=tf.int64)[:, tf.newaxis]
        block_turns = tf.range(self.turns_per_block, dtype=tf.int64)
        turns = block * self.turns_per_block + block_turns
        epoch = (slot_numbers + turns * self.num_lanes) // self.num_records
        first_turns = tf.maximum(self._find_first_turn(epoch, slot_numbers), block * self.turns_per_block)
        # The block has the first run of each slot, then the second. So find where the run of each slot and turn begins in the
        # block, and then the index of the turn in its run.
        run_size = self.turns_per_run
        run_begins = (block_turns // run_size * len(slots) + slot_numbers - slots.start) * run_size
        return self._mix_rows(slots, block, first_turns, run_begins + block_turns % run_size)

    def _draw_chunk_keys(self, epoch: tf.Tensor) -> tf.Tensor:
        """Return keys that sort an epoch's chunks by the lane of their part, and at random within it: int64 [chunks]."""
        # A slot's lane may change with the epoch, see `training`. Its own part of the chunks must be in that lane.
        lane = tf.math.floormod(tf.constant(self.chunk_slots) - epoch * self.num_records, self.num_lanes)
        return tf.bitwise.left_shift(lane, tf.constant(DRAW_BITS, tf.int64)) + super()._draw_chunk_keys(epoch)

    def _permute_chunks(self, epoch: tf.Tensor) -> PermutedChunks:
        """Return the permuted chunks of an epoch, cut at the bounds of lanes, so that each lane begins with a chunk."""
        whole = super()._permute_chunks(epoch)
        if self.num_lanes == 1:
            return whole
        lanes = np.arange(1, self.num_lanes)
        # Index in the permuted sequence at which each lane but the first begins: the first num_records % num_lanes lanes have a
        # record more than the others.
        bounds = tf.constant(
            lanes * (self.num_records // self.num_lanes) + np.minimum(lanes, self.num_records % self.num_lanes)
        )
        num_bounds_before = count_up_to(bounds, whole.begins)
        # The number of records of each chunk before the first bound inside it; meaningless for chunks without one.
        head_sizes = tf.gather(bounds, tf.minimum(num_bounds_before, self.num_lanes - 2)) - whole.begins
        sizes = whole.ends - whole.begins
        # A chunk with one bound inside it and less than half of its records before the bound gives its last records to the lane
        # before the bound, and its first ones to the next: to read only the first ones would fetch a whole block.
        is_rotated = tf.equal(count_up_to(bounds, whole.ends - 1) - num_bounds_before, 1) & (2 * head_sizes < sizes)
        begins = tf.sort(tf.concat([whole.begins, bounds], 0))
        # With fewer records than lanes, some bounds are at the end of the sequence, and get the last chunk.
        chunk_indices = tf.minimum(count_up_to(whole.ends, begins), len(self.chunks.firsts) - 1)
        # Index in its chunk of the record with which each of the cut chunks begins.
        offsets = begins - tf.gather(whole.begins, chunk_indices)
        rotated_offsets = tf.math.floormod(
            offsets - tf.gather(head_sizes, chunk_indices), tf.gather(sizes, chunk_indices)
        )
        offsets = tf.where(tf.gather(is_rotated, chunk_indices), rotated_offsets, offsets)
        ends = tf.concat([begins[1:], whole.ends[-1:]], 0)
        return PermutedChunks(begins, ends, tf.gather(whole.firsts, chunk_indices) + offsets)

    def _find_first_turn(self, epoch: tf.Tensor, slots: tf.Tensor) -> tf.Tensor:
        """Return the first turn of an epoch in each slot: the smallest t with s + t L of at least epoch * N, see `training`."""
        return -((slots - epoch * self.num_records) // self.num_lanes)

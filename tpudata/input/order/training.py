"""The endless, shuffled order of training, as integer arithmetic in a TensorFlow graph.

Records are numbered 0..N-1 in the order of the dataset. Batches of B rows are cut from one endless stream of positions 0, 1, 2,
...: batch k has the positions [k B, (k + 1) B). Epoch p // N has the record of position p at its place p % N, so that every record
comes once an epoch and no batch is short.

- A chunk is a run of neighbouring records that are read together. Each epoch permutes all chunks.
- The permuted sequence is cut into L lanes, whose lengths differ by at most one record, where L divides B. The record at
  place q of an epoch has index q // L in lane q % L.
  Row r of a batch belongs to slot r // (B / L); slot s takes the positions s, s + L, s + 2 L, ..., its turns 0, 1, 2, ...: within
  an epoch these are the records of one lane, and in the next epoch the records of another lane, unless L divides N. A host that
  feeds some rows reads the lanes of their slots only.
- A block is V turns of all slots, a whole number of steps, and is what a host holds in memory at a time. Within a block, the
  records of each slot are permuted: all that are of one epoch, or windows of W turns of them.

All draws are Philox, so that a seed gives the same order with every release of TensorFlow.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tpudata.input.dataset_ops import count_up_to, list_range_numbers, without_autograph
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.draws import BLOCK_DRAWS, DRAW_BITS, EPOCH_DRAWS, draw
from tpudata.input.order.order import HostPart, Ranges
from tpudata.tensor_types import Tensors

# 32 lanes mix well and divide evenly among hosts.
MAX_LANES = 32


class PermutedChunks(NamedTuple):
    """Chunks of an epoch in their permuted order.

    Attributes:
        begins: index of each chunk's first record in the permuted sequence, int64 [chunks].
        ends: index after each chunk's last record in the permuted sequence, int64 [chunks].
        firsts: number of each chunk's first record, int64 [chunks].
    """

    begins: tf.Tensor
    ends: tf.Tensor
    firsts: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingOrder:
    """The order of N records in global batches of B rows.

    Attributes:
        chunks: the records in runs.
        batch_size: rows of the global batch, B.
        num_lanes: number of lanes, L.
        turns_per_block: turns of a block, V; a multiple of B / L.
        turns_per_window: turns that are permuted together, W; divides V.
        seed: seed, from 0 to 2**32 - 1.
    """

    chunks: Chunks
    batch_size: int
    num_lanes: int
    turns_per_block: int
    turns_per_window: int
    seed: int

    @classmethod
    def make(cls, chunks: Chunks, batch_size: int, window_records: int, seed: int) -> TrainingOrder:
        """Return the order with a shuffle window of about `window_records` records over all lanes.

        Args:
            chunks: the records in runs.
            batch_size: rows of the global batch.
            window_records: number of records that are permuted together.
            seed: seed, from 0 to 2**32 - 1.
        """
        num_lanes = find_largest_divisor(batch_size, MAX_LANES)
        turns_per_step = batch_size // num_lanes
        turns_per_window = count_window_turns(window_records, num_lanes, turns_per_step)
        # A block has whole windows and whole steps. The turns of a window divide those of a step, or the reverse: the larger number
        # is a multiple of both.
        common_multiple = max(turns_per_window, turns_per_step)
        # A block shorter than a chunk would read each chunk several times.
        min_turns = max(common_multiple, int((chunks.stops - chunks.firsts).max()))
        turns_per_block = -(-min_turns // common_multiple) * common_multiple
        return cls(chunks, batch_size, num_lanes, turns_per_block, turns_per_window, seed)

    @property
    def num_records(self) -> int:
        """Number of records, N."""
        return self.chunks.num_records

    @property
    def steps(self) -> None:
        """None, since the order has no end."""

    @property
    def turns_per_step(self) -> int:
        """Turns of each slot in a step, B / L: the rows of a batch that belong to the slot."""
        return self.batch_size // self.num_lanes

    @property
    def steps_per_block(self) -> int:
        """Number of steps that take their rows from one block."""
        return self.turns_per_block // self.turns_per_step

    def find_slots(self, first_row: int, stop_row: int) -> range:
        """Return the slots of the rows [first_row, stop_row) of a batch."""
        return range(first_row // self.turns_per_step, -(-stop_row // self.turns_per_step))

    def list_first_records(self, _: Rows) -> Integers:
        """Return the first records of the chunks that a host reads, int64 [n]: of all chunks here."""
        return self.chunks.firsts

    def batches(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return an endless dataset of (records, extras) of a host's rows."""
        rows = part.rows
        slots = self.find_slots(rows.first, rows.stop)
        first_block, steps_to_skip = divmod(part.start_step, self.steps_per_block)
        # The host may feed only some rows of its first and its last slot.
        first_row = slots.start * self.turns_per_step
        read_blocks = self.read(ranges, slots, first_block).rebatch(
            len(slots) * self.turns_per_block, drop_remainder=True
        )

        def make_batches(block: tf.Tensor, elements: Tensors, *memory: Tensors) -> tf.data.Dataset:
            """Return the batches of a block, from its records or record numbers as `ranges` reads them."""
            row_indices = self.find_block_indices(slots, block)[:, rows.first - first_row : rows.stop - first_row]
            row_indices = tf.reshape(row_indices, [-1, rows.batch_size])
            extras = {} if part.seed is None else self._make_block_seeds(part, block)

            def pick_batch(batch_index: tf.Tensor) -> tuple[Tensors, dict[str, tf.Tensor]]:
                records = ranges.pick(elements, row_indices[batch_index], *memory)
                return records, {name: values[batch_index] for name, values in extras.items()}

            num_skipped = tf.where(tf.equal(block, first_block), steps_to_skip * part.batches_per_step, 0)
            batch_indices = tf.data.Dataset.range(
                tf.cast(num_skipped, tf.int64), self.steps_per_block * part.batches_per_step
            )
            return batch_indices.map(without_autograph(pick_batch))

        # The next block is read while batches are made of this one.
        block_indices = tf.data.Dataset.range(first_block, tf.int64.max)
        blocks = tf.data.Dataset.zip((block_indices, read_blocks, *ranges.memory_datasets))
        return blocks.prefetch(1).flat_map(without_autograph(make_batches))

    def _make_block_seeds(self, part: HostPart, block: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return {"seed": seeds of a block's records, int32 [batches, rows, 2]}; {} if the part has no seed."""
        steps = block * self.steps_per_block + tf.range(self.steps_per_block, dtype=tf.int64)
        extras = part.derive_seeds(self.compute_positions(steps[:, tf.newaxis], part.rows.first, part.rows.stop))
        return {name: tf.reshape(seeds, [-1, part.rows.batch_size, 2]) for name, seeds in extras.items()}

    def read(self, ranges: Ranges, slots: range, block: int) -> tf.data.Dataset:
        """Return a dataset of the records (or record numbers) of slots from a block on, in the order of `list_block_ranges`."""
        return ranges.read_range_groups(
            self.list_block_ranges(slots, block), ranges.make_loader(ranges.find_read_starts(self.chunks))
        )

    def list_block_ranges(self, slots: range, block: int) -> tf.data.Dataset:
        """Return the ranges of records that slots read from a block on: a dataset of (firsts, stops), int64 [n] each.

        Elements are in the order of epochs, then of blocks; the ranges of an element in the order of slots, then of turns.
        """
        slot_numbers = tf.range(slots.start, slots.stop, dtype=tf.int64)
        positions_per_block = self.turns_per_block * self.num_lanes

        def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            """Return the ranges of an epoch from `block` on, an element for each block."""
            chunks = self._permute_chunks(epoch)

            def list_block(block_index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                first_turn, begin_turn, end_turn = self._find_turns(epoch, block_index, slot_numbers)
                return self._list_turn_ranges(chunks, epoch, slot_numbers, first_turn, begin_turn, end_turn)

            first_block = tf.maximum(epoch * self.num_records // positions_per_block, block)
            stop_block = ((epoch + 1) * self.num_records - 1) // positions_per_block + 1
            return tf.data.Dataset.range(first_block, stop_block).map(without_autograph(list_block))

        epochs = tf.data.Dataset.range(block * positions_per_block // self.num_records, tf.int64.max)
        return epochs.flat_map(without_autograph(list_epoch))

    def _permute_chunks(self, epoch: tf.Tensor) -> PermutedChunks:
        """Return an epoch's permuted chunks."""
        chunk_indices = tf.argsort(self._draw_chunk_keys(epoch), stable=True)
        counts = tf.gather(tf.constant(self.chunks.stops - self.chunks.firsts), chunk_indices)
        ends = tf.cumsum(counts)
        return PermutedChunks(ends - counts, ends, tf.gather(tf.constant(self.chunks.firsts), chunk_indices))

    def _draw_chunk_keys(self, epoch: tf.Tensor) -> tf.Tensor:
        """Return the keys by which an epoch's chunks are sorted, drawn at random: int64 [chunks], less than 2**40."""
        return draw([len(self.chunks.firsts)], self.seed, epoch, EPOCH_DRAWS)

    def _list_turn_ranges(
        self,
        chunks: PermutedChunks,
        epoch: tf.Tensor,
        slots: tf.Tensor,
        first_turn: tf.Tensor,
        begin_turn: tf.Tensor,
        end_turn: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the ranges of records of each slot's turns [begin_turn, end_turn) in an epoch: (firsts, stops), int64 [n] each.

        The ranges are in the order of slots, then of turns.

        Args:
            chunks: the epoch's chunks, permuted.
            epoch: index of the epoch.
            slots: the slots, int64 [m].
            first_turn: first turn of each slot in the epoch, int64 [m].
            begin_turn: first requested turn of each slot, int64 [m].
            end_turn: the turn after the last requested one, int64 [m].
        """
        # Turn t of slot s is position s + t L of the stream, so its place in the epoch is in this lane, whatever t is.
        lanes = tf.math.floormod(slots - epoch * self.num_records, self.num_lanes)
        # Indices in the permuted sequence, in which lane follows lane. The first num_records % num_lanes lanes have a record more
        # than the others.
        begin_index = lanes * (self.num_records // self.num_lanes) + tf.minimum(
            lanes, self.num_records % self.num_lanes
        )
        begin_index += begin_turn - first_turn
        end_index = begin_index + (end_turn - begin_turn)
        # A range for each chunk that a slot's indices [begin_index, end_index) touch.
        first_chunk = count_up_to(chunks.ends, begin_index)
        stop_chunk = tf.where(end_turn > begin_turn, count_up_to(chunks.ends, end_index - 1) + 1, first_chunk)
        splits, chunk_indices = list_range_numbers(first_chunk, stop_chunk)
        # For each range the index of its slot, and then the part of its chunk that the slot takes.
        slot_indices = count_up_to(splits, tf.range(tf.size(chunk_indices, tf.int64))) - 1
        chunk_begins, chunk_ends = tf.gather(chunks.begins, chunk_indices), tf.gather(chunks.ends, chunk_indices)
        chunk_firsts = tf.gather(chunks.firsts, chunk_indices)
        firsts = chunk_firsts + tf.maximum(tf.gather(begin_index, slot_indices) - chunk_begins, 0)
        stops = chunk_firsts + tf.minimum(tf.gather(end_index, slot_indices), chunk_ends) - chunk_begins
        return firsts, stops

    def find_block_indices(self, slots: range, block: tf.Tensor) -> tf.Tensor:
        """Return for each row of a block's steps the index of its record in the block: int64 [steps, slots * turns_per_step].

        The records of the block are in the order of `list_block_ranges`.

        Args:
            slots: slots of the host's rows.
            block: index of the block.
        """
        slot_numbers = tf.range(slots.start, slots.stop, dtype=tf.int64)
        positions_per_block = self.turns_per_block * self.num_lanes
        first_epoch = block * positions_per_block // self.num_records
        epochs = tf.range(first_epoch, ((block + 1) * positions_per_block - 1) // self.num_records + 1)
        # For each epoch and slot: its turns [begin, end) in this block, and the index in the block of the first one's record.
        _, begins, ends = self._find_turns(epochs[:, tf.newaxis], block, slot_numbers)
        lengths = tf.maximum(ends - begins, 0)
        offsets = tf.reshape(tf.cumsum(tf.reshape(lengths, [-1]), exclusive=True), tf.shape(lengths))
        turns = block * self.turns_per_block + tf.range(self.turns_per_block, dtype=tf.int64)
        # For each slot and turn, the indices of its epoch and slot in `begins` and `offsets`: [slots, turns, 2].
        epoch_index = (slot_numbers[:, tf.newaxis] + turns * self.num_lanes) // self.num_records - first_epoch
        slot_index = tf.broadcast_to(tf.range(len(slots), dtype=tf.int64)[:, tf.newaxis], tf.shape(epoch_index))
        epoch_and_slot = tf.stack([epoch_index, slot_index], -1)
        first_turns = tf.gather_nd(begins, epoch_and_slot)
        stored_indices = tf.gather_nd(offsets, epoch_and_slot) + turns - first_turns
        return self._mix_rows(slots, block, first_turns, stored_indices)

    def _mix_rows(self, slots: range, block: tf.Tensor, first_turns: tf.Tensor, stored_indices: tf.Tensor) -> tf.Tensor:
        """Permute a block's records within windows, and return for each row the index of its record.

        The result is int64 [steps, slots * turns_per_step].

        Args:
            slots: slots of the host's rows.
            block: index of the block.
            first_turns: for each slot and turn, the block's first turn in the same epoch, int64 [slots, turns].
            stored_indices: index in the block of the record of each slot and turn before the permutation, int64 [slots, turns].
        """
        turns = block * self.turns_per_block + tf.range(self.turns_per_block, dtype=tf.int64)
        # Sorting by the first turn of the window, and then at random, keeps records in their windows. No window crosses an epoch.
        window_begins = (
            tf.maximum(first_turns, turns // self.turns_per_window * self.turns_per_window)
            - block * self.turns_per_block
        )
        # The draws are for all lanes, so that a slot has the same draws on any host.
        draws = draw([self.num_lanes, self.turns_per_block], self.seed, block, BLOCK_DRAWS)[slots.start : slots.stop]
        keys = tf.bitwise.left_shift(window_begins, tf.constant(DRAW_BITS, tf.int64)) + draws
        mixed_indices = tf.gather(stored_indices, tf.argsort(keys, stable=True), batch_dims=1)
        by_step = tf.reshape(mixed_indices, [len(slots), self.steps_per_block, self.turns_per_step])
        return tf.reshape(tf.transpose(by_step, [1, 0, 2]), [self.steps_per_block, len(slots) * self.turns_per_step])

    def compute_positions(self, step: tf.Tensor, first_row: int, stop_row: int) -> tf.Tensor:
        """Return the position in the stream of each of the rows [first_row, stop_row) of a step's batch, int64 [..., rows].

        Args:
            step: index of the step, int64 scalar; or of several steps, int64 [steps, 1].
            first_row: first row.
            stop_row: the row after the last one.
        """
        # Row r has turn r % turns_per_step of the step in slot r // turns_per_step; turn t of slot s is position s + t L.
        rows = tf.range(first_row, stop_row, dtype=tf.int64)
        return step * self.batch_size + rows % self.turns_per_step * self.num_lanes + rows // self.turns_per_step

    def _find_turns(
        self, epoch: tf.Tensor, block: tf.Tensor, slots: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return for each slot the first turn of an epoch, and the turns [begin_turn, end_turn) of the epoch that are in a block.

        The three are int64, of the common shape of `epoch` and `slots`; the last two are equal if no turn of the epoch is in the
        block.
        """
        # The first turn t whose position, s + t L, is in this epoch; and the first one in the next epoch.
        first_turn = (epoch * self.num_records - slots + self.num_lanes - 1) // self.num_lanes
        next_first_turn = ((epoch + 1) * self.num_records - slots + self.num_lanes - 1) // self.num_lanes
        begin_turn = tf.maximum(first_turn, block * self.turns_per_block)
        end_turn = tf.minimum(next_first_turn, (block + 1) * self.turns_per_block)
        return first_turn, begin_turn, tf.maximum(begin_turn, end_turn)


def count_window_turns(window_records: int, num_lanes: int, turns_per_step: int) -> int:
    """Return the turns of a window of about `window_records` records: a multiple or a divisor of `turns_per_step`."""
    num_turns = max(1, window_records // num_lanes)
    if num_turns < turns_per_step:
        return find_largest_divisor(turns_per_step, num_turns)
    return num_turns - num_turns % turns_per_step


def find_largest_divisor(number: int, max_divisor: int) -> int:
    """Return the largest divisor of a number that is at most `max_divisor`."""
    return max(divisor for divisor in range(1, min(number, max_divisor) + 1) if number % divisor == 0)

"""The endless order of training without a shuffle, as integer arithmetic in a TensorFlow graph."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tpudata.input.dataset_ops import count_up_to, without_autograph
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.order import HostPart, Ranges, compute_batch_positions, take_rows


@dataclasses.dataclass(frozen=True, eq=False)
class SequentialOrder:
    """N records again and again in global batches of B rows: record p % N is at position p, and batch k has [k B, (k + 1) B).

    Attributes:
        chunks: the records in runs.
        batch_size: rows of the global batch, B.
    """

    chunks: Chunks
    batch_size: int

    @property
    def num_records(self) -> int:
        """Number of records, N."""
        return self.chunks.num_records

    def list_ranges(self, step: int, first_row: int, stop_row: int) -> tf.data.Dataset:
        """Return an endless dataset of the ranges [first, stop) of the records in some rows of all batches from a step on.

        No range crosses the end of a chunk.

        Args:
            step: the first step.
            first_row: first of the rows.
            stop_row: the row after the last one.
        """
        chunk_firsts, chunk_stops = tf.constant(self.chunks.firsts), tf.constant(self.chunks.stops)
        num_chunks = len(self.chunks.firsts)

        def find_chunk_index(position: tf.Tensor) -> tf.Tensor:
            """Return the index of a position's chunk, counted through all epochs."""
            chunk = tf.squeeze(count_up_to(chunk_firsts, tf.expand_dims(position % self.num_records, 0))) - 1
            return position // self.num_records * num_chunks + chunk

        def cut_into_ranges(first_position: tf.Tensor, stop_position: tf.Tensor) -> tf.data.Dataset:
            """Return the ranges of the positions [first_position, stop_position)."""
            # For each chunk, its index counted through all epochs; then the position at which its epoch begins, and its index in
            # the epoch.
            total_indices = tf.range(find_chunk_index(first_position), find_chunk_index(stop_position - 1) + 1)
            epoch_begins = total_indices // num_chunks * self.num_records
            chunk_indices = total_indices % num_chunks
            firsts = tf.maximum(tf.gather(chunk_firsts, chunk_indices), first_position - epoch_begins)
            stops = tf.minimum(tf.gather(chunk_stops, chunk_indices), stop_position - epoch_begins)
            return tf.data.Dataset.from_tensor_slices((firsts, stops))

        def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            return cut_into_ranges(
                tf.maximum(epoch * self.num_records, step * self.batch_size), (epoch + 1) * self.num_records
            )

        def list_step(later_step: tf.Tensor) -> tf.data.Dataset:
            batch_begin = later_step * self.batch_size
            return cut_into_ranges(batch_begin + first_row, batch_begin + stop_row)

        # All rows of neighbouring batches are one run. Listed by epoch, it has fewer and longer ranges than by step.
        if stop_row - first_row == self.batch_size:
            epochs = tf.data.Dataset.range(step * self.batch_size // self.num_records, tf.int64.max)
            return epochs.flat_map(without_autograph(list_epoch))
        return tf.data.Dataset.range(step, tf.int64.max).flat_map(without_autograph(list_step))

    @property
    def steps(self) -> None:
        """None, since the order has no end."""

    def list_first_records(self, _: Rows) -> Integers:
        """Return the first records of the chunks that a host reads, int64 [n]: of all chunks here."""
        return self.chunks.firsts

    def batches(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return an endless dataset of (records, extras) of a host's rows."""
        return take_rows(lambda host_part: self._make_batches(ranges, host_part), ranges, part)

    def _make_batches(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return an endless dataset of (records, extras) of exactly the rows of `part`.

        If the host reads whole batches, `take_rows` passes a part of whole batches, and then takes the host's rows of each.
        """
        rows = part.rows
        order = self
        if rows.count < rows.total:
            # A host's rows usually begin in the middle of a chunk, at a different record in each epoch, and the chunk's earlier
            # records are read for nothing. Small chunks have few of them.
            order = dataclasses.replace(self, chunks=ranges.choose_host_chunks(self.chunks, rows))
        load = ranges.make_loader(order.chunks.firsts)
        elements = ranges.read(order.list_ranges(part.start_step, rows.first, rows.stop), load)
        records = ranges.gather_records(elements.rebatch(rows.batch_size, drop_remainder=True))

        def make_extras(batch_index: tf.Tensor) -> dict[str, tf.Tensor]:
            return part.derive_seeds(compute_batch_positions(self.batch_size, part, batch_index))

        # Without a seed there are no extras.
        if part.seed is None:
            return records.map(without_autograph(lambda batch: (batch, {})))
        return tf.data.Dataset.zip((records, tf.data.Dataset.counter().map(without_autograph(make_extras))))

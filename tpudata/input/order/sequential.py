"""The endless order of training without a shuffle, as integer arithmetic in a TensorFlow graph."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tpudata.input.dataset_ops import as_written, count_up_to
from tpudata.input.order.chunks import Chunks


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
    def records(self) -> int:
        """Number of records, N."""
        return self.chunks.records

    def ranges(self, step: int, first: int, last: int) -> tf.data.Dataset:
        """Return which records the rows [first, last) of all batches from a step on have: a dataset of [first, last), int64.

        No range crosses the end of a chunk.
        """
        starts, stops = tf.constant(self.chunks.starts), tf.constant(self.chunks.stops)
        count = len(self.chunks.starts)

        def number(position: tf.Tensor) -> tf.Tensor:
            """Return the number of a position's chunk, counted through all epochs."""
            found = tf.squeeze(count_up_to(starts, tf.expand_dims(position % self.records, 0))) - 1
            return position // self.records * count + found

        def of_run(begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
            numbers = tf.range(number(begin), number(end - 1) + 1)
            before, chunks = numbers // count * self.records, numbers % count
            firsts = tf.maximum(tf.gather(starts, chunks), begin - before)
            lasts = tf.minimum(tf.gather(stops, chunks), end - before)
            return tf.data.Dataset.from_tensor_slices((firsts, lasts))

        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            return of_run(tf.maximum(epoch * self.records, step * self.batch_size), (epoch + 1) * self.records)

        def of_step(number: tf.Tensor) -> tf.data.Dataset:
            return of_run(number * self.batch_size + first, number * self.batch_size + last)

        if last - first == self.batch_size:
            epochs = tf.data.Dataset.range(step * self.batch_size // self.records, tf.int64.max)
            return epochs.flat_map(as_written(of_epoch))
        return tf.data.Dataset.range(step, tf.int64.max).flat_map(as_written(of_step))

    def positions(self, step: tf.Tensor, first: int, last: int) -> tf.Tensor:
        """Return the position of each of the rows [first, last) of a step's batch, int64."""
        return step * self.batch_size + tf.range(first, last, dtype=tf.int64)

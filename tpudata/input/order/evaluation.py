"""The order of evaluation: one pass in the order of the dataset, the last batch padded with the last record."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tpudata.input.dataset_ops import without_autograph
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.order import HostPart, Ranges, batch_positions, take_rows


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationOrder:
    """N records in ceil(N / B) global batches of B rows: record p is at position p, and positions from N on are padding.

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

    @property
    def steps(self) -> int:
        """Number of batches."""
        return -(-self.records // self.batch_size)

    def ranges(self, step: int, first: int, last: int) -> tuple[Integers, Integers]:
        """Return the records of the rows [first, last) of all batches from a step on: the begin and end of each range.

        No range crosses the end of a chunk. Padding is omitted.
        """
        if last - first == self.batch_size:
            begins, ends = np.array([step * self.batch_size]), np.array([self.records])
        else:
            begins = np.arange(step, self.steps, dtype=np.int64) * self.batch_size + first
            ends = np.minimum(begins + last - first, self.records)
        begins, ends = begins[begins < ends], ends[begins < ends]
        # Split each run at the chunks that begin inside it.
        low = np.searchsorted(self.chunks.starts, begins, "right")
        high = np.searchsorted(self.chunks.starts, ends, "left")
        cuts = [self.chunks.starts[a:b] for a, b in zip(low, high, strict=True)]
        firsts = np.sort(np.concatenate([begins, *cuts])).astype(np.int64)
        lasts = np.sort(np.concatenate([ends, *cuts])).astype(np.int64)
        return firsts, lasts

    def starts(self, _: Rows) -> Integers:
        """Return the first records of the chunks that a host reads, int64 [n]."""
        return self.chunks.starts

    def batches(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return a dataset of (records, extras) of a host's rows, with `weights` that are 0 for padding."""
        return take_rows(lambda host_part: self._batches(ranges, host_part), ranges, part)

    def one_pass(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return a dataset of the records alone; the last batch is padded with the last record."""
        rows = part.rows
        firsts, lasts = self.ranges(part.start_step, rows.first, rows.last)
        # The last record is read once more as padding.
        load = ranges.load(np.append(firsts, self.records - 1))
        dataset = ranges.read(tf.data.Dataset.from_tensor_slices((firsts, lasts)), load)
        padding = max(0, self.steps - part.start_step) * rows.count - int((lasts - firsts).sum())
        if padding:
            last = tf.data.Dataset.from_tensors((np.int64(self.records - 1), np.int64(self.records)))
            repeated = without_autograph(
                lambda record: tf.nest.map_structure(lambda column: tf.repeat(column, padding, axis=0), record)
            )
            padded = ranges.read(last, load).map(repeated)
            dataset = dataset.concatenate(padded) if len(firsts) else padded
        return ranges.gather_records(dataset.rebatch(rows.batch_size, drop_remainder=True))

    def _batches(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        def extras(batch_index: tf.Tensor) -> dict[str, tf.Tensor]:
            positions = batch_positions(self.batch_size, part, batch_index)
            return {"weights": tf.cast(positions < self.records, tf.float32), **part.seeds(positions)}

        count = max(0, self.steps - part.start_step) * part.per_step
        return tf.data.Dataset.zip(
            (self.one_pass(ranges, part), tf.data.Dataset.range(count).map(without_autograph(extras)))
        )

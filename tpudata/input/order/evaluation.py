"""The order of evaluation: one pass in the order of the dataset, the last batch padded with the last record."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tpudata.input.dataset_ops import without_autograph
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.order import HostPart, Ranges, compute_batch_positions, take_rows


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
    def num_records(self) -> int:
        """Number of records, N."""
        return self.chunks.num_records

    @property
    def steps(self) -> int:
        """Number of batches."""
        return -(-self.num_records // self.batch_size)

    def list_ranges(self, step: int, first_row: int, stop_row: int) -> tuple[Integers, Integers]:
        """Return the ranges of the records in rows [first_row, stop_row) of all batches from a step on.

        They are (firsts, stops), int64 [n] each. No range crosses the end of a chunk. Padding is omitted.
        """
        # All rows are one run across the ends of batches: fewer and longer ranges.
        if stop_row - first_row == self.batch_size:
            run_firsts, run_stops = np.array([step * self.batch_size]), np.array([self.num_records])
        else:
            run_firsts = np.arange(step, self.steps, dtype=np.int64) * self.batch_size + first_row
            run_stops = np.minimum(run_firsts + stop_row - first_row, self.num_records)
        run_firsts, run_stops = run_firsts[run_firsts < run_stops], run_stops[run_firsts < run_stops]
        # Split each run at the chunks that begin inside it.
        first_cuts = np.searchsorted(self.chunks.firsts, run_firsts, "right")
        stop_cuts = np.searchsorted(self.chunks.firsts, run_stops, "left")
        cuts = [self.chunks.firsts[first:stop] for first, stop in zip(first_cuts, stop_cuts, strict=True)]
        # Each cut begins a range, and ends the one before it.
        firsts = np.sort(np.concatenate([run_firsts, *cuts])).astype(np.int64)
        stops = np.sort(np.concatenate([run_stops, *cuts])).astype(np.int64)
        return firsts, stops

    def list_first_records(self, _: Rows) -> Integers:
        """Return the first records of the chunks that a host reads, int64 [n]: of all chunks here."""
        return self.chunks.firsts

    def batches(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return a dataset of (records, extras) of a host's rows, with `weights` that are 0 for padding."""
        return take_rows(lambda host_part: self._make_batches(ranges, host_part), ranges, part)

    def read_pass(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return a dataset of a part's records without extras; rows of the last step without a record repeat the last record."""
        rows = part.rows
        firsts, stops = self.list_ranges(part.start_step, rows.first, rows.stop)
        # The last record is read once more as padding.
        load = ranges.make_loader(np.append(firsts, self.num_records - 1))
        dataset = ranges.read(tf.data.Dataset.from_tensor_slices((firsts, stops)), load)
        num_padding_rows = max(0, self.steps - part.start_step) * rows.count - int((stops - firsts).sum())
        if num_padding_rows:
            last_range = tf.data.Dataset.from_tensors((np.int64(self.num_records - 1), np.int64(self.num_records)))
            repeat_record = without_autograph(
                lambda record: tf.nest.map_structure(lambda column: tf.repeat(column, num_padding_rows, axis=0), record)
            )
            padding = ranges.read(last_range, load).map(repeat_record)
            # A host may have no records, only padding.
            dataset = dataset.concatenate(padding) if len(firsts) else padding
        return ranges.gather_records(dataset.rebatch(rows.batch_size, drop_remainder=True))

    def _make_batches(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return a dataset of (records, extras) of exactly the rows of `part`.

        If the host reads whole batches, `take_rows` passes a part of whole batches, and then takes the host's rows of each.
        """

        def make_extras(batch_index: tf.Tensor) -> dict[str, tf.Tensor]:
            positions = compute_batch_positions(self.batch_size, part, batch_index)
            return {"weights": tf.cast(positions < self.num_records, tf.float32), **part.derive_seeds(positions)}

        num_batches = max(0, self.steps - part.start_step) * part.batches_per_step
        return tf.data.Dataset.zip(
            (self.read_pass(ranges, part), tf.data.Dataset.range(num_batches).map(without_autograph(make_extras)))
        )

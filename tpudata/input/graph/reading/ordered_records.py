"""The records of a host in the order of training or evaluation, as tf.data graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.input.dataset_ops import as_written
from tpudata.input.graph.reading.piece_cache import PieceCache
from tpudata.input.graph.reading.stored_records import Load, StoredRecords
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Integers
from tpudata.input.order.evaluation import EvaluationOrder
from tpudata.input.order.seeds import record_seeds
from tpudata.input.order.sequential import SequentialOrder
from tpudata.input.order.streams import StreamOrder
from tpudata.input.order.training import TrainingOrder


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedRecords:
    """Rows of a host, from a step on.

    Its datasets have elements of `rows.batch_size` records: columns by full name, tensors [n, *field.shape]; or string [n] as
    stored.

    Attributes:
        stored: the records.
        rows: rows of each global batch that this host feeds.
        start_step: number of steps that are done.
        is_decoded: whether records are decoded as they are read.
        whole: an endless dataset of one element, all records, if they are in memory.
        seed: seed of the run if anything is drawn for each record, otherwise None.
        reads: number of ranges that are read at the same time; None for as many as pay.
        cache: pieces on a local disk, if any are kept there.
    """

    stored: StoredRecords
    rows: Rows
    start_step: int
    is_decoded: bool
    whole: tf.data.Dataset | None = None
    seed: int | None = None
    reads: int | None = None
    cache: PieceCache | None = None

    def shuffled(self, order: TrainingOrder, seeks: Integers) -> tf.data.Dataset:
        """Return an endless dataset of (records, extras), shuffled.

        Args:
            order: the order.
            seeks: numbers of records at which reading can begin, int64 [n].
        """
        rows, whole = self.rows, self.whole
        slots = order.slots(rows.first, rows.last)
        first_block, begin = divmod(self.start_step, order.steps_per_block)
        per_step = rows.count // rows.batch_size
        offset = slots.start * order.stride
        if isinstance(order, StreamOrder):
            read = self._streams(order, slots, first_block, self._load(seeks))
        elif whole is None:
            read = self._read(order.ranges(slots, first_block), self._load(seeks))
        else:
            read = order.numbers(slots, first_block)
        blocks = [
            tf.data.Dataset.range(first_block, tf.int64.max),
            read.rebatch(len(slots) * order.turns, drop_remainder=True),
            *([] if whole is None else [whole.repeat()]),
        ]

        def batches(block: tf.Tensor, records: Any, *all_records: Any) -> tf.data.Dataset:
            table = order.rows(slots, block)[:, rows.first - offset : rows.last - offset]
            table = tf.reshape(table, [-1, rows.batch_size])
            seeds = self._block_seeds(order, block)

            def batch(number: tf.Tensor) -> Any:
                here = tf.gather(records, table[number]) if all_records else table[number]
                found = _gathered(all_records[0] if all_records else records, here)
                return found, {} if seeds is None else {"seed": seeds[number]}

            skipped = tf.where(tf.equal(block, first_block), begin * per_step, 0)
            numbers = tf.data.Dataset.range(tf.cast(skipped, tf.int64), order.steps_per_block * per_step)
            return numbers.map(as_written(batch))

        # The next block is read while batches are made of this one.
        return tf.data.Dataset.zip(tuple(blocks)).prefetch(1).flat_map(as_written(batches))

    def _streams(self, order: StreamOrder, slots: range, block: int, load: Load) -> tf.data.Dataset:
        """Return the records of slots from a block on, in runs: of each slot the next one in turn."""
        ahead = 1 if self.reads is None else -(-self.reads // len(slots))

        def of_slot(slot: tf.Tensor) -> tf.data.Dataset:
            # A piece waits while another is used up and more are in flight: all slots would wait for the slowest request.
            read = self.stored.read(order.stream(slot, block), load, ahead).prefetch(1)
            return read.rebatch(order.run, drop_remainder=True)

        return tf.data.Dataset.range(slots.start, slots.stop).interleave(
            as_written(of_slot),
            cycle_length=len(slots),
            block_length=1,
            num_parallel_calls=len(slots),
            deterministic=True,
        )

    def repeated(self, order: SequentialOrder) -> tf.data.Dataset:
        """Return an endless dataset of (records, extras) in the order of the dataset."""
        load = self._load(order.chunks.starts)
        ranges = order.ranges(self.start_step, self.rows.first, self.rows.last)
        found = self._from_memory(self._read(ranges, load).rebatch(self.rows.batch_size, drop_remainder=True))
        seed = self.seed
        if seed is None:
            return found.map(as_written(lambda records: (records, {})))

        def extras(number: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"seed": record_seeds(seed, self._positions(order, number))}

        return tf.data.Dataset.zip((found, tf.data.Dataset.counter().map(as_written(extras))))

    def evaluated(self, order: EvaluationOrder) -> tf.data.Dataset:
        """Return a dataset of records, one pass in order; the last batch is padded with the last record."""
        firsts, lasts = order.ranges(self.start_step, self.rows.first, self.rows.last)
        # The last record is read once more as padding.
        load = self._load(np.append(firsts, order.records - 1))
        dataset = self._read(tf.data.Dataset.from_tensor_slices((firsts, lasts)), load)
        padding = max(0, order.steps - self.start_step) * self.rows.count - int((lasts - firsts).sum())
        if padding:
            last = tf.data.Dataset.from_tensors((np.int64(order.records - 1), np.int64(order.records)))
            repeated = as_written(
                lambda found: tf.nest.map_structure(lambda column: tf.repeat(column, padding, axis=0), found)
            )
            padded = self._read(last, load).map(repeated)
            dataset = dataset.concatenate(padded) if len(firsts) else padded
        return self._from_memory(dataset.rebatch(self.rows.batch_size, drop_remainder=True))

    def of_global_batches(self, read: Callable[[OrderedRecords], tf.data.Dataset]) -> tf.data.Dataset:
        """Return what `read` returns for all rows of each batch, of which only the host's are kept."""
        rows = self.rows
        every = dataclasses.replace(self, rows=Rows(rows.total, rows.total, 0, rows.total))

        def own(*found: Any) -> Any:
            whole = found if len(found) > 1 else found[0]
            return tf.nest.map_structure(lambda column: column[rows.first : rows.last], whole)

        dataset = read(every).map(as_written(own))
        return dataset if rows.count == rows.batch_size else dataset.rebatch(rows.batch_size, drop_remainder=True)

    def weights(self, order: EvaluationOrder) -> tf.data.Dataset:
        """Return a dataset of the extras of evaluation's batches: `weights`, and `seed` if anything is drawn."""

        def extras(number: tf.Tensor) -> dict[str, tf.Tensor]:
            positions = self._positions(order, number)
            found = {"weights": tf.cast(positions < order.records, tf.float32)}
            return found if self.seed is None else {**found, "seed": record_seeds(self.seed, positions)}

        count = max(0, order.steps - self.start_step) * (self.rows.count // self.rows.batch_size)
        return tf.data.Dataset.range(count).map(as_written(extras))

    def _read(self, ranges: tf.data.Dataset, load: Load) -> tf.data.Dataset:
        return self.stored.read(ranges, load, self.reads)

    def _load(self, cuts: Integers) -> Load:
        """Return a function that reads ranges of records, or that makes their numbers if they are in memory."""
        if self.whole is not None:
            return _numbers
        return self.stored.load(cuts, is_decoded=self.is_decoded, cache=self.cache)

    def _from_memory(self, found: tf.data.Dataset) -> tf.data.Dataset:
        """Return the records of a dataset of their numbers, if they are in memory."""
        if self.whole is None:
            return found
        records = tf.data.Dataset.zip((found, self.whole.repeat()))
        return records.map(as_written(lambda ids, all_records: _gathered(all_records, ids)))

    def _positions(self, order: SequentialOrder | EvaluationOrder, number: tf.Tensor) -> tf.Tensor:
        """Return the positions of the rows of this host's batch `number`, counted from `start_step` on: int64 [n]."""
        rows = self.rows
        per_step = rows.count // rows.batch_size
        step, part = self.start_step + number // per_step, number % per_step
        return order.positions(step, rows.first, rows.first + rows.batch_size) + part * rows.batch_size

    def _block_seeds(self, order: TrainingOrder, block: tf.Tensor) -> tf.Tensor | None:
        """Return the seeds of a block's records, int32 [batches, rows, 2], or None if nothing is drawn."""
        if self.seed is None:
            return None
        steps = block * order.steps_per_block + tf.range(order.steps_per_block, dtype=tf.int64)
        positions = order.positions(steps[:, tf.newaxis], self.rows.first, self.rows.last)
        return tf.reshape(record_seeds(self.seed, positions), [-1, self.rows.batch_size, 2])


def _numbers(first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Return the numbers of records in place of the records."""
    return tf.range(first, last)


def _gathered(columns: Any, places: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda column: tf.gather(column, places), columns)

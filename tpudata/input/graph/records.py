"""The records of a split in batches, in their order: read from files, or taken from a cache."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.format import Dataset
from tpudata.input.dataset.fields import Fields
from tpudata.input.graph.cache import CACHE_SPLIT, MEMORY_SHARE, CachePlan, free_memory
from tpudata.input.graph.stored_records import Load, StoredRecords
from tpudata.input.graph.whole_pass import numpy_elements
from tpudata.input.maps import PARALLEL, as_written
from tpudata.input.options.hosts import Rows
from tpudata.input.options.options import Options
from tpudata.input.order.chunks import Chunks, Integers, chunk_records
from tpudata.input.order.evaluation import EvaluationOrder
from tpudata.input.order.seeds import record_seeds
from tpudata.input.order.sequential import SequentialOrder
from tpudata.input.order.training import TrainingOrder
from tpudata.input.text.sequence import TOKEN_ROWS

# Read at one time, up to twice that: to open a file and to begin there costs as much as to read a quarter of it, and larger reads
# mix less.
_READ_BYTES = 1 << 19
# As many times that in evaluation, where nothing is mixed, and of rows of packed tokens, which were mixed as they were made.
_LARGE_READS = 4
# What training permutes: with fewer chunks, a small window would mix little.
_LEAST_CHUNKS = 256
# A lane's part of a block begins anywhere in a chunk. Reading begins at the last of these places before it: with chunks alone, 28 %
# of what was read of records of 842 bytes was in vain, and 47 % of tokens. The table of places takes 48 bytes each.
_SEEK_BYTES = 1 << 16
_MOST_SEEKS = 1 << 17
# Without a shuffle each host reads a run of records a step, in so many parts.
_PIECES_PER_HOST = 4
# The default window of the shuffle, in bytes of stored records, and its least length in records.
_WINDOW_BYTES = 96 << 20
_WINDOW_RECORDS = 1024
# Decoded as they are read, if that takes no more memory in the window than this many times what is stored.
_MOST_GROWTH = 1.25

Order: TypeAlias = TrainingOrder | SequentialOrder | EvaluationOrder


class Records:
    """The records of a split, from its files or from a cache.

    Args:
        dataset: the dataset.
        split: name of the split.
        fields: what is read of each record.
        options: how records are fed.
        cache: where decoded records are kept, or None.

    Raises:
        UsageError: a shuffle of all records, which do not fit the memory.
    """

    def __init__(self, dataset: Dataset, split: str, fields: Fields, options: Options, cache: CachePlan | None) -> None:
        # What is read: the dataset, or the cache's files, which have the same records in the same shards.
        self._stored = StoredRecords(dataset, split, fields)
        self._split = dataset.kept(split)
        self._are_token_rows = dataset.manifest.layout in TOKEN_ROWS
        self._fields = fields
        self._options = options
        self._cache = cache
        (first,) = (shard for shard in dataset.manifest.split(split).shards if shard.name == self._split.shards[0].name)
        index = dataset.index(first)
        # As read: what is compressed takes more than its file.
        self._record_bytes = max(1, int(index.offsets[-1]) // index.records)
        self._block_records = None if index.compression is None else index.block_records
        # Numbers of some of the records, and all of them; None for all.
        self._ids: Integers | None = None
        self._all: Records | None = None
        # By device, which is another host's under some strategies. Kept between calls, so that a trainer that asks for its dataset
        # anew every round decodes once.
        self._kept: dict[str, tf.data.Dataset] = {}
        self._filled: Records | None = None
        self._check_window()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is kept in memory: another process reads it anew."""
        return {**self.__dict__, "_kept": {}}

    def part(self, ids: Integers, fields: Fields, options: Options, cache: CachePlan | None) -> Records:
        """Return some of these records, by their numbers among them, with fields of another length at most."""
        other = copy.copy(self)
        other._fields, other._options, other._cache = fields, options, cache
        other._stored = self._stored.part(ids, fields)
        other._all = self._all or self
        other._ids = ids if self._ids is None else self._ids[ids]
        other._kept, other._filled = {}, None
        return other

    @property
    def count(self) -> int:
        """Number of records."""
        return self._split.records if self._ids is None else len(self._ids)

    def order(self, total: int) -> Order:
        """Return their order in global batches of `total` rows."""
        if not self._options.training:
            return EvaluationOrder(self._chunks(1), total)
        if not self._options.shuffles:
            return SequentialOrder(self._chunks(1), total)
        window = min(self._window(), self.count)
        chunks = Chunks.of([self.count], 1) if window == self.count else self._chunks(_LEAST_CHUNKS)
        return TrainingOrder.of(chunks, total, window, operator.index(self._options.seed))

    @property
    def fields(self) -> Fields:
        """What is read of each record."""
        return self._fields

    @property
    def stored(self) -> StoredRecords:
        """The records as files have them."""
        return self._stored

    def one_pass(self, batch_size: int) -> tf.data.Dataset:
        """Return all records as they are stored, string [batch_size], in order; the last batch is padded with the last record."""
        rows = Rows(batch_size, batch_size, 0, batch_size)
        return self._evaluated(EvaluationOrder(self._chunks(1), batch_size), rows, 0, is_decoded=False)

    def batches(self, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the host's rows from a step on: a dataset of (columns, extras), with `rows.batch_size` rows each.

        Columns are tensors [n, *field.shape] by the full names of features; extras are `seed`, int32 [n, 2], if anything is drawn,
        and in evaluation `weights`, float32 [n], 0 for padding.
        """
        if self._cache is not None and self._cache.folder is not None:
            return self._cached_in_files().batches(order, rows, start_step)
        whole = self._whole()
        is_decoded = self._decodes_early or self._cache is not None
        if isinstance(order, TrainingOrder):
            load = None if whole is not None else self._stored.load(self._seeks(order.chunks), is_decoded=is_decoded)
            dataset = self._trained(order, rows, start_step, load, whole)
        elif isinstance(order, SequentialOrder):
            dataset = self._repeated(order, rows, start_step, is_decoded=is_decoded, whole=whole)
        else:
            dataset = self._evaluated(order, rows, start_step, is_decoded=is_decoded, whole=whole)
            dataset = tf.data.Dataset.zip((dataset, self._extras(order, rows, start_step)))
        if is_decoded:
            return dataset
        decoded = as_written(lambda stored, extras: (self._stored.decode(stored), extras))
        return dataset.map(decoded, **PARALLEL, name=self._stored.name)

    @property
    def is_held(self) -> bool:
        """Whether training holds all records in memory, as they fit the window of the shuffle."""
        return self._options.training and self._window() >= self.count

    def read_counts(self) -> tf.data.Dataset:
        """Return a dataset that reads all records, in order, and has how many were read each time."""
        chunks = self._chunks(1)
        read = self._stored.load(chunks.starts, is_decoded=False)
        ranges = tf.data.Dataset.from_tensor_slices((chunks.starts, chunks.stops))
        return self._stored.read(ranges, lambda first, last: tf.size(read(first, last)))

    def _whole(self) -> tf.data.Dataset | None:
        """Return an endless dataset of one element, all records, if they are kept in memory."""
        if self._cache is None and not self.is_held:
            return None
        # What was made eagerly is of no use in a graph.
        device = tf.zeros([]).device if tf.executing_eagerly() else None
        if device in self._kept:
            return self._kept[device]
        rows = Rows(self.count, self.count, 0, self.count)
        is_decoded = self._decodes_early or self._cache is not None
        order = EvaluationOrder(self._chunks(1), self.count)
        whole = self._evaluated(order, rows, 0, is_decoded=is_decoded).cache()
        if device is not None:
            self._kept[device] = whole
        return whole

    def _cached_in_files(self) -> Records:
        """Return the records as the cache's files have them, which the first call writes."""
        if self._all is not None and self._ids is not None and self._filled is None:
            filled = copy.copy(self._all._cached_in_files())
            filled._stored, filled._ids = filled._stored.part(self._ids), self._ids
            self._filled = filled
        if self._filled is None:
            assert self._cache is not None
            # Also for a dataset of a graph of TensorFlow 1.
            with tf.init_scope():
                files = self._cache.load() or self._cache.fill(self._all_decoded(), self._split, self._fields)
            self._filled = copy.copy(self)
            self._filled._stored = StoredRecords(files, CACHE_SPLIT, self._cache.stored(self._fields))
            self._filled._cache, self._filled._kept = None, {}
        return self._filled

    def _all_decoded(self) -> Iterator[dict[str, Any]]:
        """Yield all records, decoded, in their order, in parts."""
        order = EvaluationOrder(self._chunks(1), 1)

        def make() -> tf.data.Dataset:
            firsts, lasts = order.chunks.starts, order.chunks.stops
            dataset = tf.data.Dataset.from_tensor_slices((firsts, lasts))
            return self._stored.read(dataset, self._stored.load(firsts, is_decoded=True))

        return numpy_elements(make)

    @functools.cached_property
    def _decodes_early(self) -> bool:
        """Whether records are decoded as they are read: many at a time, and not a batch at a time."""
        fields = self._fields.all
        if any(field.bytes is None or field.feature.encoding == "image" or field.pads for field in fields):
            return False
        return self._fields.record_bytes(self._split) <= _MOST_GROWTH * self._record_bytes

    def _chunks(self, least: int) -> Chunks:
        """Return the records in chunks, at least so many if there are that many records."""
        is_large = least == 1 or self._are_token_rows
        size = _READ_BYTES * (_LARGE_READS if is_large else 1)
        length = chunk_records(self._split.records, self._record_bytes, size, least)
        # Of a compressed block, all is unpacked for any record.
        length = length if self._block_records is None else max(length, self._block_records)
        return self._chunks_of(length)

    def _chunks_of(self, length: int) -> Chunks:
        """Return the records in chunks of a number of those that are stored."""
        chunks = Chunks.of([shard.records for shard in self._split.shards], length)
        if self._ids is None:
            return chunks
        starts, stops = np.searchsorted(self._ids, chunks.starts), np.searchsorted(self._ids, chunks.stops)
        return Chunks(starts[starts < stops], stops[starts < stops])

    def _seeks(self, chunks: Chunks) -> Integers:
        """Return the numbers of records at which reading can begin without reading those before them, int64 [n]."""
        if self._stored.has_gaps:
            return chunks.starts
        count, size = self._split.records, self._record_bytes
        length = chunk_records(count, size, max(_SEEK_BYTES, -(-count // _MOST_SEEKS) * size))
        return np.union1d(chunks.starts, self._chunks_of(max(length, self._block_records or 1)).starts)

    def _window(self) -> int:
        """Return how many records are mixed."""
        if self._options.shuffle_buffer is not None:
            window = self._options.shuffle_buffer
        else:
            window = max(_WINDOW_RECORDS, _WINDOW_BYTES // self._kept_bytes)
        # A part has its part of the window.
        return -(-window * self.count // self._split.records)

    @property
    def _kept_bytes(self) -> int:
        """About what a record takes in the window."""
        return max(self._record_bytes, self._fields.record_bytes(self._split) if self._decodes_early else 0)

    @property
    def window_bytes(self) -> int:
        """About how many bytes the records take that the shuffle mixes."""
        return min(self._window(), self.count) * self._kept_bytes

    def _check_window(self) -> None:
        if self._options.shuffle_buffer is None or self._cache is not None or self._window() < self._split.records:
            return
        free, size = free_memory(), self._kept_bytes * self._split.records
        if free is not None and size > MEMORY_SHARE * free:
            raise UsageError(
                f"shuffle={self._options.shuffle}: the records take {size / 1e9:.3g} GB, more than"
                f" {MEMORY_SHARE:.0%} of the free memory of {free / 1e9:.3g} GB. Choose a smaller one, or leave it out."
            )

    def _trained(
        self, order: TrainingOrder, rows: Rows, start_step: int, load: Load | None, whole: tf.data.Dataset | None
    ) -> tf.data.Dataset:
        """Return a dataset of (records, extras) in the order of training.

        Args:
            order: the order.
            rows: of the host.
            start_step: number of steps that are done.
            load: reads records; None if they are in memory.
            whole: an endless dataset of one element, all records, if they are in memory.
        """
        slots = order.slots(rows.first, rows.last)
        first_block, begin = divmod(start_step, order.steps_per_block)
        per_step = rows.count // rows.batch_size
        offset = slots.start * order.stride
        ranges = order.ranges(slots, first_block)
        read = order.numbers(slots, first_block) if load is None else self._stored.read(ranges, load)
        blocks = [
            tf.data.Dataset.range(first_block, tf.int64.max),
            read.rebatch(len(slots) * order.turns, drop_remainder=True),
            *([] if whole is None else [whole.repeat()]),
        ]

        def batches(block: tf.Tensor, records: Any, *all_records: Any) -> tf.data.Dataset:
            table = order.rows(slots, block)[:, rows.first - offset : rows.last - offset]
            table = tf.reshape(table, [-1, rows.batch_size])
            seeds = self._seeds(order, block, rows)

            def batch(number: tf.Tensor) -> Any:
                here = tf.gather(records, table[number]) if all_records else table[number]
                found = _gathered(all_records[0] if all_records else records, here)
                return found, {} if seeds is None else {"seed": seeds[number]}

            skipped = tf.where(tf.equal(block, first_block), begin * per_step, 0)
            numbers = tf.data.Dataset.range(tf.cast(skipped, tf.int64), order.steps_per_block * per_step)
            return numbers.map(as_written(batch))

        # The next block is read while this one is taken.
        return tf.data.Dataset.zip(tuple(blocks)).prefetch(1).flat_map(as_written(batches))

    def _seeds(self, order: TrainingOrder, block: tf.Tensor, rows: Rows) -> tf.Tensor | None:
        """Return the seeds of a block's records, int32 [batches, rows, 2]."""
        if not self._options.draws:
            return None
        steps = block * order.steps_per_block + tf.range(order.steps_per_block, dtype=tf.int64)
        positions = order.positions(steps[:, tf.newaxis], rows.first, rows.last)
        return tf.reshape(record_seeds(operator.index(self._options.seed), positions), [-1, rows.batch_size, 2])

    def _repeated(
        self,
        order: SequentialOrder,
        rows: Rows,
        start_step: int,
        *,
        is_decoded: bool,
        whole: tf.data.Dataset | None,
    ) -> tf.data.Dataset:
        """Return a dataset of (records, extras) in the order of the dataset, again and again."""
        if rows.count != rows.total:
            # A host's rows begin at another record every epoch: of what is read, a quarter at most is in vain.
            pieces = self._chunks_of(max(1, rows.count // _PIECES_PER_HOST, self._block_records or 1))
            order = dataclasses.replace(order, chunks=pieces)
        load = _numbers if whole is not None else self._stored.load(order.chunks.starts, is_decoded=is_decoded)
        ranges = order.ranges(start_step, rows.first, rows.last)
        found = self._stored.read(ranges, load).rebatch(rows.batch_size, drop_remainder=True)
        if whole is not None:
            found = tf.data.Dataset.zip((found, whole.repeat())).map(as_written(lambda ids, all_: _gathered(all_, ids)))
        per_step = rows.count // rows.batch_size

        if not self._options.draws:
            return found.map(as_written(lambda records: (records, {})))

        def extras(number: tf.Tensor) -> dict[str, tf.Tensor]:
            step, part = start_step + number // per_step, number % per_step
            positions = order.positions(step, rows.first, rows.first + rows.batch_size) + part * rows.batch_size
            return {"seed": record_seeds(operator.index(self._options.seed), positions)}

        return tf.data.Dataset.zip((found, tf.data.Dataset.counter().map(as_written(extras))))

    def _evaluated(
        self,
        order: EvaluationOrder,
        rows: Rows,
        start_step: int,
        *,
        is_decoded: bool,
        whole: tf.data.Dataset | None = None,
    ) -> tf.data.Dataset:
        """Return a dataset of records in the order of evaluation."""
        firsts, lasts = order.ranges(start_step, rows.first, rows.last)
        load = _numbers if whole is not None else self._stored.load(firsts, is_decoded=is_decoded)
        dataset = self._stored.read(tf.data.Dataset.from_tensor_slices((firsts, lasts)), load)
        padding = max(0, order.steps - start_step) * rows.count - int((lasts - firsts).sum())
        if padding:
            last = tf.data.Dataset.from_tensors((np.int64(order.records - 1), np.int64(order.records)))
            repeated = as_written(
                lambda found: tf.nest.map_structure(lambda column: tf.repeat(column, padding, axis=0), found)
            )
            padded = self._stored.read(last, load).map(repeated)
            dataset = dataset.concatenate(padded) if len(firsts) else padded
        dataset = dataset.rebatch(rows.batch_size, drop_remainder=True)
        if whole is None:
            return dataset
        return tf.data.Dataset.zip((dataset, whole.repeat())).map(as_written(lambda ids, found: _gathered(found, ids)))

    def _extras(self, order: EvaluationOrder, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return a dataset of the extras of evaluation's batches."""
        per_step = rows.count // rows.batch_size

        def extras(number: tf.Tensor) -> dict[str, tf.Tensor]:
            step, part = start_step + number // per_step, number % per_step
            positions = order.positions(step, rows.first, rows.first + rows.batch_size) + part * rows.batch_size
            found = {"weights": tf.cast(positions < order.records, tf.float32)}
            if self._options.draws:
                found["seed"] = record_seeds(operator.index(self._options.seed), positions)
            return found

        return tf.data.Dataset.range(max(0, order.steps - start_step) * per_step).map(as_written(extras))


def _numbers(first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Return the numbers of records in place of what they hold."""
    return tf.range(first, last)


def _gathered(columns: Any, places: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda column: tf.gather(column, places), columns)

"""The records of a split in batches, in their order: read from files, or taken from a cache."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.console.tables import counted
from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Fields
from tpudata.input.dataset_ops import PARALLEL, as_written, numpy_elements
from tpudata.input.files.shards import shards_of
from tpudata.input.files.split_files import SplitFiles
from tpudata.input.graph.reading.cache import CACHE_SPLIT, MEMORY_SHARE, CachePlan, free_memory
from tpudata.input.graph.reading.ordered_records import OrderedRecords
from tpudata.input.graph.reading.piece_cache import PieceCache
from tpudata.input.graph.reading.piece_plan import PiecePlan, plan_reading
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.graph.reading.stored_records import StoredRecords
from tpudata.input.options.hosts import Rows
from tpudata.input.options.options import Options
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.evaluation import EvaluationOrder
from tpudata.input.order.sequential import SequentialOrder
from tpudata.input.order.streams import StreamOrder
from tpudata.input.order.training import TrainingOrder

# Records are decoded as they are read if that takes at most this many times their stored bytes in the shuffle's window.
_MOST_GROWTH = 1.25
# Records of a stream are passed on in runs of about so many bytes: parts of a window, of which some wait for each other.
_RUN_BYTES = 1 << 20

# A warning reports hosts that together fetch more than so many bytes for each byte of the split.
_MUCH_FETCHED = 1.5

_log = logging.getLogger("tpudata")

Order: TypeAlias = TrainingOrder | SequentialOrder | EvaluationOrder


class Records:
    """The records of a split, from its files or from a cache.

    Args:
        stored: the records as stored: in the dataset, or in the cache's files, which have the same records in the same shards.
        plan: plan of reading them.
        source: the dataset's folder and the name of the split, for messages.
        fields: fields that are read of each record.
        options: options of feeding.
        cache: place of decoded records or of pieces, or None.
        all_records: all records of the split, if these are some of them; otherwise None.
    """

    def __init__(
        self,
        stored: StoredRecords,
        plan: ReadPlan,
        source: tuple[str, str],
        fields: Fields,
        options: Options,
        cache: CachePlan | None,
        all_records: Records | None = None,
    ) -> None:
        self._stored = stored
        self._plan = plan
        self._source = source
        self._fields = fields
        self._options = options
        self._cache = cache
        self._all = all_records
        # By device, which is that of another host under some strategies. Kept between calls, so that a trainer that makes its
        # dataset in every round decodes once.
        self._kept: dict[str, tf.data.Dataset] = {}
        self._filled: Records | None = None

    @classmethod
    def open(cls, files: SplitFiles, fields: Fields, options: Options, cache: CachePlan | None) -> Records:
        """Return all records of a split.

        Args:
            files: the files of the split.
            fields: fields that are read of each record.
            options: options of feeding.
            cache: place of decoded records or of pieces, or None.

        Raises:
            UsageError: a shuffle of all records, which do not fit the memory.
        """
        plan = plan_reading(files.dataset, files.split, options.reading)
        source = files.dataset.path, files.split
        records = cls(StoredRecords(files, fields), plan, source, fields, options, cache)
        records._check_window()
        return records

    def __getstate__(self) -> dict[str, Any]:
        """Omit records in memory: another process reads them again."""
        return {**self.__dict__, "_kept": {}}

    def part(self, ids: Integers, fields: Fields, options: Options, cache: CachePlan | None) -> Records:
        """Return some of these records, by their numbers among them, with fields that differ in length at most."""
        stored, plan, all_records = self._stored.part(ids, fields), self._plan.part(ids), self._all or self
        return Records(stored, plan, self._source, fields, options, cache, all_records)

    @property
    def count(self) -> int:
        """Number of records."""
        return self._plan.count

    def order(self, total: int) -> Order:
        """Return their order in global batches of `total` rows."""
        if not self._options.training:
            return EvaluationOrder(self._plan.chunks, total)
        if not self._options.shuffles:
            return SequentialOrder(self._plan.chunks, total)
        window = min(self._window, self.count)
        chunks = Chunks.of([self.count], 1) if window == self.count else self._plan.mixed_chunks
        seed = operator.index(self._options.seed)
        if not isinstance(self._plan, PiecePlan) or window == self.count:
            return TrainingOrder.of(chunks, total, window, seed)
        most_run = _RUN_BYTES // self._plan.record_bytes
        return StreamOrder.in_lanes(chunks, total, window, seed, lanes=self._plan.lanes(total), most_run=most_run)

    @property
    def fields(self) -> Fields:
        """Fields that are read of each record."""
        return self._fields

    @property
    def stored(self) -> StoredRecords:
        """The records as stored in files."""
        return self._stored

    def one_pass(self, batch_size: int) -> tf.data.Dataset:
        """Return all records as they are stored, string [batch_size], in order; the last batch is padded with the last record."""
        rows = Rows(batch_size, batch_size, 0, batch_size)
        order = EvaluationOrder(self._plan.chunks, batch_size)
        return OrderedRecords(self._stored, rows, 0, is_decoded=False, reads=self.reads).evaluated(order)

    def batches(self, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the host's rows from a step on: a dataset of (columns, extras), with `rows.batch_size` rows each.

        Columns are tensors [n, *field.shape] by the full names of features; extras are `seed`, int32 [n, 2], if anything is drawn,
        and in evaluation `weights`, float32 [n], 0 for padding.
        """
        if self._decoded is not None and self._decoded.folder is not None:
            return self._cached_in_files().batches(order, rows, start_step)
        is_decoded = self._decodes_early or self._decoded is not None
        seed = operator.index(self._options.seed) if self._options.draws else None
        whole, cache = self._whole(), self._piece_cache(order, rows)
        ordered = OrderedRecords(self._stored, rows, start_step, is_decoded, whole, seed, self.reads, cache)
        if isinstance(order, TrainingOrder):
            if isinstance(order, StreamOrder) and ordered.whole is None:
                self._check_streams(order, rows)
            seeks = order.chunks.starts if self._stored.has_gaps else self._plan.seeks(order.chunks)
            dataset = ordered.shuffled(order, seeks)
        elif isinstance(order, EvaluationOrder):
            dataset = tf.data.Dataset.zip((self._in_order(ordered, order), ordered.weights(order)))
        else:
            dataset = self._in_order(ordered, order)
        if is_decoded:
            return dataset
        decoded = as_written(lambda stored, extras: (self._stored.decode(stored), extras))
        return dataset.map(decoded, **PARALLEL, name=self._stored.name)

    def _in_order(self, ordered: OrderedRecords, order: SequentialOrder | EvaluationOrder) -> tf.data.Dataset:
        """Return the host's rows in the dataset's order: one pass of evaluation, or training's endless (records, extras)."""
        rows = ordered.rows

        def read(records: OrderedRecords) -> tf.data.Dataset:
            return records.evaluated(order) if isinstance(order, EvaluationOrder) else records.repeated(order)

        if self._reads_all(rows):
            return ordered.of_global_batches(read)
        if isinstance(order, SequentialOrder) and rows.count < rows.total:
            # A host of several begins at another record every epoch.
            order = SequentialOrder(self._plan.chunks_of_host(rows.count), order.batch_size)
        return read(ordered)

    @property
    def is_held(self) -> bool:
        """Whether training holds all records in memory, as they fit the window of the shuffle."""
        return self._options.training and self._window >= self.count

    def read_counts(self, reads: int | None = None) -> tf.data.Dataset:
        """Return an endless dataset that reads all records in order; its elements are the numbers of records of each read.

        Args:
            reads: number of reads at the same time; None for as many as feeding has.
        """
        chunks = self._plan.chunks
        read = self._stored.load(chunks.starts, is_decoded=False)
        ranges = tf.data.Dataset.from_tensor_slices((chunks.starts, chunks.stops)).repeat()
        return self._stored.read(ranges, lambda first, last: tf.size(read(first, last)), reads or self.reads)

    def _whole(self) -> tf.data.Dataset | None:
        """Return an endless dataset of one element, all records, if they are kept in memory."""
        if self._decoded is None and not self.is_held:
            return None
        # Eager tensors cannot be used in a graph.
        device = tf.zeros([]).device if tf.executing_eagerly() else None
        if device in self._kept:
            return self._kept[device]
        rows = Rows(self.count, self.count, 0, self.count)
        is_decoded = self._decodes_early or self._decoded is not None
        order = EvaluationOrder(self._plan.chunks, self.count)
        cache = self._piece_cache(order, rows)
        whole = (
            OrderedRecords(self._stored, rows, 0, is_decoded, reads=self.reads, cache=cache).evaluated(order).cache()
        )
        if device is not None:
            self._kept[device] = whole
        return whole

    def _cached_in_files(self) -> Records:
        """Return the records as stored in the cache's files, which the first call writes."""
        if self._filled is None:
            assert self._cache is not None
            if self._all is not None and self._plan.ids is not None:
                stored = self._all._cached_in_files()._stored.part(self._plan.ids)
            else:
                # Also for a dataset of a graph of TensorFlow 1.
                with tf.init_scope():
                    files = self._cache.load() or self._cache.fill(self._all_decoded(), self._plan.split, self._fields)
                stored = StoredRecords(shards_of(files, CACHE_SPLIT), self._cache.stored(self._fields))
            self._filled = Records(stored, self._plan, self._source, self._fields, self._options, None, self._all)
        return self._filled

    def _all_decoded(self) -> Iterator[dict[str, Any]]:
        """Yield all records, decoded, in their order, in parts."""
        chunks = self._plan.chunks

        def make() -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensor_slices((chunks.starts, chunks.stops))
            return self._stored.read(dataset, self._stored.load(chunks.starts, is_decoded=True), self.reads)

        return numpy_elements(make)

    @property
    def _decoded(self) -> CachePlan | None:
        """Place of decoded records."""
        return None if self._cache is None or self._cache.has_pieces else self._cache

    def _piece_cache(self, order: Order, rows: Rows) -> PieceCache | None:
        """Return the pieces on a local disk, of which those are kept that a host reads in every epoch."""
        if self._cache is None or not self._cache.has_pieces:
            return None
        assert isinstance(self._plan, PiecePlan)
        assert self._cache.folder is not None
        starts = self._plan.chunks.starts
        if isinstance(order, StreamOrder):
            starts = starts[np.isin(order.parts, order.slots(rows.first, rows.last))]
        cache = PieceCache.of(self._cache.folder, self._cache.name, self._plan.pieces, self._plan.sizes)
        cache = cache.keep(self._plan.pieces_of(starts))
        # The workers of a tf.data service have separate disks.
        if self._options.service is None:
            cache.prepare()
        return cache

    @property
    def piece_memory(self) -> int | None:
        """Bytes of memory that a piece takes while it is read; None without pieces."""
        return self._plan.piece_memory if isinstance(self._plan, PiecePlan) else None

    @property
    def reads(self) -> int | None:
        """Number of pieces that are read at the same time; None without pieces."""
        return self._plan.reads(free_memory()) if isinstance(self._plan, PiecePlan) else None

    def _reads_all(self, rows: Rows) -> bool:
        """Whether a host reads pieces that have the rows of all hosts, as its rows of a batch are less than a piece."""
        if not isinstance(self._plan, PiecePlan) or rows.count == rows.total or self._whole() is not None:
            return False
        if self._cache is not None and self._cache.has_pieces:
            return True  # Those that are kept are whole.
        return rows.count * self._plan.record_bytes < self._plan.reading.piece_bytes

    @functools.cached_property
    def _decodes_early(self) -> bool:
        """Whether records are decoded as they are read, many at a time, instead of a batch at a time."""
        fields = self._fields.all
        if any(field.bytes is None or field.feature.is_image_file or field.is_list for field in fields):
            return False
        return self._fields.record_bytes(self._plan.split) <= _MOST_GROWTH * self._plan.record_bytes

    @property
    def _window(self) -> int:
        """Number of records that are shuffled together."""
        return self._plan.window(self._options.shuffle_buffer, self._kept_bytes)

    @property
    def _kept_bytes(self) -> int:
        """Approximate size of a record in the window, in bytes."""
        decoded = self._fields.record_bytes(self._plan.split) if self._decodes_early else 0
        return max(self._plan.record_bytes, decoded)

    @property
    def window_bytes(self) -> int:
        """Approximate size of the records in the shuffle window, in bytes."""
        return min(self._window, self.count) * self._kept_bytes

    def _check_streams(self, order: StreamOrder, rows: Rows) -> None:
        """Check that a host's streams of pieces and its windows fit the free memory; warn if hosts read the same pieces."""
        assert isinstance(self._plan, PiecePlan)
        ratio = self._plan.fetch_ratio(rows.total, rows.total // rows.count)
        if ratio > _MUCH_FETCHED:
            _log.warning(
                "%s (%s): %d hosts together fetch %.1f bytes for each byte of the split, since it has %s for them. Smaller shards "
                "give more (tpudata reshard --shard-size); with cache=PATH each host fetches it once, and not in each epoch.",
                *self._source,
                rows.total // rows.count,
                ratio,
                counted(order.lanes, "stream"),
            )
        free, slots = free_memory(), len(order.slots(rows.first, rows.last))
        size = slots * self._plan.piece_memory + 2 * self.window_bytes
        # The workers of a tf.data service have separate memory.
        if self._options.service is None and free is not None and size > free:
            raise UsageError(
                f"shuffle={self._options.shuffle}: {counted(slots, 'stream')} of large pieces and two windows take"
                f" {size / 1e9:.3g} GB, more than the free memory of {free / 1e9:.3g} GB. Pass a smaller number, or fewer streams:"
                f" reading=tpudata.Reading(lanes={max(1, slots // 4)})."
            )

    def _check_window(self) -> None:
        if self._options.shuffle_buffer is None or self._decoded is not None or self._window < self.count:
            return
        free, size = free_memory(), self._kept_bytes * self.count
        if free is not None and size > MEMORY_SHARE * free:
            raise UsageError(
                f"shuffle={self._options.shuffle}: the records take {size / 1e9:.3g} GB, more than"
                f" {MEMORY_SHARE:.0%} of the free memory of {free / 1e9:.3g} GB. Pass a smaller number, or omit it."
            )

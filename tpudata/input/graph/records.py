"""The records of a split in ordered batches, read from files or taken from a cache."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from tpudata.input.dataset.fields import Fields
from tpudata.input.dataset_ops import PARALLEL, without_autograph
from tpudata.input.graph.caches.cache import Cache
from tpudata.input.graph.caches.choose_cache import choose_cache
from tpudata.input.graph.reading.piece_plan import plan_reading
from tpudata.input.graph.reading.ranges import FileRanges, MemoryRanges
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.graph.reading.stored_records import StoredRecords
from tpudata.input.graph.reading.window import ShuffleWindow
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.evaluation import EvaluationOrder
from tpudata.input.order.order import HostPart, Order, Ranges
from tpudata.input.order.sequential import SequentialOrder
from tpudata.input.order.training import TrainingOrder
from tpudata.input.request import InputRequest


class Records:
    """The records of a split, from its files or from a cache.

    Args:
        request: the fields and options to feed them with.
        stored: the records as stored.
        plan: plan of reading the records.
        cache: cache that keeps the records.

    Attributes:
        stored: the records as stored.
        plan: the plan.
        window: the window of the shuffle.
    """

    def __init__(self, request: InputRequest, stored: StoredRecords, plan: ReadPlan, cache: Cache) -> None:
        self.stored = stored
        self.plan = plan
        self.window = ShuffleWindow(plan, request.fields, request.options)
        self._request = request
        self._options = request.options
        self._cache = cache
        # The records in memory, if the window or the cache holds all of them.
        self._memory_datasets = _MemoryDatasets()

    @classmethod
    def open(cls, request: InputRequest) -> Records:
        """Return all records of a split.

        Raises:
            DatasetError: an index or a cache is damaged.
            UsageError: the cache, or a shuffle of all records, does not fit the memory or the disk.
        """
        files, options = request.files, request.options
        plan = plan_reading(files.dataset, files.split, options.reading)
        # With buckets, `Options` allows only False and "auto", which then caches nothing.
        cache_option = options.cache if options.tokens.buckets is None else False
        cache = choose_cache(cache_option, request, plan)
        records = cls(request, StoredRecords(files, request.fields), plan, cache)
        # For decoded records, `choose_cache` has compared their size with the memory or the disk.
        if not cache.is_decoded:
            records.window.check_memory()
        return records

    def select(self, request: InputRequest, ids: Integers, *, is_cached: bool) -> Records:
        """Return a subset of these records.

        Args:
            request: fields and options of the subset; only the lengths of fields, the seed and the epochs may differ from those
                of these records.
            ids: record numbers among these records, int64 [n], ascending.
            is_cached: whether the subset uses the cache of these records.
        """
        stored, plan = self.stored.select(ids, request.fields), self.plan.select(ids)
        return Records(request, stored, plan, self._cache if is_cached else Cache())

    @property
    def count(self) -> int:
        """Number of records."""
        return self.plan.count

    @property
    def fields(self) -> Fields:
        """Fields that are read of each record."""
        return self._request.fields

    def make_order(self, batch_size: int) -> Order:
        """Return the order of the records in global batches of `batch_size` rows."""
        if not self._options.training:
            return EvaluationOrder(self.plan.chunks, batch_size)
        if not self._options.shuffles:
            return SequentialOrder(self.plan.chunks, batch_size)
        window_records, seed = self.window.num_records, self._options.seed
        if self.window.has_all:
            # Records in memory need no long reads: each is a chunk by itself.
            return TrainingOrder.make(Chunks.cut([self.count], length=1), batch_size, window_records, seed)
        return self.plan.make_shuffled_order(batch_size, window_records, seed)

    def batches(self, order: Order, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the host's rows from a step on: a dataset of (columns, extras) of `rows.batch_size` rows.

        Columns are tensors [n, *field.shape] by the full names of features; `Order.batches` describes the extras.
        """
        seed = self._options.seed if self._options.draws else None
        dataset = order.batches(self._open_ranges(order, rows), HostPart(rows, start_step, seed))
        if self._is_decoded:
            return dataset
        decode, name = self._readable_records.decode, self._readable_records.name
        return dataset.map(without_autograph(lambda stored, extras: (decode(stored), extras)), **PARALLEL, name=name)

    def read_pass(self, batch_size: int) -> tf.data.Dataset:
        """Return a dataset of all stored records in order, string [batch_size]; pads the last batch with the last record."""
        # The pass reads the split's files: its records are neither decoded nor from a cache.
        order, part = EvaluationOrder(self.plan.chunks, batch_size), HostPart(Rows.all(batch_size), start_step=0)
        return order.read_pass(FileRanges(self.stored, self.plan, is_decoded=False), part)

    def read_counts(self, num_reads: int | None = None) -> tf.data.Dataset:
        """Return an endless dataset that reads all records in order; its elements are the number of records of each read.

        Args:
            num_reads: number of concurrent reads; None for as many as in feeding.
        """
        chunks, ranges = self.plan.chunks, FileRanges(self.stored, self.plan, is_decoded=False)
        load = ranges.make_loader(chunks.firsts)
        bounds = tf.data.Dataset.from_tensor_slices((chunks.firsts, chunks.stops)).repeat()
        return ranges.read(bounds, lambda first, stop: tf.size(load(first, stop)), num_reads)

    @property
    def _is_decoded(self) -> bool:
        """Whether records are decoded as they are read."""
        return self._cache.is_in_memory or self.window.is_decoded

    @functools.cached_property
    def _readable_records(self) -> StoredRecords:
        """The records in the files that are read: the split's files, or the cache's, which the first call writes."""
        return self._cache.open(self.stored)

    def _open_ranges(self, order: Order, rows: Rows) -> Ranges:
        """Return the ranges from which an order takes a host's records; UsageError if streams and windows do not fit the memory."""
        if self._cache.is_in_memory or self.window.has_all:
            return MemoryRanges(self._memory_datasets.get(self._read_all))
        if self._options.shuffles:
            files = self._request.files
            self.window.check_streams(rows, f"{files.dataset.path} ({files.split})")
        return self._open_file_ranges(order, rows)

    def _open_file_ranges(self, order: Order, rows: Rows) -> FileRanges:
        """Return the ranges from which an order reads a host's records, through the cache."""
        cache_wrapper = self._cache.choose_wrapper(self.plan, order, rows)
        return FileRanges(self._readable_records, self.plan, self._is_decoded, cache_wrapper)

    def _read_all(self) -> tf.data.Dataset:
        """Return a dataset of one element, all records; once they are read, the dataset keeps them in memory."""
        order, rows = EvaluationOrder(self.plan.chunks, self.count), Rows.all(self.count)
        return order.read_pass(self._open_file_ranges(order, rows), HostPart(rows, start_step=0)).cache()


class _MemoryDatasets:
    """Records in memory, kept between calls, so that a trainer that makes its dataset in every round decodes once."""

    def __init__(self) -> None:
        # The dataset of each device, by its name: under some strategies, a device belongs to another host.
        self._datasets: dict[str, tf.data.Dataset] = {}

    def __getstate__(self) -> dict[str, object]:
        """Omit the records: another process reads them again."""
        return {"_datasets": {}}

    def get(self, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        """Return the dataset of this device, which the first call makes; in a graph, where nothing is kept, a new one."""
        # The tensors of a kept dataset are eager, which a graph cannot use.
        if not tf.executing_eagerly():
            return make()
        # The device on which operations run here, such as that of a `with tf.device(...)`.
        device = tf.zeros([]).device
        if device not in self._datasets:
            self._datasets[device] = make()
        return self._datasets[device]

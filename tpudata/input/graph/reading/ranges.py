"""Ranges of records, read from files or taken from memory, from which orders make batches."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tpudata.input.dataset_ops import PARALLEL, list_range_numbers, without_autograph
from tpudata.input.graph.reading.read import CacheWrapper
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.graph.reading.stored_records import StoredRecords
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.order import Load
from tpudata.tensor_types import Tensors


@dataclasses.dataclass(frozen=True, eq=False)
class FileRanges:
    """Ranges that are read from files.

    Attributes:
        stored: the records in the files.
        plan: plan of reading.
        is_decoded: whether records are decoded as they are read.
        cache_wrapper: wrapper of a read function that caches pieces; None without such a cache.
        memory_datasets: empty, since no record is in memory.
    """

    stored: StoredRecords
    plan: ReadPlan
    is_decoded: bool
    cache_wrapper: CacheWrapper | None = None
    memory_datasets: tuple[tf.data.Dataset, ...] = ()

    @property
    def num_reads(self) -> int | None:
        """Number of ranges that are read at the same time; None for the default of `StoredRecords.read`."""
        return self.plan.num_reads

    def find_read_starts(self, chunks: Chunks) -> Integers:
        """Return the record numbers at which reading can begin, int64 [n]."""
        # With gaps each segment is read separately, and every start begins a segment: more starts would make small reads.
        return chunks.firsts if self.stored.has_gaps else self.plan.find_read_starts(chunks)

    def choose_host_chunks(self, _: Chunks, rows: Rows) -> Chunks:
        """Return chunks for a host that reads its rows of each batch in order."""
        return self.plan.choose_host_chunks(rows.count)

    def reads_whole_batches(self, rows: Rows) -> bool:
        """Return whether a host reads whole batches in order, and then takes only its own rows of each."""
        # `cache_wrapper` wraps a read function in a cache of pieces. A cached piece has the rows of all hosts, so each of several
        # hosts must read whole batches.
        return self.plan.reads_whole_batches(rows) or (self.cache_wrapper is not None and rows.count < rows.total)

    def make_loader(self, cuts: Integers) -> Load:
        """Return a function that reads ranges, most of which begin at one of the record numbers `cuts`."""
        return self.stored.make_loader(cuts, is_decoded=self.is_decoded, cache_wrapper=self.cache_wrapper)

    def read(self, ranges: tf.data.Dataset, load: Load, num_reads: int | None = None) -> tf.data.Dataset:
        """Return a dataset of the records of ranges [first, stop), in order."""
        return self.stored.read(ranges, load, num_reads or self.num_reads)

    def read_range_groups(self, groups: tf.data.Dataset, load: Load) -> tf.data.Dataset:
        """Return a dataset of the records of groups of ranges, in order.

        Args:
            groups: a dataset of (firsts, stops), int64 [n] each: n ranges [first, stop).
            load: function of `make_loader` that reads a range.
        """
        ranges = groups.flat_map(
            without_autograph(lambda firsts, stops: tf.data.Dataset.from_tensor_slices((firsts, stops)))
        )
        return self.read(ranges, load)

    def pick(self, elements: Tensors, positions: tf.Tensor) -> Tensors:
        """Return the records at `positions` of the read records."""
        return _gather(elements, positions)

    def gather_records(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Return the read records unchanged."""
        return elements


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryRanges:
    """Ranges of records that are all in memory; reading yields record numbers, which are gathered later.

    Attributes:
        all_records: a dataset of one element, all records.
        num_reads: None, since no file is read.
    """

    all_records: tf.data.Dataset
    num_reads: int | None = None

    @property
    def memory_datasets(self) -> tuple[tf.data.Dataset, ...]:
        """A dataset that yields all records as one element, again and again."""
        return (self.all_records.repeat(),)

    def find_read_starts(self, chunks: Chunks) -> Integers:
        """Return the record numbers at which chunks begin, since no file is read."""
        return chunks.firsts

    def choose_host_chunks(self, chunks: Chunks, _: Rows) -> Chunks:
        """Return `chunks`, since no file is read."""
        return chunks

    def reads_whole_batches(self, _: Rows) -> bool:
        """Return False: a host takes only its own rows."""
        return False

    def make_loader(self, _: Integers) -> Load:
        """Return a function from a range to its record numbers; cuts do not matter, since no file is read."""
        return _number_records

    def read(self, ranges: tf.data.Dataset, load: Load, _num_reads: int | None = None) -> tf.data.Dataset:
        """Return a dataset of the record numbers of ranges [first, stop), in order."""
        return ranges.map(without_autograph(load), **PARALLEL)

    def read_range_groups(self, groups: tf.data.Dataset, _: Load) -> tf.data.Dataset:
        """Return a dataset of the record numbers of groups of ranges, (firsts, stops), in order."""
        return groups.map(without_autograph(lambda firsts, stops: list_range_numbers(firsts, stops)[1]))

    def pick(self, elements: tf.Tensor, positions: tf.Tensor, all_records: Tensors) -> Tensors:
        """Return the records whose record numbers are at `positions` of `elements`."""
        return _gather(all_records, tf.gather(elements, positions))

    def gather_records(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Return a dataset of the records whose record numbers `elements` has."""
        numbered = tf.data.Dataset.zip((elements, *self.memory_datasets))
        return numbered.map(without_autograph(lambda numbers, all_records: _gather(all_records, numbers)))


def _number_records(first: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
    return tf.range(first, stop)


def _gather(columns: Tensors, positions: tf.Tensor) -> Tensors:
    return tf.nest.map_structure(lambda column: tf.gather(column, positions), columns)

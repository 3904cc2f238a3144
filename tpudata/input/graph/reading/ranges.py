"""Ranges of records, read from files or taken from memory: what orders take records from."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tpudata.input.dataset_ops import PARALLEL, as_written, range_numbers
from tpudata.input.graph.reading.read import Keep
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.graph.reading.stored_records import StoredRecords
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.order import Load


@dataclasses.dataclass(frozen=True, eq=False)
class FileRanges:
    """Ranges that are read from files.

    Attributes:
        stored: the records in the files.
        plan: plan of reading.
        is_decoded: whether records are decoded as they are read.
        keep: what keeps pieces; None if nothing does.
        held: empty: no record is in memory.
    """

    stored: StoredRecords
    plan: ReadPlan
    is_decoded: bool
    keep: Keep | None = None
    held: tuple[tf.data.Dataset, ...] = ()

    @property
    def reads(self) -> int | None:
        """Number of ranges that are read at the same time; None for as many as pay."""
        return self.plan.reads

    def seeks(self, chunks: Chunks) -> Integers:
        """Return the numbers of records at which reading can begin, int64 [n]."""
        return chunks.starts if self.stored.has_gaps else self.plan.seeks(chunks)

    def chunks_of_host(self, _: Chunks, rows: Rows) -> Chunks:
        """Return chunks for a host that reads its rows of each batch in order."""
        return self.plan.chunks_of_host(rows.count)

    def reads_all(self, rows: Rows) -> bool:
        """Return whether a host reads whole batches in order and keeps its rows of them."""
        # Pieces that are kept are whole.
        return self.plan.reads_all(rows) or (self.keep is not None and rows.count < rows.total)

    def load(self, cuts: Integers) -> Load:
        """Return a function that reads ranges, most of which begin at one of `cuts`."""
        return self.stored.load(cuts, is_decoded=self.is_decoded, keep=self.keep)

    def read(self, ranges: tf.data.Dataset, load: Load, reads: int | None = None) -> tf.data.Dataset:
        """Return a dataset of the records of ranges [first, last), in order."""
        return self.stored.read(ranges, load, reads or self.reads)

    def read_spans(self, spans: tf.data.Dataset, load: Load) -> tf.data.Dataset:
        """Return a dataset of the records of ranges, several per element, in order."""
        ranges = spans.flat_map(as_written(lambda firsts, lasts: tf.data.Dataset.from_tensor_slices((firsts, lasts))))
        return self.read(ranges, load)

    def pick(self, elements: Any, places: tf.Tensor) -> Any:
        """Return records by their places in what was read."""
        return _gather(elements, places)

    def records(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Return the records that were read."""
        return elements


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryRanges:
    """Ranges of records that are all in memory: what is read of them is their numbers.

    Attributes:
        whole: a dataset of one element, all records.
        reads: None: nothing is read.
    """

    whole: tf.data.Dataset
    reads: int | None = None

    @property
    def held(self) -> tuple[tf.data.Dataset, ...]:
        """An endless dataset of one element, all records."""
        return (self.whole.repeat(),)

    def seeks(self, chunks: Chunks) -> Integers:
        """Return the numbers of records at which ranges begin."""
        return chunks.starts

    def chunks_of_host(self, chunks: Chunks, _: Rows) -> Chunks:
        """Return the same chunks."""
        return chunks

    def reads_all(self, _: Rows) -> bool:
        """Return False: a host takes its rows alone."""
        return False

    def load(self, _: Integers) -> Load:
        """Return a function that makes the numbers of ranges."""
        return _number_records

    def read(self, ranges: tf.data.Dataset, load: Load, _reads: int | None = None) -> tf.data.Dataset:
        """Return a dataset of the numbers of ranges [first, last), in order."""
        return ranges.map(as_written(load), **PARALLEL)

    def read_spans(self, spans: tf.data.Dataset, _: Load) -> tf.data.Dataset:
        """Return a dataset of the numbers of ranges, several per element, in order."""
        return spans.map(as_written(lambda firsts, lasts: range_numbers(firsts, lasts)[1]))

    def pick(self, elements: tf.Tensor, places: tf.Tensor, whole: Any) -> Any:
        """Return records by the places of their numbers in what was read."""
        return _gather(whole, tf.gather(elements, places))

    def records(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Return a dataset of the records of numbers."""
        numbered = tf.data.Dataset.zip((elements, *self.held))
        return numbered.map(as_written(lambda numbers, whole: _gather(whole, numbers)))


def _number_records(first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    return tf.range(first, last)


def _gather(columns: Any, places: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda column: tf.gather(column, places), columns)

"""An order of records, which assigns a record to each row of each batch, and the ranges that it reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol, TypeAlias

import tensorflow as tf

from tpudata.input.dataset_ops import without_autograph
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.seeds import derive_record_seeds
from tpudata.tensor_types import Tensors

# Returns tensors with a row for each of the records [first, stop).
Load: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], Tensors]"


@dataclasses.dataclass(frozen=True)
class HostPart:
    """The part of an order that a host feeds.

    Attributes:
        rows: rows of each global batch that the host feeds; an element of the dataset has `rows.batch_size` of them.
        start_step: number of steps that are done.
        seed: seed of the run if steps draw random numbers for records, otherwise None.
    """

    rows: Rows
    start_step: int
    seed: int | None = None

    @property
    def batches_per_step(self) -> int:
        """Number of batches that a step takes from this host."""
        return self.rows.count // self.rows.batch_size

    def derive_seeds(self, positions: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return {"seed": seeds of records at positions of the order, int32 [..., 2]}; {} without a seed."""
        return {} if self.seed is None else {"seed": derive_record_seeds(self.seed, positions)}


class Ranges(Protocol):
    """Ranges of record numbers: read from files, or taken from memory.

    From files, reading yields records: columns [n, *field.shape] by full name, or string [n] as stored. From memory, it yields
    record numbers, int64 [n].
    """

    @property
    def num_reads(self) -> int | None:
        """Number of ranges that are read at the same time; None for the default of `StoredRecords.read`, or without files."""

    @property
    def memory_datasets(self) -> tuple[tf.data.Dataset, ...]:
        """A dataset that yields all records as one element, again and again; empty if they are not in memory."""

    def find_read_starts(self, chunks: Chunks) -> Integers:
        """Return the record numbers at which reading can begin, int64 [n]."""

    def choose_host_chunks(self, chunks: Chunks, rows: Rows) -> Chunks:
        """Return chunks for a host that reads its rows of each batch in order."""

    def reads_whole_batches(self, rows: Rows) -> bool:
        """Return whether a host reads whole batches in order, and then takes only its own rows of each."""

    def make_loader(self, cuts: Integers) -> Load:
        """Return a function that reads ranges, most of which begin at one of the record numbers `cuts`."""

    def read(self, ranges: tf.data.Dataset, load: Load, num_reads: int | None = None) -> tf.data.Dataset:
        """Return a dataset of records or record numbers of ranges [first, stop), in order."""

    def read_range_groups(self, groups: tf.data.Dataset, load: Load) -> tf.data.Dataset:
        """Return a dataset of records or record numbers of groups of ranges, (firsts, stops), int64 [n] each, in order."""

    def pick(self, elements: Tensors, positions: tf.Tensor, *memory: Tensors) -> Tensors:
        """Return the records at `positions` of an element that was read; `memory` is an element of each of `memory_datasets`."""

    def gather_records(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Return a dataset of the records of elements that were read: the elements, or the records whose numbers they are."""


class Order(Protocol):
    """Order of N records in global batches of B rows."""

    @property
    def batch_size(self) -> int:
        """Rows of the global batch, B."""

    @property
    def num_records(self) -> int:
        """Number of records, N."""

    @property
    def steps(self) -> int | None:
        """Number of global batches; None if they never end."""

    def list_first_records(self, rows: Rows) -> Integers:
        """Return the first records of the chunks that a host reads, int64 [n]."""

    def batches(self, ranges: Ranges, part: HostPart) -> tf.data.Dataset:
        """Return a dataset of (records, extras) of a host's rows.

        Extras are `seed`, int32 [n, 2], if anything is drawn, and in evaluation `weights`, float32 [n], 0 for padding.
        """


def compute_batch_positions(batch_size: int, part: HostPart, batch_index: tf.Tensor) -> tf.Tensor:
    """Return the positions of the rows of a host's batch, int64 [n], in an order whose position p is row p % B of batch p // B.

    Args:
        batch_size: rows of the global batch, B.
        part: the part of the order; each step takes `part.batches_per_step` batches of the host.
        batch_index: index of the host's batch, counted from `part.start_step` on.
    """
    rows = part.rows
    step = part.start_step + batch_index // part.batches_per_step
    index_in_step = batch_index % part.batches_per_step
    positions = step * batch_size + tf.range(rows.first, rows.first + rows.batch_size, dtype=tf.int64)
    return positions + index_in_step * rows.batch_size


def take_rows(read: Callable[[HostPart], tf.data.Dataset], ranges: Ranges, part: HostPart) -> tf.data.Dataset:
    """Return the dataset of a host's part, of elements of `rows.batch_size` rows.

    Args:
        read: function that reads exactly the rows of a part.
        ranges: the ranges; if a host reads whole batches from them, this function keeps only the part's rows of each.
        part: the host's rows and its first step.
    """
    rows = part.rows
    if not ranges.reads_whole_batches(rows):
        return read(part)
    dataset = read(dataclasses.replace(part, rows=Rows.all(rows.total)))

    def slice_rows(*batch: Tensors) -> Tensors:
        return tf.nest.map_structure(lambda column: column[rows.first : rows.stop], batch)

    dataset = dataset.map(without_autograph(slice_rows))
    return dataset if rows.count == rows.batch_size else dataset.rebatch(rows.batch_size, drop_remainder=True)

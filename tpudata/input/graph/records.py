"""The records of a split in their order: read, or taken from a cache, and parsed, a group of rows at a time."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.format import Dataset
from tpudata.input.chunks import Chunks, Integers, chunk_records
from tpudata.input.columns import FixedColumns, has_fixed_layout
from tpudata.input.dataset.fields import CONVERT_AGAIN, Field, Fields
from tpudata.input.dataset.plain_dataset import FixedRecords, PlainDataset
from tpudata.input.decode.parse import parse_batch
from tpudata.input.feed import ArrayFeed, Feed, FileFeed, read_all
from tpudata.input.graph.cache import MEMORY_SHARE, CachePlan, Column, free_memory
from tpudata.input.groups import Groups
from tpudata.input.next_tokens import NextTokens
from tpudata.input.options.hosts import Rows
from tpudata.input.options.options import Options
from tpudata.input.order.order import EvaluationOrder, Order
from tpudata.input.order.training_order import TrainingOrder
from tpudata.input.sequence_columns import LENGTH, SequenceColumns, SequenceLengths, has_sequences
from tpudata.input.source import Columns, Decoder, Reader, Source, Strings
from tpudata.input.subset import Subset
from tpudata.input.text.sequence import TOKEN_ROWS

# Parsed at one time: whole batches make it fast, and beyond a few MB they only take memory.
_GROUP_BYTES = 16 << 20
_GROUP_RECORDS = 1024
# The same where images are then cropped one by one: parsing is nothing beside that, and several groups are on their way.
_CROPPED_BYTES = 2 << 20
# Handed from numpy to TensorFlow at one time, where batches are smaller: that costs a tenth of a millisecond.
_LEAST_ROWS = 256
# Read at one time, up to twice that: larger requests cost an object store less time, smaller ones mix better. 256 KiB cost a sorted
# dataset of 110 kB pictures a tenth of the classes that a batch of a true permutation has.
_READ_BYTES = 1 << 18
# As many times that of records taken in order, where nothing is mixed, and of rows of tokens: the Python of smaller requests is a
# sixth of the rate. What that loses is mixing of sources that were not shuffled as they were converted. Not of lists of varints:
# what larger parts are decoded to takes memory that goes back to the system each time, and is cleared anew.
_LARGE_READS = 4
# What training permutes: with fewer of them, a small window would mix little.
_LEAST_CHUNKS = 256
# The default window of the shuffle, in bytes of stored records, and its least length.
_WINDOW_BYTES = 256 << 20
_WINDOW_RECORDS = 1024
# Read before it is needed, beside the window: a quarter of it, and in evaluation as much as a quarter of the default one.
_AHEAD_SHARE = 4
# The column of a cache that says which records are no stand-ins for damaged ones. No feature is called so.
_GOOD = ""
# What is done with the columns and extras of a group.
Then: TypeAlias = "Callable[[Any, Any], Any]"


class Records:
    """The records of a split, from the files or from a cache.

    Args:
        dataset: the dataset.
        split: name of the split.
        fields: what is read of each record.
        options: how records are fed.
        cache: where decoded records are kept, or None.

    Raises:
        UsageError: a shuffle_buffer of all records, which do not fit the memory.
    """

    def __init__(self, dataset: Dataset, split: str, fields: Fields, options: Options, cache: CachePlan | None) -> None:
        self._split = dataset.manifest.split(split)
        self._fields = fields
        self._options = options
        self._cache = cache
        index = dataset.index(self._split.shards[0])
        decoder = dataset.decoder(fields.all) if isinstance(dataset, PlainDataset) else None
        self._mend = dataset.mend if isinstance(dataset, PlainDataset) else CONVERT_AGAIN
        self._is_fixed = isinstance(decoder, FixedRecords) if decoder else has_fixed_layout(fields.all, index)
        self._has_sequences = decoder is None and not self._is_fixed and has_sequences(fields.all)
        self._source = Source(
            dataset,
            split,
            decoder or self._decoder(),
            # Records that are no TFRecords have no checksums.
            verify=options.verify_checksums and decoder is None,
            max_corrupt=operator.index(options.max_corrupt),
        )
        self._reader: Reader = self._source
        self._are_token_rows = self._is_fixed and dataset.manifest.layout in TOKEN_ROWS
        # As read: what is compressed takes more than its file.
        self._record_bytes = max(1, int(index.offsets[-1]) // index.records)
        # As kept in a window: padding takes memory too.
        self._kept_bytes = fields.record_bytes(self._split) if self._has_sequences else 0
        self._kept_bytes = max(self._record_bytes, self._kept_bytes)
        self._block_records = None if index.compression is None else index.block_records
        self._count = self._split.records
        self._chunks = self._chunked(1)
        self._most_rows = self._rows_at_once()
        self._check_window()
        # Kept between calls, so that a trainer that asks for its dataset anew every round decodes once.
        self._kept: Mapping[str, Column] | None = None

    def part(self, ids: Integers, fields: Fields, options: Options) -> Records:
        """Some of the records: those numbers of the split, with fields of another length at most, and without a cache."""
        other = copy.copy(self)
        other._fields, other._options, other._cache = fields, options, None
        other._count = len(ids)
        other._reader = Subset(self._source, other._decoder(), ids)
        other._chunks = other._chunked(1)
        other._most_rows = other._rows_at_once()
        return other

    def lengths(self) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """How many values the longest sequence of each record has, and which records are not damaged; reads them all.

        Raises:
            FeatureError: a record is longer than it may be; names it.
        """
        decoder = SequenceLengths([field for field in self._fields.inputs if field.pads], self._mend)
        columns, good = read_all(self._source.with_decoder(decoder), self._chunks)
        lengths: Integers = columns[LENGTH].astype(np.int64)
        return lengths, good

    def _rows_at_once(self) -> int:
        size = _GROUP_BYTES if self._options.images.crop is None else _CROPPED_BYTES
        return max(1, min(_GROUP_RECORDS, size // self._fields.record_bytes(self._split)))

    def _decoder(self) -> Decoder:
        if self._has_sequences:
            return SequenceColumns(self._fields.all, self._mend)
        return FixedColumns(self._fields.all, self._mend) if self._is_fixed else Strings()

    @property
    def count(self) -> int:
        """Number of records."""
        return self._count

    def order(self, total: int) -> Order:
        """Their order in global batches of `total` rows."""
        if not self._options.training:
            return EvaluationOrder(self._chunks, total)
        return TrainingOrder(self._chunked(_LEAST_CHUNKS), total, self._window(), operator.index(self._options.seed))

    def parsed(self, order: Order, rows: Rows, start_step: int, then: Then | None = None) -> tf.data.Dataset:
        """The host's rows from a step on: a dataset of (columns, extras), or of what `then` makes of them.

        A group has `group_rows` rows. Columns are tensors [n, *field.shape] by the features' full names, uint8 ones as float32 from
        0 to 1 where options say so, and those of `NextTokens` where numpy makes targets; extras those of `Groups`.
        """
        cached = self._cached_columns()
        groups = self._groups(order, rows, cached, is_fed=True)
        return self._parsed(groups, start_step, then, is_parsed=cached is not None)

    def group_rows(self, rows: Rows) -> int:
        """Rows that are parsed together: several batches where they are small, a part of one where it is large."""
        if rows.batch_size > self._most_rows:
            return self._most_rows
        return rows.batch_size * max(1, min(_LEAST_ROWS, self._most_rows) // rows.batch_size)

    def _chunked(self, least: int) -> Chunks:
        """The records in chunks, at least so many where it can be."""
        is_large = self._are_token_rows or (least == 1 and not self._has_sequences)
        size = _READ_BYTES * (_LARGE_READS if is_large else 1)
        length = chunk_records(self._split.records, self._record_bytes, size, least)
        # Of a compressed block, all is unpacked for any record.
        length = length if self._block_records is None else max(length, self._block_records)
        chunks = Chunks.of([shard.records for shard in self._split.shards], length)
        return self._reader.chunks(chunks) if isinstance(self._reader, Subset) else chunks

    def _window(self) -> int:
        if self._options.shuffle_buffer is not None:
            window = operator.index(self._options.shuffle_buffer)
        else:
            window = max(_WINDOW_RECORDS, _WINDOW_BYTES // self._kept_bytes)
        # A part has its part of the window.
        return -(-window * self._count // self._split.records)

    def _check_window(self) -> None:
        if self._options.shuffle_buffer is None or self._cache is not None or self._window() < self._split.records:
            return
        free, size = free_memory(), self._kept_bytes * self._split.records
        if free is not None and size > MEMORY_SHARE * free:
            raise UsageError(
                f"shuffle_buffer={self._options.shuffle_buffer}: the records take {size / 1e9:.3g} GB, more than"
                f" {MEMORY_SHARE:.0%} of the free memory of {free / 1e9:.3g} GB. Choose a smaller one, or leave it out."
            )

    def _groups(self, order: Order, rows: Rows, cached: Mapping[str, Column] | None, *, is_fed: bool) -> Groups:
        """Rows as they are stored, or decoded where they are cached; `is_fed`, with what numpy does for the model."""

        # No more than the window would hold.
        is_stored = cached is None and isinstance(order, TrainingOrder) and order.is_whole

        def load() -> Any:
            return read_all(self._reader, self._chunks)

        def open_feed(step: int, stored: Any) -> Feed:
            if cached is not None:
                return ArrayFeed({name: cached[name] for name in columns}, cached[_GOOD], order, rows)
            if is_stored:
                columns_of_all, good = stored
                return ArrayFeed(columns_of_all, good, order, rows)
            return FileFeed(self._reader, order, rows, step, self._window() // _AHEAD_SHARE)

        columns: dict[str, Any] = {Strings.NAME: (tf.string, ())}
        next_tokens = None
        if cached is not None or self._is_fixed or self._has_sequences:
            columns = {field.feature.name: (_tensor_dtype(field), field.shape) for field in self._fields.all}
            if is_fed:
                next_tokens = NextTokens.of(self._fields, self._options.sequences)
            if is_fed and self._options.scales_arrays:
                arrays = [field for field in self._fields.inputs if field.dtype == "uint8"]
                columns |= {field.feature.name: (tf.float32, field.shape) for field in arrays}
        seed = operator.index(self._options.seed) if self._options.draws else None
        loads = load if is_stored else None
        return Groups(order, rows, self.group_rows(rows), seed, columns, open_feed, loads, next_tokens)

    def _parsed(self, groups: Groups, start_step: int, then: Then | None, *, is_parsed: bool) -> tf.data.Dataset:
        if is_parsed or self._is_fixed or self._has_sequences:
            return groups.dataset(start_step, then)

        def parse(found: dict[str, tf.Tensor], extras: dict[str, tf.Tensor]) -> Any:
            columns = parse_batch(found[Strings.NAME], self._fields.all, self._mend)
            return (columns, extras) if then is None else then(columns, extras)

        return groups.dataset(start_step, parse)

    def _cached_columns(self) -> Mapping[str, Column] | None:
        """The decoded records, of which the first call makes a pass to keep them."""
        if self._cache is None:
            return None
        if self._kept is None:
            # Also for a dataset of a graph of TensorFlow 1.
            with tf.init_scope():
                self._kept = self._cache.load() or self._cache.fill(self._all_parsed())
        return self._kept

    def _all_parsed(self) -> Iterator[Columns]:
        """All records, parsed, in order, in parts."""
        rows = Rows(self._most_rows, self._most_rows, 0, self._most_rows)

        def make() -> tf.data.Dataset:
            groups = self._groups(EvaluationOrder(self._chunks, rows.total), rows, None, is_fed=False)
            return self._parsed(groups, 0, None, is_parsed=False).prefetch(2)

        left = self._split.records
        for columns, extras in _elements(make):
            columns[_GOOD] = extras["weights"] > 0
            yield {name: column[:left] for name, column in columns.items()}
            left -= rows.total


def _elements(make: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    """Yields the elements of a dataset as numpy arrays, also where eager execution is switched off."""
    if tf.executing_eagerly():
        yield from make().as_numpy_iterator()
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        element = tf.compat.v1.data.make_one_shot_iterator(make()).get_next()
        while True:
            try:
                yield session.run(element)
            except tf.errors.OutOfRangeError:
                return


def _tensor_dtype(field: Field) -> tf.DType:
    dtype = tf.as_dtype(field.dtype)
    return tf.int32 if field.pads or dtype == tf.int64 else dtype

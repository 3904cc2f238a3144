"""Ranges of stored records, read and decoded in a TensorFlow graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.errors import CorruptionError
from tpudata.format import Dataset, decode_example
from tpudata.format.read_errors import name_of_files, name_of_split
from tpudata.format.shards.indexed_records import read_indexed
from tpudata.input.dataset.fields import CONVERT_AGAIN, Field, Fields
from tpudata.input.dataset_ops import as_written
from tpudata.input.decode.fixed_examples import FixedExamples
from tpudata.input.decode.fixed_records import parse_all, parse_fixed
from tpudata.input.decode.parse import default_value, parse_batch, parse_stored
from tpudata.input.files.plain_dataset import PlainDataset
from tpudata.input.files.record_files import FixedLengthRecordFiles, TFRecordFiles
from tpudata.input.graph.reading.piece_cache import PieceCache
from tpudata.input.graph.reading.read import ReadRange, RecordReader, file_kind
from tpudata.input.graph.reading.segments import Segments, segments_of
from tpudata.input.order.chunks import Integers
from tpudata.storage import is_remote

# At 50 ms a read, as on object stores, 32 concurrent reads of 0.5 MB are 320 MB/s.
_REMOTE_READS = 32

# Returns tensors with a row for each of the records [first, last).
Load: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], Any]"


class StoredRecords:
    """The records of a split, or some of them.

    Args:
        dataset: the dataset.
        split: name of the split.
        fields: fields that are read of each record.
        ids: numbers of some of the records, ascending; None for all. Records are then numbered among these.
    """

    def __init__(self, dataset: Dataset, split: str, fields: Fields, ids: Integers | None = None) -> None:
        self._dataset = dataset
        self._split = split
        self._fields = fields
        self._ids = ids
        self._segments: tuple[bytes, Segments] | None = None
        # Layout of the first record if it is fixed; fields if records are parsed.
        self._layout: FixedExamples | Sequence[Field] | None = None

    def part(self, ids: Integers, fields: Fields | None = None) -> StoredRecords:
        """Return some of these records, with other fields if there are any."""
        ids = ids if self._ids is None else self._ids[ids]
        return StoredRecords(self._dataset, self._split, fields or self._fields, ids)

    @property
    def name(self) -> str:
        """Name of datasets that read them, which TensorFlow's errors have."""
        dataset, split = self._dataset, self._split
        if not isinstance(dataset, PlainDataset):
            return name_of_split(dataset.path, split)
        return name_of_files([dataset.shard_path(shard) for shard in dataset.manifest.split(split).shards])

    @property
    def _is_remote(self) -> bool:
        return is_remote(self._dataset.shard_path(self._dataset.manifest.split(self._split).shards[0]))

    def place(self, record: int) -> str:
        """Return the file and the offset of a record, for messages."""
        record = record if self._ids is None else int(self._ids[record])
        segments = segments_of(self._dataset, self._split, [record])
        segment = int(np.searchsorted(segments.firsts, record, "right")) - 1
        return f"{segments.paths[segments.files[segment]]} at byte {segments.offsets[segment]}"

    @functools.cached_property
    def has_gaps(self) -> bool:
        """Whether records in quarantine lie between the others."""
        shards = self._dataset.manifest.split(self._split).shards
        return any(len(self._dataset.kept_runs(shard)) > 1 for shard in shards)

    def read(self, ranges: tf.data.Dataset, load: Load, reads: int | None = None) -> tf.data.Dataset:
        """Return a dataset of the loaded ranges of records, `reads` of them at the same time; None for as many as pay."""
        if reads is None:
            reads = _REMOTE_READS if self._is_remote else tf.data.AUTOTUNE
        return ranges.map(as_written(load), num_parallel_calls=reads, deterministic=True, name=self.name)

    def load(self, cuts: Integers, *, is_decoded: bool, cache: PieceCache | None = None) -> Load:
        """Return a function that reads ranges of records, most of which begin at one of `cuts`.

        Args:
            cuts: numbers of records, int64 [n].
            is_decoded: whether records are decoded, or returned as stored: string [n].
            cache: pieces on a local disk, in one of which each range is; None to read the split's files alone.
        """
        cuts = cuts if self._ids is None else self._ids[cuts]
        if self._segments is None or self._segments[0] != cuts.tobytes():
            # Also for a dataset of a graph of TensorFlow 1.
            with tf.init_scope():
                self._segments = cuts.tobytes(), segments_of(self._dataset, self._split, cuts)
        segments = self._segments[1]
        kind = file_kind(self._dataset, self._split)
        reader = RecordReader(segments, kind, has_gaps=segments.have_gaps, is_remote=self._is_remote)
        read: ReadRange = reader.read
        if cache is not None:
            read = cache.reads(read)
        ids = None if self._ids is None else tf.constant(self._ids)

        def load(first: tf.Tensor, last: tf.Tensor) -> Any:
            if ids is None:
                stored = read(first, last)
            else:
                wanted = ids[first:last]
                stored = tf.gather(read(wanted[0], wanted[-1] + 1), wanted - wanted[0])
            return self.decode(stored) if is_decoded else stored

        return load

    def decode(self, stored: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return decoded records: by feature name, a tensor [n, *field.shape]."""
        dataset, fields = self._dataset, self._fields.all
        if all(field.is_whole for field in fields):
            return parse_batch(stored, fields)
        if isinstance(dataset, PlainDataset) and isinstance(dataset.files, FixedLengthRecordFiles):
            return parse_fixed(stored, dataset.files.dtype, fields)
        hint = dataset.hint if isinstance(dataset, PlainDataset) else CONVERT_AGAIN
        if self._layout is None:
            with tf.init_scope():
                self._layout = FixedExamples.of(self._first_record(), fields) or fields
        layout = self._layout
        return layout.parse(stored, hint) if isinstance(layout, FixedExamples) else parse_batch(stored, layout, hint)

    def features(self, stored: tf.Tensor) -> dict[str, Any]:
        """Parse records without decoding: each feature by its full name, as it is stored, a row for each record.

        Lists of any length are ragged, and encoded images, raw bytes and text are strings.
        """
        dataset = self._dataset
        if isinstance(dataset, PlainDataset) and isinstance(dataset.files, FixedLengthRecordFiles):
            return parse_all(stored, dataset.files.dtype, dataset.manifest.features)
        if isinstance(dataset, PlainDataset) and not isinstance(dataset.files, TFRecordFiles):
            return self.decode(stored)
        defaults = {field.feature.name: default_value(field) for field in self._fields.all}
        return parse_stored(stored, dataset.manifest.features, defaults)

    def _first_record(self) -> bytes:
        """Return the first record, or nothing if it is damaged, which the reader reports.

        Raises:
            CorruptionError: it is not a `tf.train.Example`: of a SequenceExample, `parse_example` would read only the context.
        """
        dataset = self._dataset
        for shard in dataset.manifest.split(self._split).shards:
            runs = dataset.kept_runs(shard)
            if len(runs):
                first, index, path = int(runs[0, 0]), dataset.index(shard), dataset.shard_path(shard)
                try:
                    offset, record = next(read_indexed(path, index, first, first + 1))
                except CorruptionError:
                    return b""
                decode_example(record, path=path, offset=offset)
                return record
        return b""

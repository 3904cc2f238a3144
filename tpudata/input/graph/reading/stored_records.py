"""Ranges of stored records, read and decoded in a TensorFlow graph."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from tpudata.input.dataset.fields import Fields
from tpudata.input.dataset_ops import without_autograph
from tpudata.input.decode.parse import Columns
from tpudata.input.files.split_files import Decode, SplitFiles, keep_whole
from tpudata.input.graph.reading.read import CacheWrapper, ReadRange, RecordReader
from tpudata.input.graph.reading.segments import Segments, cut_into_segments
from tpudata.input.order.chunks import Integers
from tpudata.input.order.order import Load
from tpudata.tensor_types import Tensors

# At 50 ms a read, as on object stores, 32 concurrent reads of 0.5 MB are 320 MB/s.
_REMOTE_READS = 32


class StoredRecords:
    """The records of a split, or some of them.

    Args:
        files: the files of the split.
        fields: fields that are read of each record.
        ids: record numbers of a subset, ascending: records are then numbered by their index in `ids`; None for all.

    Attributes:
        ids: the argument `ids`.
    """

    def __init__(self, files: SplitFiles, fields: Fields, ids: Integers | None = None) -> None:
        self._files = files
        self._fields = fields
        self.ids = ids
        # The bytes of the cuts of the last `make_loader`, and their segments.
        self._segments: tuple[bytes, Segments] | None = None

    def select(self, ids: Integers, fields: Fields | None = None) -> StoredRecords:
        """Return a subset of these records, read with `fields` if they are passed."""
        return StoredRecords(self._files, fields or self._fields, ids if self.ids is None else self.ids[ids])

    @property
    def all(self) -> StoredRecords:
        """All records of the split."""
        return StoredRecords(self._files, self._fields)

    @property
    def name(self) -> str:
        """Name of the datasets that read the records, which TensorFlow's error messages contain."""
        return self._files.name

    def describe_location(self, record_index: int) -> str:
        """Return the file and the byte offset of a record, for messages; in a compressed shard the offset of its block."""
        # For a subset, `ids` has the record numbers in the split.
        stored_record = record_index if self.ids is None else int(self.ids[record_index])
        segments = cut_into_segments(self._files.dataset, self._files.split, [stored_record])
        segment = int(np.searchsorted(segments.firsts, stored_record, "right")) - 1
        return f"{segments.paths[segments.files[segment]]} at byte {segments.offsets[segment]}"

    @functools.cached_property
    def has_gaps(self) -> bool:
        """Whether records in quarantine lie between other records of a shard."""
        dataset = self._files.dataset
        return any(len(dataset.kept_runs(shard)) > 1 for shard in self._files.shards)

    def read(self, ranges: tf.data.Dataset, load: Load, num_reads: int | None = None) -> tf.data.Dataset:
        """Return a dataset of the loaded ranges of records, `num_reads` of them at the same time.

        None stands for 32 from an object store, and otherwise for as many as tf.data finds useful.
        """
        if num_reads is None:
            num_reads = _REMOTE_READS if self._files.is_remote else tf.data.AUTOTUNE
        return ranges.map(without_autograph(load), num_parallel_calls=num_reads, deterministic=True, name=self.name)

    def make_loader(self, cuts: Integers, *, is_decoded: bool, cache_wrapper: CacheWrapper | None = None) -> Load:
        """Return a function that reads ranges of records, most of which begin at one of `cuts`.

        Args:
            cuts: record numbers, int64 [n].
            is_decoded: whether records are decoded, or returned as stored: string [n].
            cache_wrapper: wrapper that caches the records of ranges; None without a cache.
        """
        # For a subset, `ids` has the record numbers in the split.
        stored_cuts = cuts if self.ids is None else self.ids[cuts]
        # Keep the segments for the next call with the same cuts, since making them reads indexes.
        if self._segments is None or self._segments[0] != stored_cuts.tobytes():
            # The dataset may belong to a graph of TensorFlow 1.
            with tf.init_scope():
                segments = cut_into_segments(self._files.dataset, self._files.split, stored_cuts)
                self._segments = stored_cuts.tobytes(), segments
        segments = self._segments[1]
        read: ReadRange = RecordReader(self._files, segments, has_gaps=segments.have_gaps).read
        if cache_wrapper is not None:
            read = cache_wrapper(read)
        ids = None if self.ids is None else tf.constant(self.ids)

        def load(first: tf.Tensor, stop: tf.Tensor) -> Tensors:
            """Return the records [first, stop); for a subset, both are indices in `ids`."""
            if ids is None:
                stored = read(first, stop)
            else:
                # The read includes the records between the selected ones.
                stored_ids = ids[first:stop]
                stored = tf.gather(read(stored_ids[0], stored_ids[-1] + 1), stored_ids - stored_ids[0])
            return self.decode(stored) if is_decoded else stored

        return load

    def decode(self, stored: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return decoded records: by feature name, a tensor [n, *field.shape]."""
        return self._decoder(stored)

    def parse_features(self, stored: tf.Tensor) -> Columns:
        """Return all features of records without decoding them; see `SplitFiles.parse_features`."""
        return self._files.parse_features(stored, self._fields.all)

    @functools.cached_property
    def _decoder(self) -> Decode:
        """Function that decodes stored records, made once, since making it may read the first record."""
        fields = self._fields.all
        if all(field.is_whole for field in fields):
            return functools.partial(keep_whole, fields)
        return self._files.make_decoder(fields)

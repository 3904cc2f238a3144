"""Ranges of records, read in a TensorFlow graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.format.read_errors import INDEX_MISMATCH
from tpudata.input.dataset_ops import count_up_to, ensure
from tpudata.input.files.split_files import Run, SplitFiles
from tpudata.input.graph.reading.segments import Segments

# Returns the records [first, stop) as stored: string [n].
ReadRange: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tf.Tensor]"
# Wraps a function that reads ranges in one that also caches them.
CacheWrapper: TypeAlias = "Callable[[ReadRange], ReadRange]"

# Column of `RecordReader._table` with the byte at which a segment ends.
_END_COLUMN = 3


class RecordReader:
    """Reader of ranges of a split's records, as stored.

    Args:
        files: the files.
        segments: byte ranges of the records in them.
        has_gaps: whether records in quarantine lie between segments. Without gaps, a range is one run of bytes of one file.
    """

    def __init__(self, files: SplitFiles, segments: Segments, *, has_gaps: bool) -> None:
        self._files = files
        self._has_gaps = has_gaps
        self._is_remote = files.is_remote
        self._paths = tf.constant(segments.paths)
        self._file_bytes = tf.constant(segments.file_bytes)
        self._firsts = tf.constant(segments.firsts)
        ends = segments.offsets + segments.sizes
        # `_make_run` takes a row apart in this order.
        columns = (segments.files, segments.firsts[:-1], segments.offsets, ends, segments.skips, segments.first_records)
        # One row for each segment, gathered in one call: half of the operations of a table for each column.
        self._table = tf.constant(np.stack(columns, axis=1))
        self._sizes = tf.constant(segments.sizes)

    def read(self, first: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        """Return the records [first, stop) as string [n]. The range is in one file unless there are gaps.

        Args:
            first: index of the first record, int64 scalar.
            stop: index of the record after the last one, above `first`.

        Raises:
            tf.errors.DataLossError: the checksum of a TFRecord does not match. Errors are raised when the tensor is computed.
            tf.errors.InvalidArgumentError: the records of a file are not those of its index.
        """
        # The segments of the first and the last record.
        first_segment, last_segment = tf.unstack(count_up_to(self._firsts, tf.stack([first, stop - 1])) - 1)

        def read_segment(segment: tf.Tensor) -> tf.data.Dataset:
            """Return a dataset of the records [first, stop) that are in one segment."""
            first_read = tf.maximum(first, tf.gather(self._firsts, segment))
            stop_read = tf.minimum(stop, tf.gather(self._firsts, segment + 1))
            run = self._make_run(segment, segment, first_read, stop_read)
            return self._files.read_records(run).take(stop_read - first_read)

        # `SplitFiles.read_records` may continue after the last record: only as many as wanted are taken.
        if self._has_gaps:
            records = tf.data.Dataset.range(first_segment, last_segment + 1).flat_map(read_segment)
        else:
            records = self._files.read_records(self._make_run(first_segment, last_segment, first, stop))
        stored = records.batch(stop - first).take(1).get_single_element()
        message = "A file has fewer records than its index says: it has changed since the dataset was opened."
        stored = ensure(stored, tf.equal(tf.size(stored, tf.int64), stop - first), message)
        # None unless the files are plain TFRecords: only their sizes are compared here.
        frame_bytes = self._files.frame_bytes
        if frame_bytes is None:
            return stored
        # A wrong offset may be the start of another record, so compare the number of bytes that were read with the index,
        # which has this number for whole segments only. Most ranges are whole segments.
        begins_segment = tf.equal(tf.gather(self._firsts, first_segment), first)
        ends_segment = tf.equal(tf.gather(self._firsts, last_segment + 1), stop)
        expected = tf.reduce_sum(self._sizes[first_segment : last_segment + 1])
        size = tf.reduce_sum(tf.cast(tf.strings.length(stored), tf.int64) + frame_bytes)
        return ensure(stored, ~(begins_segment & ends_segment) | tf.equal(size, expected), INDEX_MISMATCH)

    def _make_run(self, first_segment: tf.Tensor, last_segment: tf.Tensor, first: tf.Tensor, stop: tf.Tensor) -> Run:
        """Return the run of the records [first, stop).

        Args:
            first_segment: index of the segment that has the first record.
            last_segment: index of the segment that has the last record. No gap lies between the two segments.
            first: index of the first record.
            stop: index of the record after the last one.
        """
        file_index, segment_first, offset, _, skipped, first_record = tf.unstack(tf.gather(self._table, first_segment))
        end = tf.gather(self._table, last_segment)[_END_COLUMN]
        return Run(
            path=tf.gather(self._paths, file_index),
            file_index=file_index,
            file_bytes=tf.gather(self._file_bytes, file_index),
            offset=offset,
            size=end - offset,
            skipped=skipped + first - segment_first,
            count=stop - first,
            first_record=first_record,
            is_remote=self._is_remote,
        )

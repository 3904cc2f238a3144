"""Ranges of records, read in a TensorFlow graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.format.read_errors import OTHER_RECORDS
from tpudata.input.dataset_ops import chain_datasets, count_up_to, ensure, without_autograph
from tpudata.input.files.split_files import Run, SplitFiles
from tpudata.input.graph.reading.segments import Segments
from tpudata.input.order.chunks import Integers

# Returns the records [first, stop) as stored: string [n].
ReadRange: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tf.Tensor]"
# Wraps a function that reads ranges in one that also caches them.
Keep: TypeAlias = "Callable[[ReadRange], ReadRange]"


class RecordReader:
    """Reader of ranges of a split's records, as they are stored.

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
        columns = (segments.files, segments.firsts[:-1], segments.offsets, ends, segments.skips, segments.first_records)
        # One row for each segment, gathered at once: half of the operations of a table for each column.
        self._table = tf.constant(np.stack(columns, axis=1))
        self._sizes = tf.constant(segments.sizes)

    def read(self, first: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        """Return the records [first, stop) as string [n].

        Args:
            first: index of the first record, int64 scalar.
            stop: index of the record after the last one, above `first`; in the same file unless there are gaps.

        A record whose checksum does not match is a `tf.errors.DataLossError` when it is read.
        """
        low, high = self._find_segments(first, stop)

        def read_segment(segment: tf.Tensor) -> tf.data.Dataset:
            first_read = tf.maximum(first, tf.gather(self._firsts, segment))
            stop_read = tf.minimum(stop, tf.gather(self._firsts, segment + 1))
            return self._files.records(self._make_run(segment, segment, first_read, stop_read)).take(
                stop_read - first_read
            )

        if self._has_gaps:
            records = tf.data.Dataset.range(low, high + 1).flat_map(read_segment)
        else:
            records = self._files.records(self._make_run(low, high, first, stop))
        frames = records.batch(stop - first).take(1).get_single_element()
        message = "A file has fewer records than its index says: it has changed since the dataset was opened."
        frames = ensure(frames, tf.equal(tf.size(frames, tf.int64), stop - first), message)
        if self._files.frame_bytes is None:
            return frames
        return ensure(frames, self._has_size(first, stop, self._count_bytes(frames)), OTHER_RECORDS)

    def read_parts(
        self, firsts: Integers, stops: Integers, part_records: int, reads: int, name: str
    ) -> tf.data.Dataset:
        """Return a dataset of the records of ranges, in order and in parts: string [n] of `part_records` or fewer, some empty.

        Several ranges are fetched at the same time, and taken apart one after the other. An error ends the parts of a range, which
        `read` then reads again: for an error that has the name of the dataset, or for the remaining records.

        Only for files that end at errors, and without gaps.

        Args:
            firsts: first record of each range, int64 [ranges].
            stops: index of the record after the last one of each, in the same file, int64 [ranges].
            part_records: records of a part.
            reads: ranges that are fetched at the same time.
            name: name of the dataset, which TensorFlow's error messages contain.
        """
        end = tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))

        def open_range(first: tf.Tensor, stop: tf.Tensor) -> tf.data.Dataset:
            low, high = self._find_segments(first, stop)
            records = self._files.records(self._make_run(low, high, first, stop)).take(stop - first)
            return records.batch(part_records).ignore_errors().concatenate(end)

        # Functions of each range would take TensorFlow 40 ms to prepare; these are prepared once.
        bounds = tf.constant(np.stack([firsts, stops], axis=1))

        def add_up(state: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
            range_index, count, size = tf.unstack(state)
            is_end = tf.equal(tf.size(part), 0)
            sums = [range_index, count + tf.size(part, tf.int64), size + self._count_bytes(part)]
            return tf.where(is_end, [range_index + 1, 0, 0], sums), (state, part)

        def complete(state: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
            range_index, count, size = tf.unstack(state)

            def read_rest() -> tf.Tensor:
                first, stop = tf.unstack(tf.gather(bounds, range_index))
                rest = tf.cond(count < stop - first, lambda: self.read(first, stop)[count:], lambda: part)
                return ensure(rest, self._has_size(first, stop, size + self._count_bytes(rest)), OTHER_RECORDS)

            return tf.cond(tf.equal(tf.size(part), 0), read_rest, lambda: part)

        ranges = tf.data.Dataset.from_tensor_slices((firsts, stops))
        parts = chain_datasets(ranges, open_range, tf.TensorSpec([None], tf.string), running=reads)
        sums = parts.scan(tf.zeros([3], tf.int64), without_autograph(add_up))
        return sums.map(without_autograph(complete), name=name)

    def _count_bytes(self, records: tf.Tensor) -> tf.Tensor:
        """Return the bytes that records, string [n], take in a file whose `frame_bytes` are known: int64 scalar."""
        return tf.reduce_sum(tf.cast(tf.strings.length(records), tf.int64) + self._files.frame_bytes)

    def _has_size(self, first: tf.Tensor, stop: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        """Return whether the records [first, stop) have a size in bytes, as far as their segments show it: bool scalar.

        A wrong offset may be the start of another record. The size is known for whole segments, which most ranges are.
        """
        low, high = self._find_segments(first, stop)
        is_whole = tf.equal(tf.gather(self._firsts, low), first) & tf.equal(tf.gather(self._firsts, high + 1), stop)
        return ~is_whole | tf.equal(size, tf.reduce_sum(self._sizes[low : high + 1]))

    def _find_segments(self, first: tf.Tensor, stop: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the indices of the segments of the first and the last of the records [first, stop), int64 scalars."""
        low, high = tf.unstack(count_up_to(self._firsts, tf.stack([first, stop - 1])) - 1)
        return low, high

    def _make_run(self, low: tf.Tensor, high: tf.Tensor, first: tf.Tensor, stop: tf.Tensor) -> Run:
        """Return the run of the records [first, stop).

        Args:
            low: number of the segment that has the first record.
            high: number of the segment that has the last one. No gap lies between the two.
            first: index of the first record.
            stop: index of the record after the last one.
        """
        file, start, offset, _, skipped, first_read = tf.unstack(tf.gather(self._table, low))
        return Run(
            path=tf.gather(self._paths, file),
            file=file,
            file_bytes=tf.gather(self._file_bytes, file),
            offset=offset,
            size=tf.gather(self._table, high)[3] - offset,
            skipped=skipped + first - start,
            count=stop - first,
            first_record=first_read,
            is_remote=self._is_remote,
        )

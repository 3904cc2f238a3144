"""Ranges of records, read in a TensorFlow graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.format import Dataset
from tpudata.format.layout import INDEX_FOLDER, index_name
from tpudata.format.read_errors import OTHER_RECORDS
from tpudata.format.shards.index import HEAD_BYTES, OFFSET_BYTES
from tpudata.format.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, LENGTH_BYTES
from tpudata.input.dataset_ops import checked, count_up_to
from tpudata.input.files.plain_dataset import PlainDataset
from tpudata.input.files.record_files import FixedLengthRecordFiles, TextLineFiles
from tpudata.input.graph.reading.segments import Segments
from tpudata.storage import storage_for

# Returns the records [first, last) as stored: string [n].
ReadRange: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tf.Tensor]"

# Least and most bytes of one request to a file.
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 8 << 20
# TensorFlow's client for an object store fetches a block, 64 MiB by default, for each read that is not larger than one.
_BLOCK_BYTES = 64 << 20
# Reads of this size fill blocks of 4 MiB or more.
_STEP_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class FileKind:
    """Format of the files of a split; by default TFRecords.

    Attributes:
        record_bytes: size of each record of a file of records of one size; otherwise None.
        are_lines: whether each line of the file is a record.
        index_paths: paths of the files' indexes if the files are compressed, otherwise None.
        index_bytes: sizes of the indexes.
    """

    record_bytes: int | None = None
    are_lines: bool = False
    index_paths: tuple[str, ...] | None = None
    index_bytes: tuple[int, ...] = ()


def file_kind(dataset: Dataset, split: str) -> FileKind:
    """Return the format of a split's files."""
    if isinstance(dataset, PlainDataset):
        files = dataset.files
        if isinstance(files, FixedLengthRecordFiles):
            return FileKind(record_bytes=files.dtype.itemsize)
        return FileKind(are_lines=isinstance(files, TextLineFiles))
    if dataset.manifest.compression is None:
        return FileKind()
    storage = storage_for(dataset.path)
    folder = storage.join(dataset.path, INDEX_FOLDER)
    sizes = {entry.name: entry.size for entry in storage.list(folder)}
    names = [index_name(shard.name) for shard in dataset.manifest.split(split).shards]
    paths = tuple(storage.join(dataset.path, name) for name in names)
    return FileKind(index_paths=paths, index_bytes=tuple(sizes[name.rpartition("/")[2]] for name in names))


class RecordReader:
    """Reader of ranges of a split's records, as they are stored.

    Args:
        segments: places of the records.
        kind: format of the files.
        has_gaps: whether records in quarantine lie between segments. Without gaps, a range is one run of bytes of one file.
        is_remote: whether the files are on an object store.
    """

    def __init__(self, segments: Segments, kind: FileKind, *, has_gaps: bool, is_remote: bool = False) -> None:
        self._kind = kind
        self._is_remote = is_remote
        self._has_gaps = has_gaps
        self._paths = tf.constant(segments.paths)
        self._file_bytes = tf.constant(segments.file_bytes)
        self._firsts = tf.constant(segments.firsts)
        ends = segments.offsets + segments.sizes
        columns = (segments.files, segments.firsts[:-1], segments.offsets, ends, segments.skips, segments.places)
        # One row a segment, to be gathered at once: half of the operations of a table for each column.
        self._table = tf.constant(np.stack(columns, axis=1))
        self._sizes = tf.constant(segments.sizes)
        self._index_bytes = tf.constant(kind.index_bytes, tf.int64)

    def read(self, first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
        """Return the records [first, last) as string [n].

        Args:
            first: number of the first record, int64 scalar.
            last: number of the record after the last one, above `first`; in the same file unless there are gaps.

        A record whose checksum does not match is a `tf.errors.DataLossError` when it is read.
        """
        low, high = tf.unstack(count_up_to(self._firsts, tf.stack([first, last - 1])) - 1)

        def of_segment(number: tf.Tensor) -> tf.data.Dataset:
            begin = tf.maximum(first, tf.gather(self._firsts, number))
            return self._run(number, number, begin, tf.minimum(last, tf.gather(self._firsts, number + 1)))

        segments = tf.data.Dataset.range(low, high + 1)
        records = segments.flat_map(of_segment) if self._has_gaps else self._run(low, high, first, last)
        found = records.batch(last - first).take(1).get_single_element()
        message = "A file has fewer records than its index says: it has changed since the dataset was opened."
        found = checked(found, tf.equal(tf.size(found, tf.int64), last - first), message)
        kind = self._kind
        if kind.record_bytes is not None or kind.are_lines or kind.index_paths is not None:
            return found
        # Wrong offsets may be those of other records. Sizes are known of whole segments, which most ranges are.
        is_whole = tf.equal(tf.gather(self._firsts, low), first) & tf.equal(tf.gather(self._firsts, high + 1), last)
        expected = tf.reduce_sum(self._sizes[low : high + 1])
        size = tf.reduce_sum(tf.cast(tf.strings.length(found), tf.int64) + FRAME_BYTES)
        return checked(found, ~is_whole | tf.equal(size, expected), OTHER_RECORDS)

    def _run(self, low: tf.Tensor, high: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tf.data.Dataset:
        """Return a dataset of the records from `first` on; TFRecords go on after `last`.

        Args:
            low: number of the segment that has the first record.
            high: number of the segment that has the last one. No gap lies between the two.
            first: number of the first record.
            last: number of the record after the last one.
        """
        file, start, offset, _, before, place = tf.unstack(tf.gather(self._table, low))
        size = tf.gather(self._table, high)[3] - offset
        skipped, count = before + first - start, last - first
        if self._kind.record_bytes is not None:
            return self._bytes(file, offset, size, self._kind.record_bytes).skip(skipped).take(count)
        if self._kind.are_lines:
            text = self._bytes(file, offset, size, size).get_single_element()
            lines = tf.strings.regex_replace(tf.strings.split(text, "\n"), "\r$", "")
            return tf.data.Dataset.from_tensor_slices(lines[skipped : skipped + count])
        if self._kind.index_paths is not None:
            blocks = self._bytes(file, offset, size, size).get_single_element()
            offsets = self._record_offsets(file, place, skipped + count)[skipped:]
            return tf.data.Dataset.from_tensor_slices(_unpacked(blocks, offsets))
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=[tf.gather(self._paths, file)],
            compression_type="",
            buffer_size=self._buffer_bytes(file, offset, size),
            byte_offsets=[offset],
        )
        dataset = tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string)).skip(skipped)
        return dataset.take(count) if self._has_gaps else dataset

    def _bytes(self, file: tf.Tensor, offset: tf.Tensor, size: tf.Tensor, record_bytes: Any) -> tf.data.Dataset:
        """Return a dataset of the bytes [offset, offset + size) of a file, in parts of `record_bytes`."""
        after = tf.gather(self._file_bytes, file) - offset - size
        # It reads nothing before the offset, so that a large read is as exact as from the start of a file.
        buffer = self._exact_bytes(size, after) if self._is_remote else None
        return tf.data.FixedLengthRecordDataset(tf.gather(self._paths, file), record_bytes, offset, after, buffer)

    def _buffer_bytes(self, file: tf.Tensor, offset: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        """Return the bytes that are read at a time of the TFRecords in the bytes [offset, offset + size) of a file."""
        if not self._is_remote:
            return tf.clip_by_value(size, _LEAST_BYTES, _MOST_BYTES)
        # Before an offset, TensorFlow reads a byte, and by it a block, in which the last read must end with the range.
        steps = (size + _STEP_BYTES - 1) // _STEP_BYTES
        exact = self._exact_bytes(size, tf.gather(self._file_bytes, file) - size)
        return tf.where(tf.equal(offset, 0), exact, (size + steps - 1) // steps)

    def _exact_bytes(self, size: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        """Return the size of a read that is one request for a range, if it is larger than a block, or `after` it are no bytes."""
        return tf.where(tf.equal(after, 0), tf.maximum(size, _BLOCK_BYTES + 1), size)

    def _record_offsets(self, file: tf.Tensor, place: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Return the offsets in the unpacked block of its first `count` records, and their end: int64 [count + 1].

        Args:
            file: number of the file.
            place: number in the file of the first record.
            count: number of records.
        """
        assert self._kind.index_paths is not None
        index = tf.gather(tf.constant(self._kind.index_paths), file)
        listed, before = OFFSET_BYTES * (count + 1), HEAD_BYTES + OFFSET_BYTES * place
        after = tf.gather(self._index_bytes, file) - before - listed
        stored = tf.data.FixedLengthRecordDataset(index, listed, before, after).get_single_element()
        offsets = tf.io.decode_raw(stored, tf.int64)
        return offsets - offsets[0]


def _unpacked(blocks: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """Return the records of compressed blocks, string [n], from their offsets and the last one's end, int64 [n + 1]."""
    unpacked = tf.io.decode_compressed(blocks, "GZIP")
    # gzip's checksum says that the block is whole; each record's header, that the index knows where it begins and ends.
    unpacked = checked(unpacked, offsets[-1] <= tf.cast(tf.strings.length(unpacked), tf.int64), OTHER_RECORDS)
    begins, sizes = offsets[:-1], offsets[1:] - offsets[:-1] - FRAME_BYTES
    lengths = tf.fill(tf.shape(begins), tf.constant(LENGTH_BYTES, tf.int64))
    stored = tf.io.decode_raw(tf.strings.substr(unpacked, begins, lengths), tf.int64)
    unpacked = checked(unpacked, tf.reduce_all(tf.equal(stored, sizes[:, tf.newaxis])), OTHER_RECORDS)
    return tf.strings.substr(unpacked, begins + HEADER_BYTES, sizes)

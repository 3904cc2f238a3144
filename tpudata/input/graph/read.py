"""Ranges of records, read in a TensorFlow graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tpudata.format import Dataset
from tpudata.format.index import HEAD_BYTES, OFFSET_BYTES
from tpudata.format.layout import INDEX_FOLDER, index_name
from tpudata.format.tfrecord import FRAME_BYTES, HEADER_BYTES
from tpudata.input.dataset.plain_dataset import PlainDataset
from tpudata.input.dataset.record_files import FixedLengthRecordFiles, TextLineFiles
from tpudata.input.graph.segments import Segments
from tpudata.storage import storage_for

# What is asked of a file at one time.
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 8 << 20


@dataclasses.dataclass(frozen=True)
class FileKind:
    """What a file of records is.

    Attributes:
        record_bytes: size of each record of a file of records of one size; otherwise None.
        are_lines: whether each line of the file is a record.
        index_paths: of the indexes of the files, if these are compressed; otherwise None.
        index_bytes: their sizes.

    A file of which nothing is said holds TFRecords.
    """

    record_bytes: int | None = None
    are_lines: bool = False
    index_paths: tuple[str, ...] | None = None
    index_bytes: tuple[int, ...] = ()


def file_kind(dataset: Dataset, split: str) -> FileKind:
    """Return what the files of a split are."""
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
    """Reads records of a split as they are stored.

    Args:
        segments: where they are.
        kind: what the files are.
        has_gaps: whether a range of records may stand in more than one segment.
    """

    def __init__(self, segments: Segments, kind: FileKind, *, has_gaps: bool) -> None:
        self._kind = kind
        self._has_gaps = has_gaps
        self._paths = tf.constant(segments.paths)
        self._file_bytes = tf.constant(segments.file_bytes)
        self._firsts = tf.constant(segments.firsts)
        self._files = tf.constant(segments.files)
        self._offsets = tf.constant(segments.offsets)
        self._sizes = tf.constant(segments.sizes)
        self._skips = tf.constant(segments.skips)
        self._places = tf.constant(segments.places)
        self._index_bytes = tf.constant(kind.index_bytes, tf.int64)

    def read(self, first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
        """Return the records [first, last), of which there is at least one: string [n].

        A record whose checksum does not fit is a `tf.errors.DataLossError` when it is read.
        """
        low = tf.searchsorted(self._firsts, [first], "right", tf.int64)[0] - 1

        def of_segment(number: tf.Tensor) -> tf.data.Dataset:
            begin = tf.maximum(first, self._firsts[number])
            end = tf.minimum(last, self._firsts[number + 1])
            return self._segment(number, self._skips[number] + begin - self._firsts[number], end - begin)

        if self._has_gaps:
            high = tf.searchsorted(self._firsts, [last], "left", tf.int64)[0]
            records = tf.data.Dataset.range(low, high).flat_map(of_segment)
        else:
            records = of_segment(low)
        found = records.batch(last - first).get_single_element()
        message = "A file has fewer records than its index says: it has changed since the dataset was opened."
        with tf.control_dependencies([tf.debugging.assert_equal(tf.size(found, tf.int64), last - first, message)]):
            return tf.identity(found)

    def _segment(self, number: tf.Tensor, skipped: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
        """Return a dataset of `count` records of a segment."""
        path, offset, size = self._paths[self._files[number]], self._offsets[number], self._sizes[number]
        if self._kind.record_bytes is not None:
            return self._bytes(number, offset, size, self._kind.record_bytes).skip(skipped).take(count)
        if self._kind.are_lines:
            text = self._bytes(number, offset, size, size).get_single_element()
            lines = tf.strings.regex_replace(tf.strings.split(text, "\n"), "\r$", "")
            return tf.data.Dataset.from_tensor_slices(lines[skipped : skipped + count])
        if self._kind.index_paths is not None:
            return tf.data.Dataset.from_tensor_slices(self._unpacked(number, skipped, count))
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path],
            compression_type="",
            buffer_size=tf.clip_by_value(size, _LEAST_BYTES, _MOST_BYTES),
            byte_offsets=[offset],
        )
        dataset = tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))
        return dataset.skip(skipped).take(count)

    def _bytes(self, number: tf.Tensor, offset: tf.Tensor, size: tf.Tensor, record_bytes: Any) -> tf.data.Dataset:
        """Return a dataset of the bytes [offset, offset + size) of a file, in parts of `record_bytes`."""
        file = self._files[number]
        after = self._file_bytes[file] - offset - size
        return tf.data.FixedLengthRecordDataset(self._paths[file], record_bytes, offset, after)

    def _unpacked(self, number: tf.Tensor, skipped: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Return `count` records of compressed blocks, string [count]."""
        file, size = self._files[number], self._sizes[number]
        packed = self._bytes(number, self._offsets[number], size, size).get_single_element()
        blocks = tf.io.decode_compressed(packed, "GZIP")
        assert self._kind.index_paths is not None
        index = tf.gather(tf.constant(self._kind.index_paths), file)
        # The list of offsets in the index, from the first record of the blocks to the end of the last one that is wanted.
        listed = OFFSET_BYTES * (skipped + count + 1)
        before = HEAD_BYTES + OFFSET_BYTES * self._places[number]
        after = self._index_bytes[file] - before - listed
        stored = tf.data.FixedLengthRecordDataset(index, listed, before, after).get_single_element()
        offsets = tf.io.decode_raw(stored, tf.int64)
        offsets = offsets[skipped:] - offsets[0]
        sizes = offsets[1:] - offsets[:-1] - FRAME_BYTES
        return tf.strings.substr(blocks, offsets[:-1] + HEADER_BYTES, sizes)

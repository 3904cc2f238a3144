"""Shards of a dataset: TFRecords of Examples, plain or in compressed blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from tpudata.errors import CorruptionError
from tpudata.format import Dataset, decode_example
from tpudata.format.layout import INDEX_FOLDER, index_name
from tpudata.format.read_errors import INDEX_MISMATCH
from tpudata.format.shards.index import HEAD_BYTES, OFFSET_BYTES
from tpudata.format.shards.indexed_records import read_indexed
from tpudata.format.shards.stored_shards import find_changed_shard_error
from tpudata.format.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, LENGTH_BYTES
from tpudata.input.dataset.fields import CONVERT_AGAIN, Field
from tpudata.input.dataset_ops import ensure
from tpudata.input.decode.fixed_examples import FixedExamples
from tpudata.input.decode.parse import Columns, parse_batch, parse_stored, reshape_default
from tpudata.input.files.split_files import Decode, Run, SplitFiles
from tpudata.storage import storage_for

# Minimum and maximum bytes of one read of a local file.
_MIN_BYTES, _MAX_BYTES = 64 << 10, 8 << 20
# Maximum bytes of one read of an object store: reads of this size fill blocks of its client, which have 4 MiB or more.
_REMOTE_BYTES = 4 << 20


class Shards(SplitFiles):
    """TFRecords of `tf.train.Example`s.

    Attributes:
        record_hint: fix for a record that differs from its features.
    """

    record_hint = CONVERT_AGAIN
    frame_bytes: int | None = FRAME_BYTES

    def read_records(self, run: Run) -> tf.data.Dataset:
        """Return a dataset of the records from a run's first wanted one to the end of the file; the caller takes `run.count`."""
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=[run.path], compression_type="", buffer_size=_pick_buffer_bytes(run), byte_offsets=[run.offset]
        )
        return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string)).skip(run.skipped)

    def make_decoder(self, fields: Sequence[Field]) -> Decode:
        """Return a function that parses Examples: by slicing if the first record has a fixed layout.

        Raises:
            CorruptionError: the first record is not a `tf.train.Example`.
        """
        layout = FixedExamples.detect(self._read_first_record(), fields)
        if layout is None:
            return functools.partial(parse_batch, fields=fields, hint=self.record_hint)
        return functools.partial(layout.parse, hint=self.record_hint)

    def parse_features(self, stored: tf.Tensor, fields: Sequence[Field]) -> Columns:
        """Parse all features of Examples, not only the features of `fields`, without decoding images and raw bytes.

        The fields give the default values of features that a record may lack.
        """
        defaults = {field.feature.name: reshape_default(field) for field in fields}
        return parse_stored(stored, self.manifest.features, defaults)

    def _read_first_record(self) -> bytes:
        """Return the first record that is not in quarantine; empty if there is none, or if it is damaged, which the reader reports.

        Raises:
            CorruptionError: it is not a `tf.train.Example`: `parse_example` would read only the context of a SequenceExample.
        """
        for shard in self.shards:
            runs = self.dataset.kept_runs(shard)
            if len(runs):
                first_record = int(runs[0, 0])
                path = self.dataset.shard_path(shard)
                try:
                    offset, record = next(read_indexed(path, self.dataset.index(shard), first_record, first_record + 1))
                except CorruptionError:
                    return b""
                # Called only for its error.
                decode_example(record, path=path, offset=offset)
                return record
        return b""


class CompressedShards(Shards):
    """Shards in gzip blocks, whose index contains the offset of each record in the unpacked blocks."""

    frame_bytes = None

    def read_records(self, run: Run) -> tf.data.Dataset:
        """Return a dataset of the records of a run, whose blocks are unpacked."""
        offsets = self._read_record_offsets(run, run.skipped + run.count)[run.skipped :]
        return tf.data.Dataset.from_tensor_slices(_unpack(run.read_bytes(), offsets))

    def _read_record_offsets(self, run: Run, num_records: tf.Tensor) -> tf.Tensor:
        """Return the offsets of the first records in a run's unpacked blocks, and their end: int64 [num_records + 1]."""
        paths, sizes = self._index_files
        # Read only these offsets from the index: to TensorFlow they are one record between a header and a footer.
        path = tf.gather(tf.constant(paths), run.file_index)
        size = tf.gather(tf.constant(sizes, tf.int64), run.file_index)
        read_bytes = OFFSET_BYTES * (num_records + 1)
        header_bytes = HEAD_BYTES + OFFSET_BYTES * run.first_record
        footer_bytes = size - header_bytes - read_bytes
        stored = tf.data.FixedLengthRecordDataset(path, read_bytes, header_bytes, footer_bytes).get_single_element()
        offsets = tf.io.decode_raw(stored, tf.int64)
        # The index counts from the start of the unpacked shard.
        return offsets - offsets[0]

    @functools.cached_property
    def _index_files(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Paths of the shards' indexes, and their sizes in bytes."""
        path = self.dataset.path
        storage = storage_for(path)
        sizes = {entry.name: entry.size for entry in storage.list(storage.join(path, INDEX_FOLDER))}
        names = [index_name(shard.name) for shard in self.shards]
        return (
            tuple(storage.join(path, name) for name in names),
            tuple(sizes[name.rpartition("/")[2]] for name in names),
        )


def open_shards(dataset: Dataset, split: str) -> SplitFiles:
    """Return the files of a split of a dataset."""
    return Shards(dataset, split) if dataset.manifest.compression is None else CompressedShards(dataset, split)


def check_shards(dataset: Dataset, split: str) -> None:
    """Check that the shards of a split are as the manifest describes them or, in quarantine, as they were when damage was found.

    Sizes are compared, and checksums if the storage lists them.

    Raises:
        DatasetError: there is no such split, it has no records outside quarantine, or a shard is missing.
        CorruptionError: the size or the checksum of a shard differs.
        StorageError: the dataset's folder cannot be listed.
    """
    # Raises the DatasetError of a split that does not exist or has no records.
    dataset.kept(split)
    changed = find_changed_shard_error(dataset, split)
    if changed is not None:
        raise changed


def _pick_buffer_bytes(run: Run) -> tf.Tensor:
    """Return the buffer size for reading a run of TFRecords, in bytes, int64 scalar."""
    if not run.is_remote:
        return tf.clip_by_value(run.size, _MIN_BYTES, _MAX_BYTES)
    # A run at the start of a file is one read. Before any other run, TensorFlow reads the byte before it. Equal reads of at most
    # _REMOTE_BYTES follow: the last of them ends with the run, so that no block after the run is fetched.
    num_reads = (run.size + _REMOTE_BYTES - 1) // _REMOTE_BYTES
    bytes_of_one_read = run.compute_buffer_bytes(run.file_bytes - run.size)
    bytes_of_equal_reads = (run.size + num_reads - 1) // num_reads
    return tf.where(tf.equal(run.offset, 0), bytes_of_one_read, bytes_of_equal_reads)


def _unpack(blocks: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """Return the records of compressed blocks, string [n].

    Fails at run time with `tf.errors.InvalidArgumentError` if the records are not at these offsets.

    Args:
        blocks: neighbouring gzip blocks, string scalar.
        offsets: offsets of the records in the unpacked blocks, and the end of the last one: int64 [n + 1].
    """
    unpacked = tf.io.decode_compressed(blocks, "GZIP")
    # gzip's checksum protects the blocks; the length in each record's header shows whether the index has the right offsets.
    unpacked = ensure(unpacked, offsets[-1] <= tf.cast(tf.strings.length(unpacked), tf.int64), INDEX_MISMATCH)
    begins, sizes = offsets[:-1], offsets[1:] - offsets[:-1] - FRAME_BYTES
    lengths = tf.fill(tf.shape(begins), tf.constant(LENGTH_BYTES, tf.int64))
    stored_sizes = tf.io.decode_raw(tf.strings.substr(unpacked, begins, lengths), tf.int64)
    unpacked = ensure(unpacked, tf.reduce_all(tf.equal(stored_sizes, sizes[:, tf.newaxis])), INDEX_MISMATCH)
    return tf.strings.substr(unpacked, begins + HEADER_BYTES, sizes)

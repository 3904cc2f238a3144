"""From shards to serialised records: which files, in which order, and what happens where one is damaged."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tpudata.errors import CorruptionError, DatasetError
from tpudata.format import Dataset, read_records
from tpudata.format.tfrecord import FRAME_BYTES
from tpudata.storage import storage_for

# An object store answers a request in tens of milliseconds; 8 MiB per request keeps one open file above 100 MB/s.
BUFFER_BYTES = 8 << 20
# Files read at the same time in training: 16 x 8 MiB is what reading may hold.
_CYCLE_SHARDS = 16
# Records that travel together. Handing small records one by one between threads costs more than reading them; and the window
# that follows in training mixes far more records than these.
_BLOCK_RECORDS = 16


def check_shards(dataset: Dataset, split: str) -> None:
    """Checks that the shards of a split are there and have their sizes, without reading them.

    Raises:
        DatasetError: the split has no shards, or one is missing.
        CorruptionError: a shard has another size than the manifest says.
    """
    shards = dataset.manifest.split(split).shards
    if not shards:
        raise DatasetError(f"{dataset.path}: split {split!r} has no records. Choose another split.")
    sizes = {entry.name: entry.size for entry in storage_for(dataset.path).list(dataset.path)}
    for shard in shards:
        size = sizes.get(shard.name)
        if size is None:
            raise DatasetError(f"{dataset.shard_path(shard)} is missing. Restore it, or convert the dataset again.")
        if size != shard.bytes:
            raise CorruptionError(
                dataset.shard_path(shard),
                min(size, shard.bytes),
                f"the file has {size} bytes, the manifest says {shard.bytes}. Restore it, or convert the dataset again.",
            )


def serialized_blocks(dataset: Dataset, split: str, *, shuffle: bool, seed: int | None = None) -> tf.data.Dataset:
    """One pass over the serialised records of a split, in blocks.

    Args:
        dataset: the dataset.
        split: name of the split.
        shuffle: take the shards in another order on every pass and mix 16 of them; otherwise records come in the dataset's order.
        seed: of the shards' order.

    Returns:
        Dataset of string [n], 1 <= n <= 16, each of one shard. At a damaged record it fails with a `tf.errors.UnknownError` that
        tells file and offset.
    """
    shards = dataset.manifest.split(split).shards
    paths = tf.data.Dataset.from_tensor_slices(
        (
            [dataset.shard_path(shard) for shard in shards],
            np.array([shard.records for shard in shards], np.int64),
        )
    )
    if shuffle:
        paths = paths.shuffle(len(shards), seed=seed, reshuffle_each_iteration=True)
    return paths.interleave(
        # As it is written: it has no Python control flow over tensors to convert.
        tf.autograph.experimental.do_not_convert(_shard_blocks),
        cycle_length=min(_CYCLE_SHARDS, len(shards)) if shuffle else 1,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _shard_blocks(path: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:
    """The records of one shard, in blocks.

    TensorFlow's own error for a damaged record names no file. So its error only ends the records, and as `take` then wants
    more than there were, the dataset behind them is asked: it looks for the damage and reports it. Where all is well,
    it is never reached and costs nothing.
    """
    found = tf.data.TFRecordDataset(path, buffer_size=BUFFER_BYTES).ignore_errors()
    damage = tf.data.Dataset.range(1).map(lambda _: _explain(path, records))
    whole = found.concatenate(damage).take(records)
    # Ignoring errors would try a file that cannot be opened for ever; reading a byte of it first lets that error out. An
    # empty file has none, hence the second element.
    opened = tf.data.FixedLengthRecordDataset(path, 1).concatenate(tf.data.Dataset.from_tensors(b"")).take(1)
    return opened.flat_map(lambda _: whole).batch(_BLOCK_RECORDS)


def _explain(path: tf.Tensor, records: tf.Tensor) -> tf.Tensor:
    record = tf.numpy_function(_find_damage, [path, records], tf.string)
    record.set_shape([])
    return record


def _find_damage(path_bytes: bytes, expected: np.int64) -> bytes:
    """Raises the error that says where a shard is damaged."""
    path, end, count = path_bytes.decode(), 0, 0
    for offset, record in read_records(path):
        end, count = offset + len(record) + FRAME_BYTES, count + 1
    if count != expected:
        raise CorruptionError(
            path, end, f"the file has {count} records, the manifest says {expected}. Convert the dataset again."
        )
    raise DatasetError(
        f"{path} could not be read to its end, but reads well now: a passing error of the storage. Run again."
    )

"""Writing one shard: its records, then its index, each whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tpudata.errors import DatasetError
from tpudata.format.example.wire import MAX_EXAMPLE_BYTES
from tpudata.format.layout import index_name, is_shard_name
from tpudata.format.manifest.manifest import Shard
from tpudata.format.shards.dali_index import check_dali_index, write_dali_index
from tpudata.format.shards.index import BLOCK_RECORDS, ShardIndex
from tpudata.format.tfrecord.record_writer import RecordWriter
from tpudata.format.written_files import WrittenFile
from tpudata.storage import storage_for


def write_shard(
    folder: str,
    name: str,
    records: Iterable[bytes | Sequence[bytes]],
    summary: Callable[[], Mapping[str, Any]] = dict,
    *,
    compression: str | None = None,
    dali_index: bool = False,
    replace: bool = True,
) -> Shard:
    """Write a shard and its index into a dataset's folder, and return the shard.

    Args:
        folder: the dataset's folder.
        name: the shard's file name, see `shard_name`.
        records: serialized records, each whole or in parts, consumed once.
        summary: called after the last record; returns the summary of the records for the index, a JSON object.
        compression: None, or `"gzip"`.
        dali_index: whether to also write the index for DALI, which reads no compressed shards.
        replace: whether to replace an existing shard whose content differs, which otherwise is an error on an object store; see
            `Storage.create`.

    Raises:
        DatasetError, UsageError, StorageError: see `write_shard_files`.
    """
    shard, _ = write_shard_files(
        folder, name, records, summary, compression=compression, dali_index=dali_index, replace=replace
    )
    return shard


def write_shard_files(
    folder: str,
    name: str,
    records: Iterable[bytes | Sequence[bytes]],
    summary: Callable[[], Mapping[str, Any]] = dict,
    *,
    compression: str | None = None,
    dali_index: bool = False,
    replace: bool = True,
) -> tuple[Shard, tuple[WrittenFile, WrittenFile]]:
    """Write a shard and its index into a dataset's folder.

    The shard appears under its name only when all records are written, and its index after it: a shard with a valid index is
    complete. Memory holds one record, half a MB of output and what the storage buffers (4 MiB for a disk, 8 MiB for
    an object store), and at the end some 45 bytes per record.

    Args:
        folder: the dataset's folder.
        name: the shard's file name, see `shard_name`.
        records: serialized records, each whole or in parts, consumed once.
        summary: called after the last record; returns the summary of the records for the index, a JSON object.
        compression: None, or `"gzip"`.
        dali_index: whether to also write the index for DALI, which reads no compressed shards.
        replace: whether to replace an existing shard whose content differs, which otherwise is an error on an object store; see
            `Storage.create`.

    Returns:
        The shard, and its two files, shard and index, which must still be as written when the manifest is written.

    Raises:
        DatasetError: there are no records, one is larger than a `tf.train.Example` may be, or the name is invalid; nothing was
            written.
        UsageError: an unknown compression, or a compressed shard with `dali_index`.
        StorageError: a file could not be written.
    """
    if not is_shard_name(name):
        raise DatasetError(f"Shard {name!r}: invalid name (expected SPLIT-NNNNN-of-NNNNN.tfrecord). Use shard_name.")
    if dali_index:
        check_dali_index(name, compression)
    storage = storage_for(folder)
    with storage.create(storage.join(folder, name), replace=replace) as file:
        writer = RecordWriter(file, BLOCK_RECORDS, compression)
        for record in records:
            size = writer.write(record) if isinstance(record, bytes) else writer.write(*record)
            if size > MAX_EXAMPLE_BYTES:
                raise DatasetError(
                    f"{name}: a record is too large (got {size} bytes, expected at most {MAX_EXAMPLE_BYTES} in a tf.train.Example)."
                    " Split it into several."
                )
        written = writer.finish()
        if len(written.block_crc32c) == 0:
            raise DatasetError(f"{name}: no records to write. Pass 1 or more.")
    index = ShardIndex.from_written(written, summary())
    index_bytes = index.to_bytes()
    if dali_index:
        write_dali_index(folder, name, index)
    with storage.create(storage.join(folder, index_name(name)), replace=replace) as file:
        file.write(index_bytes)
    shard = Shard(name=name, records=index.records, bytes=index.shard_bytes, crc32c=index.shard_crc32c)
    return shard, (WrittenFile(name, shard.bytes, shard.crc32c), WrittenFile.of(index_name(name), index_bytes))

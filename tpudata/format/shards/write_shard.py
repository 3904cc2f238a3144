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
    """Write a shard and its index into a dataset's folder, and return the shard; raises what `write_shard_files` raises.

    Args:
        folder: the dataset's folder.
        name: the shard's file name, see `shard_name`.
        records: serialised records, each whole or in parts, consumed once.
        summary: called after the last record: what the index should say about them, a JSON object.
        compression: None, or `"gzip"`.
        dali_index: also write the index for DALI, which takes no compression.
        replace: whether a shard of other bytes may be there already; see `Storage.create`.
    """
    return write_shard_files(
        folder, name, records, summary, compression=compression, dali_index=dali_index, replace=replace
    )[0]


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
    """Write a shard and its index into a dataset's folder, and return the shard and both files.

    The shard appears under its name only when all records are written, and its index after it: a shard with a valid index is
    complete. Memory holds one record, half a MB of output and what the storage buffers (4 MiB for a disk, 8 MiB for
    an object store), and at the end some 45 bytes per record.

    Args:
        folder: the dataset's folder.
        name: the shard's file name, see `shard_name`.
        records: serialised records, each whole or in parts, consumed once.
        summary: called after the last record: what the index should say about them, a JSON object.
        compression: None, or `"gzip"`.
        dali_index: also write the index for DALI, which takes no compression.
        replace: whether a shard of other bytes may be there already; see `Storage.create`.

    Raises:
        DatasetError: there were no records, one has more bytes than a `tf.train.Example` may have, or the name is not of that
            form; nothing was written.
        UsageError: another compression, or one with `dali_index`.
        StorageError: a file could not be written.
    """
    if not is_shard_name(name):
        raise DatasetError(f"Shard {name!r}: a shard is called SPLIT-NNNNN-of-NNNNN.tfrecord, see shard_name.")
    if dali_index:
        check_dali_index(name, compression)
    storage = storage_for(folder)
    with storage.create(storage.join(folder, name), replace=replace) as file:
        writer = RecordWriter(file, BLOCK_RECORDS, compression)
        for record in records:
            size = writer.write(record) if isinstance(record, bytes) else writer.write(*record)
            if size > MAX_EXAMPLE_BYTES:
                raise DatasetError(
                    f"{name}: a record of {size} bytes; a tf.train.Example has {MAX_EXAMPLE_BYTES} at most."
                )
        written = writer.finish()
        if not len(written.block_crc32c):
            raise DatasetError(f"{name}: no records to write; a shard is never empty.")
    index = ShardIndex.of(written, summary())
    data = index.to_bytes()
    if dali_index:
        write_dali_index(folder, name, index)
    with storage.create(storage.join(folder, index_name(name)), replace=replace) as file:
        file.write(data)
    shard = Shard(name=name, records=index.records, bytes=index.shard_bytes, crc32c=index.shard_crc32c)
    return shard, (WrittenFile(name, shard.bytes, shard.crc32c), WrittenFile.of(index_name(name), data))

"""The optional index that NVIDIA DALI and the `tfrecord` package read: a text file per shard.

`DIR/index/train-00000-of-00012.idx` has a line for each record, in the order of the shard: the byte offset of its header, a
space, and its size in bytes, header and footer included, as DALI's tfrecord2idx writes it. DALI reads no compressed shards, so a
compressed dataset has no index for DALI.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tpudata.errors import UsageError
from tpudata.format.dataset import open_dataset
from tpudata.format.layout import dali_index_name
from tpudata.format.manifest.manifest import MANIFEST_NAME, Manifest, list_shards
from tpudata.format.shards.index import ShardIndex
from tpudata.storage import for_each, storage_for


def encode_dali_index(index: ShardIndex) -> bytes:
    """Return the content of the index for DALI of a shard that is not compressed."""
    offsets = index.offsets.astype(np.int64)
    offsets_and_sizes = zip(offsets[:-1].tolist(), np.diff(offsets).tolist(), strict=True)
    return "".join(f"{offset} {size}\n" for offset, size in offsets_and_sizes).encode()


def write_dali_index(folder: str, shard: str, index: ShardIndex) -> None:
    """Write the index for DALI of one shard of a dataset's folder."""
    storage = storage_for(folder)
    with storage.create(storage.join(folder, dali_index_name(shard))) as file:
        file.write(encode_dali_index(index))


def add_dali_index(folder: str) -> Manifest:
    """Write the index for DALI of every shard of a complete dataset, and note it in the manifest.

    Returns:
        The dataset's manifest.

    Raises:
        UsageError: the shards are compressed.
        DatasetError: the folder has no complete dataset, or an index does not belong to its shard.
        CorruptionError: an index is damaged.
        StorageError: a file could not be read or written.
    """
    dataset = open_dataset(folder)
    check_dali_index(folder, dataset.manifest.compression)
    for_each(
        folder, lambda shard: write_dali_index(folder, shard.name, dataset.index(shard)), list_shards(dataset.manifest)
    )
    manifest = dataclasses.replace(dataset.manifest, dali_index=True)
    storage = storage_for(folder)
    with storage.create(storage.join(folder, MANIFEST_NAME)) as file:
        file.write(manifest.to_bytes())
    return manifest


def check_dali_index(subject: str, compression: str | None) -> None:
    """Raise UsageError if shards of this compression cannot have an index for DALI.

    Args:
        subject: the flag, folder or shard that the message begins with.
        compression: compression of the shards; None, no compression, is allowed.
    """
    if compression is not None:
        raise UsageError(
            f"{subject}: DALI reads no compressed shards (compression {compression!r}). Convert with --compression=none."
        )

"""Whether the shards of a split are there."""

from __future__ import annotations

from tpudata.errors import CorruptionError, DatasetError
from tpudata.format import Dataset
from tpudata.storage import storage_for


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

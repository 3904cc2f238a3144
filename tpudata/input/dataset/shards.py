"""Check that the shards of a split exist."""

from __future__ import annotations

from tpudata.errors import CorruptionError, DatasetError
from tpudata.format import Dataset, Shard
from tpudata.storage import storage_for


def check_shards(dataset: Dataset, split: str) -> None:
    """Check that the shards of a split exist and have their sizes, without reading them.

    A shard in quarantine must have the size that it had when its damage was found.

    Raises:
        DatasetError: the split has no shards, or one is missing.
        CorruptionError: the size of a shard differs from the manifest.
    """
    dataset.kept(split)
    sizes = {entry.name: entry.size for entry in storage_for(dataset.path).list(dataset.path)}
    for shard in dataset.manifest.split(split).shards:
        size = sizes.get(shard.name)
        # The size in the manifest, or the size when damage was found.
        expected = dataset.quarantine.of(shard).bytes
        if size is None and expected:
            raise DatasetError(
                f"{dataset.shard_path(shard)}: the shard is missing. Restore it, or convert the dataset again."
            )
        if size is not None and size != expected:
            raise CorruptionError(dataset.shard_path(shard), min(size, shard.bytes), _reason(size, expected, shard))


def _reason(size: int, expected: int, shard: Shard) -> str:
    if expected != shard.bytes:
        return (
            f"the file has {size} bytes (expected {expected}, as when it was put into quarantine). Run `tpudata verify"
            " --quarantine` again."
        )
    return f"the file has {size} bytes, the manifest says {shard.bytes}. Restore it, or convert the dataset again."

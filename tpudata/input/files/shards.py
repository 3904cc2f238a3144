"""Check that the shards of a split exist."""

from __future__ import annotations

from tpudata.format import Dataset
from tpudata.format.shards.stored_shards import find_changed_shard


def check_shards(dataset: Dataset, split: str) -> None:
    """Check that the shards of a split exist and have their sizes, and their checksums where the storage lists them.

    Raises:
        DatasetError: the split has no shards, or one is missing.
        CorruptionError: the size or the checksum of a shard differs from the manifest.
    """
    dataset.kept(split)
    changed = find_changed_shard(dataset, split)
    if changed is not None:
        raise changed

"""The shards of a split as they are stored, compared with the manifest without reading them."""

from __future__ import annotations

from tpudata.errors import CorruptionError, DatasetError
from tpudata.format.dataset import Dataset
from tpudata.format.manifest.manifest import Shard
from tpudata.storage import storage_for


def find_changed_shard_error(dataset: Dataset, split: str) -> DatasetError | None:
    """Return the error for the first shard that is missing or differs from the manifest; None if every shard matches it.

    Sizes are compared, and checksums if the store lists them: a file of another conversion may have the same size. A shard in
    quarantine must have the size that it had when its damage was found, 0 if it was missing.

    Raises:
        DatasetError: the split does not exist.
        StorageError: the dataset's folder cannot be listed.
    """
    entries = {entry.name: entry for entry in storage_for(dataset.path).list(dataset.path)}
    for shard in dataset.manifest.split(split).shards:
        path, entry = dataset.shard_path(shard), entries.get(shard.name)
        # The size in the manifest, or the size when damage was found: 0 if the shard was missing then.
        expected_size = dataset.quarantine.for_shard(shard).bytes
        if entry is None:
            if expected_size:
                return DatasetError(f"{path}: the shard is missing. Restore it, or convert the dataset again.")
            continue
        if entry.size != expected_size:
            difference = _describe_difference(entry.size, expected_size, shard)
            # The damage begins where the shorter one ends, the file as stored or as written.
            return CorruptionError(path, min(entry.size, shard.bytes), difference)
        # Readers would not notice another file of this size, since its records match their own checksums.
        if entry.crc32c not in (None, shard.crc32c) and shard.name not in dataset.quarantine.shards:
            reason = (
                f"it is another file than the one that was written: got CRC-32C {entry.crc32c:08x}, expected"
                f" {shard.crc32c:08x}."
            )
            return CorruptionError(path, 0, f"{reason} Restore it, or convert the dataset again.")
    return None


def _describe_difference(size: int, expected_size: int, shard: Shard) -> str:
    """Return how the size of a shard's file differs, with a fix.

    Args:
        size: size of the file.
        expected_size: size in the manifest, or for a shard in quarantine the size when its damage was found.
        shard: the shard's entry in the manifest.
    """
    if expected_size != shard.bytes:
        return (
            f"the file has {size} bytes (expected {expected_size}, as when it was put into quarantine). Run `tpudata verify"
            " --quarantine` again."
        )
    return f"the file has {size} bytes, the manifest says {shard.bytes}. Restore it, or convert the dataset again."

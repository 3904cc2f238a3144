"""The shards of a split as they are stored, compared with the manifest without reading them."""

from __future__ import annotations

from tpudata.errors import CorruptionError, DatasetError
from tpudata.format.dataset import Dataset
from tpudata.format.manifest.manifest import Shard
from tpudata.storage import storage_for


def find_changed_shard(dataset: Dataset, split: str) -> DatasetError | None:
    """Return the error for the first shard that is missing or differs from the manifest, or None.

    An object store lists checksums, too, which are compared: of shards of one size, another may stand in place of one.
    A shard in quarantine must have the size that it had when its damage was found.

    Raises:
        DatasetError: there is no such split.
        StorageError: the dataset's folder cannot be listed.
    """
    entries = {entry.name: entry for entry in storage_for(dataset.path).list(dataset.path)}
    for shard in dataset.manifest.split(split).shards:
        entry = entries.get(shard.name)
        size = None if entry is None else entry.size
        # The size in the manifest, or the size when damage was found.
        expected = dataset.quarantine.of(shard).bytes
        if size is None and expected:
            return DatasetError(
                f"{dataset.shard_path(shard)}: the shard is missing. Restore it, or convert the dataset again."
            )
        if size is not None and size != expected:
            return CorruptionError(
                dataset.shard_path(shard), min(size, shard.bytes), _describe_difference(size, expected, shard)
            )
        # Another shard of the same size: the checksums of its records match.
        crc = None if entry is None else entry.crc32c
        if crc not in (None, shard.crc32c) and shard.name not in dataset.quarantine.shards:
            reason = (
                f"it is another file than the one that was written: got CRC-32C {crc:08x}, expected {shard.crc32c:08x}."
            )
            return CorruptionError(dataset.shard_path(shard), 0, f"{reason} Restore it, or convert the dataset again.")
    return None


def _describe_difference(size: int, expected: int, shard: Shard) -> str:
    if expected != shard.bytes:
        return (
            f"the file has {size} bytes (expected {expected}, as when it was put into quarantine). Run `tpudata verify"
            " --quarantine` again."
        )
    return f"the file has {size} bytes, the manifest says {shard.bytes}. Restore it, or convert the dataset again."

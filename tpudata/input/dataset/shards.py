"""Check that the shards of a split exist."""

from __future__ import annotations

from tpudata.errors import CorruptionError, DatasetError
from tpudata.format import Dataset, Shard
from tpudata.storage import storage_for


def check_shards(dataset: Dataset, split: str) -> None:
    """Check that the shards of a split exist and have their sizes, without reading them.

    An object store lists checksums, too, which are compared: of shards of one size, another may stand in place of one.
    A shard in quarantine must have the size that it had when its damage was found.

    Raises:
        DatasetError: the split has no shards, or one is missing.
        CorruptionError: the size or the checksum of a shard differs from the manifest.
    """
    dataset.kept(split)
    entries = {entry.name: entry for entry in storage_for(dataset.path).list(dataset.path)}
    for shard in dataset.manifest.split(split).shards:
        entry = entries.get(shard.name)
        size = None if entry is None else entry.size
        # The size in the manifest, or the size when damage was found.
        expected = dataset.quarantine.of(shard).bytes
        if size is None and expected:
            raise DatasetError(
                f"{dataset.shard_path(shard)}: the shard is missing. Restore it, or convert the dataset again."
            )
        if size is not None and size != expected:
            raise CorruptionError(dataset.shard_path(shard), min(size, shard.bytes), _reason(size, expected, shard))
        # Another shard of the same size: the checksums of its records match.
        crc = None if entry is None else entry.crc32c
        if crc not in (None, shard.crc32c) and shard.name not in dataset.quarantine.shards:
            reason = (
                f"it is another file than the one that was written: got CRC-32C {crc:08x}, expected {shard.crc32c:08x}."
            )
            raise CorruptionError(dataset.shard_path(shard), 0, f"{reason} Restore it, or convert the dataset again.")


def _reason(size: int, expected: int, shard: Shard) -> str:
    if expected != shard.bytes:
        return (
            f"the file has {size} bytes (expected {expected}, as when it was put into quarantine). Run `tpudata verify"
            " --quarantine` again."
        )
    return f"the file has {size} bytes, the manifest says {shard.bytes}. Restore it, or convert the dataset again."

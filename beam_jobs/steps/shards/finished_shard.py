"""Shards that a killed run has finished, and that a resumed run keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

from beam_jobs.output.rejects import rejects_name
from tpudata.errors import CorruptionError
from tpudata.format import ShardIndex, index_name
from tpudata.format.layout import dali_index_name, keys_name
from tpudata.format.shards.dali_index import write_dali_index
from tpudata.format.written_files import WrittenFile
from tpudata.storage import storage_for

# Keys of `ShardIndex.summary`: a digest of the inputs, the converter's summary, and the number of rejects by kind.
INPUTS, RECORDS, REJECTED = "inputs", "records", "rejected"


@dataclasses.dataclass(frozen=True)
class FinishedShard:
    """A whole shard and the files that belong to it.

    Attributes:
        index: index of the shard.
        files: the shard and its other files, as they were found.
    """

    index: ShardIndex
    files: tuple[WrittenFile, ...]

    @property
    def summary_json(self) -> Any:
        """The converter's summary of the records, as JSON."""
        return self.index.summary[RECORDS]

    @property
    def rejected(self) -> dict[str, int]:
        """Number of inputs that were rejected, by kind."""
        return dict(self.index.summary[REJECTED])


def find_finished(
    output: str, name: str, digest: str, *, compression: str | None, needs_keys: bool
) -> FinishedShard | None:
    """Return the finished shard with a name; None unless it is whole and was made from the same inputs in the same way.

    Args:
        output: folder of the dataset.
        name: the shard's file name.
        digest: digest of everything that decides the shard's bytes, from `write_shards.py`.
        compression: compression that the shard must have; None for no compression.
        needs_keys: whether the shard must have a file of keys.
    """
    storage = storage_for(output)
    index_path = storage.join(output, index_name(name))
    shard = storage.stat(storage.join(output, name))
    if shard is None or storage.stat(index_path) is None:
        return None
    try:
        index_bytes = storage.read(index_path)
        index = ShardIndex.from_bytes(index_bytes, index_path)
    except CorruptionError:
        return None
    # Only some stores report a checksum.
    indexed_facts = index.shard_bytes, index.compression, index.summary.get(INPUTS)
    if indexed_facts != (shard.size, compression, digest) or shard.crc32c not in (None, index.shard_crc32c):
        return None
    files = [WrittenFile(name, shard.size, index.shard_crc32c), WrittenFile.of(index_name(name), index_bytes)]
    rejects = storage.stat(storage.join(output, rejects_name(name)))
    # A list of rejects next to a shard without rejects is another run's; without its list, a shard with rejects is not whole.
    if (rejects is not None) != bool(index.summary[REJECTED]):
        return None
    keys = storage.stat(storage.join(output, keys_name(name))) if needs_keys else None
    if needs_keys and keys is None:
        return None
    for other_name, entry in ((rejects_name(name), rejects), (keys_name(name), keys)):
        if entry is not None:
            files.append(WrittenFile(other_name, entry.size, entry.crc32c))
    return FinishedShard(index, tuple(files))


def write_or_remove_dali_index(output: str, name: str, shard_index: ShardIndex | None, *, has_dali_index: bool) -> None:
    """Write a kept shard's index for NVIDIA DALI if shards get one; remove an index that a killed run left if they do not.

    Args:
        output: folder of the dataset.
        name: the shard's file name.
        shard_index: the shard's index if the shard is kept; None writes nothing, since the shard is written again.
        has_dali_index: whether shards get an index for DALI.
    """
    storage = storage_for(output)
    if not has_dali_index:
        storage.delete(storage.join(output, dali_index_name(name)))
    elif shard_index is not None:
        write_dali_index(output, name, shard_index)


def remove_shard(output: str, name: str) -> None:
    """Remove the files that a run with different inputs left under the name of a shard."""
    storage = storage_for(output)
    for file_name in (name, index_name(name), keys_name(name), dali_index_name(name), rejects_name(name)):
        storage.delete(storage.join(output, file_name))

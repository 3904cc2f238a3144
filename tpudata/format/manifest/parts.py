"""Parts of a manifest: shards, splits, and the origin of the dataset."""

from __future__ import annotations

import dataclasses

from tpudata.console.tables import counted
from tpudata.errors import DatasetError
from tpudata.format.layout import is_shard_name


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file of a split.

    Attributes:
        name: file name inside the dataset's folder, such as `train-00000-of-00012.tfrecord`.
        records: number of records; never 0.
        bytes: size of the file, compressed or not.
        crc32c: CRC-32C of the file's bytes, as an unsigned 32-bit integer.

    Raises:
        DatasetError: the name is not of the form of `shard_name`, or the shard is empty.
    """

    name: str
    records: int
    bytes: int
    crc32c: int

    def __post_init__(self) -> None:
        # Readers open what a manifest names, and --overwrite deletes it: a name must never lead out of the folder.
        if not is_shard_name(self.name):
            raise DatasetError(
                f"Shard {self.name!r}: a shard is a file of the dataset's own folder, called"
                " SPLIT-NNNNN-of-NNNNN.tfrecord. Restore the manifest, or convert the dataset again."
            )
        if self.records <= 0 or self.bytes <= 0:
            raise DatasetError(
                f"Shard {self.name}: {counted(self.records, 'record')} in {self.bytes} bytes; a shard is never empty."
            )


@dataclasses.dataclass(frozen=True)
class Split:
    """A named part of a dataset, such as `train`.

    Attributes:
        shards: in order.
        decoded_bytes: what all records take once decoded (images as uint8), each picture in its own size and channels. What a
            reader makes of them may take more: it brings all to one shape.
    """

    shards: tuple[Shard, ...]
    decoded_bytes: int = 0

    @property
    def records(self) -> int:
        """Number of records in all shards."""
        return sum(shard.records for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size of all shards on disk, in bytes."""
        return sum(shard.bytes for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class Source:
    """Origin of a dataset.

    Attributes:
        input: the input as it was given.
        files: number of input records found.
        bytes: their size.
        fingerprint: digest over the sorted (key, size) of every input record; equal for equal listings.
        ignored_files: how many files were skipped by name (hidden files, `Thumbs.db`).
    """

    input: str
    files: int
    bytes: int
    fingerprint: str
    ignored_files: int = 0

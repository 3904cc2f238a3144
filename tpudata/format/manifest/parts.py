"""Parts of a manifest: shards, splits, and the origin of the dataset."""

from __future__ import annotations

import dataclasses

from tpudata.console.tables import count_text
from tpudata.errors import DatasetError
from tpudata.format.layout import is_shard_name

# Another folder, because --overwrite does not delete a dataset whose manifest it cannot read.
RESTORE = "Restore the manifest, or convert into another folder."


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
        # Readers open these files and --overwrite deletes them, so a name must not lead out of the folder.
        if not is_shard_name(self.name):
            raise DatasetError(f"Shard {self.name!r}: invalid name (expected SPLIT-NNNNN-of-NNNNN.tfrecord). {RESTORE}")
        if self.records <= 0 or self.bytes <= 0:
            raise DatasetError(
                f"Shard {self.name}: it is empty (got {count_text(self.records, 'record')} in {self.bytes} bytes). {RESTORE}"
            )


@dataclasses.dataclass(frozen=True)
class Split:
    """A named part of a dataset, such as `train`.

    Attributes:
        shards: shards in order.
        decoded_bytes: size of all decoded records (images as uint8), each image in its own size and channels. A reader, which
            brings all images to one shape, may need more.
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
        bytes: total size of these records in the input.
        fingerprint: digest over the sorted (key, size) of every input record; equal for equal listings.
        ignored_files: number of files that were skipped by name (hidden files, `Thumbs.db`).
    """

    input: str
    files: int
    bytes: int
    fingerprint: str
    ignored_files: int = 0

"""A dataset on disk, opened: its manifest, the paths of its shards, and its records in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import google_crc32c

from tpudata.errors import CorruptionError, DatasetError
from tpudata.format.example import Value, decode_example
from tpudata.format.index import ShardIndex
from tpudata.format.layout import LABELS_NAME, index_name
from tpudata.format.manifest import MANIFEST_NAME, Manifest, Shard
from tpudata.format.tfrecord import read_records
from tpudata.storage import storage_for
from tpudata.tables import counted


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A complete dataset on disk; `open_dataset` makes it.

    Attributes:
        path: its folder, local or gs://.
        manifest: what is in it.
    """

    path: str
    manifest: Manifest

    def shard_path(self, shard: Shard) -> str:
        """Full path of a shard."""
        return storage_for(self.path).join(self.path, shard.name)

    def index(self, shard: Shard) -> ShardIndex:
        """Reads the index of a shard.

        Raises:
            DatasetError: the index does not belong to this shard.
            CorruptionError: the index is damaged.
        """
        path = storage_for(self.path).join(self.path, index_name(shard.name))
        index = ShardIndex.from_bytes(storage_for(path).read(path), path)
        said = index.records, index.shard_bytes, index.shard_crc32c, index.compression
        if said != (shard.records, shard.bytes, shard.crc32c, self.manifest.compression):
            raise DatasetError(
                f"{path} describes another shard ({counted(index.records, 'record')}, {index.shard_bytes} bytes)"
                f" than the"
                f" manifest does ({counted(shard.records, 'record')}, {shard.bytes} bytes). Convert the dataset again."
            )
        return index

    def labels(self) -> tuple[str, ...] | None:
        """Class names in the order of their labels, or None where the dataset has no classes.

        An append that was killed at its very end has added names that the manifest does not count yet; they are left out.

        Raises:
            CorruptionError: labels.txt is not UTF-8.
            DatasetError: it has not as many names as the manifest counts.
        """
        if self.manifest.labels is None:
            return None
        path = storage_for(self.path).join(self.path, LABELS_NAME)
        data = storage_for(path).read(path)
        try:
            names = tuple(data.decode().splitlines())
        except UnicodeDecodeError as error:
            raise CorruptionError(
                path, error.start, "the class names are not UTF-8. Restore the file, or convert the dataset again."
            ) from None
        if len(names) > self.manifest.labels and self._begins_with_labels(data):
            return names[: self.manifest.labels]
        if len(names) != self.manifest.labels:
            raise DatasetError(
                f"{path} has {counted(len(names), 'name')}, the manifest counts"
                f" {counted(self.manifest.labels, 'class', 'classes')}."
            )
        return names

    def _begins_with_labels(self, data: bytes) -> bool:
        """Whether the first lines of labels.txt are those that the manifest was written with."""
        lines = data.splitlines(keepends=True)[: self.manifest.labels]
        return bool(google_crc32c.value(b"".join(lines)) == self.manifest.labels_crc32c)

    def examples(self, split: str) -> Iterator[dict[str, Value]]:
        """Yields the split's records in order, decoded to `{feature name: list of bytes, ints or floats}`.

        Raises:
            CorruptionError: a record is damaged; names file and offset.
        """
        for shard in self.manifest.split(split).shards:
            path = self.shard_path(shard)
            for offset, record in read_records(path, self.manifest.compression):
                yield decode_example(record, path=path, offset=offset)


def open_dataset(path: str) -> Dataset:
    """Opens the dataset in a folder.

    Args:
        path: the folder, local or gs://.

    Raises:
        DatasetError: the folder has no manifest, or not one that this version reads.
    """
    storage = storage_for(path)
    manifest_path = storage.join(path, MANIFEST_NAME)
    if storage.stat(manifest_path) is None:
        raise DatasetError(
            f"{path} has no {MANIFEST_NAME}, so it is not a complete dataset. Name a folder that `tpudata convert` has finished."
        )
    return Dataset(path, Manifest.from_bytes(storage.read(manifest_path), manifest_path))

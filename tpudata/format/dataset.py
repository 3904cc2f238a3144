"""An opened dataset: its manifest, the paths of its shards, and its records in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt

from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError, DatasetError
from tpudata.format.example.decode import decode_example
from tpudata.format.example.wire import Value
from tpudata.format.layout import LABELS_NAME, index_name
from tpudata.format.manifest.manifest import MANIFEST_NAME, Manifest, Shard, Split
from tpudata.format.quarantine import Quarantine, read_quarantine
from tpudata.format.shards.index import ShardIndex
from tpudata.format.shards.indexed_records import read_indexed
from tpudata.format.tfrecord.framing import read_records
from tpudata.storage import storage_for

_RESTORE = "Restore the file, or convert the dataset again."


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A complete dataset on disk; `open_dataset` makes it.

    Attributes:
        path: its folder: a local path, or a URL such as gs://BUCKET/FOLDER.
        manifest: its contents.
        quarantine: damaged records, which readers skip.
    """

    path: str
    manifest: Manifest
    quarantine: Quarantine = dataclasses.field(default_factory=Quarantine, kw_only=True)

    def kept(self, split: str) -> Split:
        """Return a split as readers see it: without records in quarantine, and without shards that have no other records.

        Raises:
            DatasetError: the split does not exist, or it has no records outside quarantine.
        """
        complete_split = self.manifest.split(split)
        kept_counts = [
            (shard, shard.records - self.quarantine.for_shard(shard).count) for shard in complete_split.shards
        ]
        shards = tuple(dataclasses.replace(shard, records=count) for shard, count in kept_counts if count)
        if not shards:
            raise DatasetError(f"{self.path}: split {split!r} has no records. Choose another split.")
        return dataclasses.replace(complete_split, shards=shards)

    def kept_runs(self, shard: Shard) -> npt.NDArray[np.int64]:
        """Return the runs of a shard's records that are not in quarantine, each [first, stop): int64 [runs, 2]."""
        return self.quarantine.for_shard(shard).kept_runs(shard.records)

    def shard_path(self, shard: Shard) -> str:
        """Return the full path of a shard."""
        return storage_for(self.path).join(self.path, shard.name)

    def index(self, shard: Shard) -> ShardIndex:
        """Read the index of a shard, and compare it with the manifest.

        Raises:
            DatasetError: the index does not belong to this shard.
            CorruptionError: the index is damaged.
        """
        path = storage_for(self.path).join(self.path, index_name(shard.name))
        index = ShardIndex.from_bytes(storage_for(path).read(path), path)
        described_shard = index.records, index.shard_bytes, index.shard_crc32c, index.compression
        if described_shard != (shard.records, shard.bytes, shard.crc32c, self.manifest.compression):
            raise DatasetError(
                f"{path} describes another shard ({count_text(index.records, 'record')}, {index.shard_bytes} bytes) than"
                f" the manifest does ({count_text(shard.records, 'record')}, {shard.bytes} bytes). Convert the dataset"
                " again."
            )
        return index

    def labels(self) -> tuple[str, ...] | None:
        """Return the class names in the order of their labels; None if the dataset has no classes.

        An append that was killed just before its end leaves further names at the end of the file; they are skipped if the manifest
        has the checksum of the names before them.

        Raises:
            CorruptionError: labels.txt is not UTF-8, or its names do not match the manifest's checksum.
            DatasetError: the number of names differs from the manifest's, and no names can be skipped.
        """
        if self.manifest.labels is None:
            return None
        path = storage_for(self.path).join(self.path, LABELS_NAME)
        data = storage_for(path).read(path)
        try:
            names = tuple(data.decode().splitlines())
        except UnicodeDecodeError as error:
            raise CorruptionError(path, error.start, f"the class names are not UTF-8. {_RESTORE}") from None
        # `manifest.labels` is the number of classes.
        lines = data.splitlines(keepends=True)[: self.manifest.labels]
        # Always False for the manifest of an earlier version, which has no checksum.
        has_written_names = google_crc32c.value(b"".join(lines)) == self.manifest.labels_crc32c
        if len(names) > self.manifest.labels and has_written_names:
            return names[: self.manifest.labels]
        if len(names) != self.manifest.labels:
            raise DatasetError(
                f"{path} has {count_text(len(names), 'name')}, the manifest counts"
                f" {count_text(self.manifest.labels, 'class', 'classes')}. {_RESTORE}"
            )
        if self.manifest.labels_crc32c is not None and not has_written_names:
            raise CorruptionError(path, 0, f"the class names do not match the checksum in the manifest. {_RESTORE}")
        return names

    def examples(self, split: str) -> Iterator[dict[str, Value]]:
        """Yield the split's records in order, decoded to `{feature name: list of bytes, ints or floats}`.

        Records in quarantine are skipped.

        Raises:
            DatasetError: the split does not exist, or the index of a shard with records in quarantine belongs to another shard.
            CorruptionError: a record is damaged, or the index of a shard with records in quarantine; the message names file and
                offset.
        """
        for shard in self.manifest.split(split).shards:
            path = self.shard_path(shard)
            if shard.name in self.quarantine.shards:
                records = self._read_kept_records(shard)
            else:
                # Every record is read in turn, so no index is needed.
                records = read_records(path, self.manifest.compression)
            for offset, record in records:
                yield decode_example(record, path=path, offset=offset)

    def _read_kept_records(self, shard: Shard) -> Iterator[tuple[int, bytes]]:
        """Yield (byte offset, data) of a shard's records that are not in quarantine."""
        path, index = self.shard_path(shard), self.index(shard)
        for first, stop in self.kept_runs(shard).tolist():
            yield from read_indexed(path, index, first, stop)


def open_dataset(path: str) -> Dataset:
    """Open the dataset in a folder.

    Args:
        path: the folder: a local path, or a URL such as gs://BUCKET/FOLDER.

    Raises:
        DatasetError: the folder has no manifest, or one that this version cannot read.
        CorruptionError: the list of records in quarantine is damaged.
    """
    storage = storage_for(path)
    manifest_path = storage.join(path, MANIFEST_NAME)
    if storage.stat(manifest_path) is None:
        raise DatasetError(
            f"{path} has no {MANIFEST_NAME}, so it is not a complete dataset. Name a folder that `tpudata convert` has finished."
        )
    manifest = Manifest.from_bytes(storage.read(manifest_path), manifest_path)
    return Dataset(path, manifest, quarantine=read_quarantine(path, manifest))

"""Files of records without a manifest, opened as a dataset: one scan finds what a manifest and indexes would hold."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tpudata._version import __version__
from tpudata.console.tables import count_text
from tpudata.errors import DatasetError
from tpudata.format import Dataset, Manifest, Shard, ShardIndex, Source, Split, shard_name
from tpudata.format.shards.index import BLOCK_RECORDS
from tpudata.format.tfrecord.frame_scan import Offsets
from tpudata.input.files.paths import find_files
from tpudata.input.files.record_files import KINDS, RecordFiles
from tpudata.input.files.split_files import SplitFiles

SPLIT = "records"
# Number of files that are scanned at the same time.
_SCANNERS = 32


@dataclasses.dataclass(frozen=True)
class PlainDataset(Dataset):
    """Files of records as a dataset of one split, `SPLIT`; `open_files` makes it.

    Its shards have made-up names in the manifest; `shard_path` returns the files. The index of a shard has no checksums.

    Attributes:
        paths: by shard.
        indexes: by shard.
    """

    paths: dict[str, str]
    indexes: dict[str, ShardIndex]

    def shard_path(self, shard: Shard) -> str:
        """Return the full path of a shard."""
        return self.paths[shard.name]

    def index(self, shard: Shard) -> ShardIndex:
        """Return the index of a shard, from the scan."""
        return self.indexes[shard.name]


def open_files(files: RecordFiles) -> SplitFiles:
    """Find the files and the records in them.

    Empty files are skipped. Data that are appended to a file later are ignored.

    Raises:
        DatasetError: a file does not exist, or there are no records.
        CorruptionError: a file is cut, damaged or compressed; names file and offset.
        UsageError: a file is listed twice.
        StorageError: a file cannot be read.
    """
    kind = next(kind for description, kind in KINDS.items() if isinstance(files, description))
    entries = find_files(files.files)
    with ThreadPoolExecutor(_SCANNERS, thread_name_prefix="tpudata-scan") as pool:
        offsets = list(pool.map(lambda file: kind.scan(files, file), entries))
    full = [(file, starts) for file, starts in zip(entries, offsets, strict=True) if len(starts) > 1]
    if not full:
        raise DatasetError(
            f"files={files.files!r}: {count_text(len(entries), 'file')} have no records. Name files that do."
        )
    shards, paths, indexes = [], {}, {}
    for file_index, (file, starts) in enumerate(full):
        name = shard_name(SPLIT, file_index, len(full))
        shards.append(Shard(name, len(starts) - 1, file.size, 0))
        paths[name], indexes[name] = file.path, _make_index(starts, file.size)
    records, size = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
    manifest = Manifest(
        layout="",
        splits={SPLIT: Split(tuple(shards))},
        features=tuple(files.features),
        source=Source(str(files.files), records, size, ""),
        created_by=__version__,
    )
    return kind(PlainDataset(str(files.files), manifest, paths, indexes), SPLIT, files)


def _make_index(offsets: Offsets, size: int) -> ShardIndex:
    """Return the index of a file of unknown checksum."""
    none = np.zeros(0, np.uint32)
    return ShardIndex(offsets.astype(np.uint64), none, BLOCK_RECORDS, size, 0, None, {})

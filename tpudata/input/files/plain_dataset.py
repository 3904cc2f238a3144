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
from tpudata.input.files.record_files import READERS, RecordFiles
from tpudata.input.files.split_files import SplitFiles

SPLIT = "records"
# Number of files that are scanned at the same time.
_SCANNERS = 32
# Nothing compares the checksums of files without a manifest.
_UNKNOWN_CHECKSUM = 0


@dataclasses.dataclass(frozen=True)
class PlainDataset(Dataset):
    """Files of records as a dataset of one split, `SPLIT`; `open_files` makes it.

    Its shards have made-up names in the manifest; `shard_path` returns the files. The index of a shard has no checksums.

    Attributes:
        paths: path of each shard, by its name.
        indexes: index of each shard, by its name.
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
    """Find the described files, scan them for records, and return them as the only split of a dataset.

    Files without records are skipped. Data that is appended to a file later is ignored.

    Raises:
        DatasetError: a file does not exist or is a folder, or there are no records.
        CorruptionError: a file is truncated, damaged or compressed; the message names file and offset.
        UsageError: a file is listed twice.
        StorageError: a file cannot be read.
    """
    reader_class = next(reader for description_class, reader in READERS.items() if isinstance(files, description_class))
    entries = find_files(files.files)
    with ThreadPoolExecutor(_SCANNERS, thread_name_prefix="tpudata-scan") as pool:
        offsets_of_files = list(pool.map(lambda file: reader_class.scan(files, file), entries))
    # The offsets include the end of the last record, so an empty file has one.
    nonempty = [(file, offsets) for file, offsets in zip(entries, offsets_of_files, strict=True) if len(offsets) > 1]
    if not nonempty:
        raise DatasetError(
            f"files={files.files!r}: no records in {count_text(len(entries), 'file')}. Name files that do."
        )
    shards, paths, indexes = [], {}, {}
    for shard_index, (file, offsets) in enumerate(nonempty):
        name = shard_name(SPLIT, shard_index, len(nonempty))
        shards.append(Shard(name, records=len(offsets) - 1, bytes=file.size, crc32c=_UNKNOWN_CHECKSUM))
        paths[name], indexes[name] = file.path, _make_index(offsets, file.size)
    num_records = sum(shard.records for shard in shards)
    num_bytes = sum(shard.bytes for shard in shards)
    manifest = Manifest(
        layout="",
        splits={SPLIT: Split(tuple(shards))},
        features=tuple(files.features),
        source=Source(str(files.files), num_records, num_bytes, ""),
        created_by=__version__,
    )
    return reader_class(PlainDataset(str(files.files), manifest, paths, indexes), SPLIT, files)


def _make_index(offsets: Offsets, file_bytes: int) -> ShardIndex:
    """Return the index of a file, without checksums."""
    return ShardIndex(
        offsets.astype(np.uint64),
        block_crc32c=np.zeros(0, np.uint32),
        block_records=BLOCK_RECORDS,
        shard_bytes=file_bytes,
        shard_crc32c=_UNKNOWN_CHECKSUM,
        block_offsets=None,
        summary={},
    )

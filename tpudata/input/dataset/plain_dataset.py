"""Files of records without a manifest, opened as a dataset: what a manifest and indexes would say is found by one scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from tpudata._version import __version__
from tpudata.errors import DatasetError
from tpudata.format import Dataset, Manifest, Shard, ShardIndex, Source, Split, shard_name
from tpudata.format.index import BLOCK_RECORDS
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset.record_files import RecordFiles, TextLineFiles, TFRecordFiles, find_files
from tpudata.input.dataset.scan import Offsets, fixed_offsets, frame_offsets, line_offsets
from tpudata.input.source import Columns, Decoder, Strings
from tpudata.storage import Entry
from tpudata.tables import counted

SPLIT = "records"
# Files that are scanned at the same time.
_SCANNERS = 32


@dataclasses.dataclass(frozen=True)
class PlainDataset(Dataset):
    """Files of records as a dataset of one split, `SPLIT`; `open_files` makes it.

    Its shards have names of their own in the manifest; `shard_path` leads to the files. The index of a shard has no checksums.

    Attributes:
        files: the files as their user describes them.
        paths: by shard.
        indexes: by shard.
    """

    files: RecordFiles
    paths: dict[str, str]
    indexes: dict[str, ShardIndex]

    def shard_path(self, shard: Shard) -> str:
        """Full path of a shard."""
        return self.paths[shard.name]

    def index(self, shard: Shard) -> ShardIndex:
        """Where the records of a shard begin, as they were found."""
        return self.indexes[shard.name]

    @property
    def mend(self) -> str:
        """What to do where a record is not as its features say; only those of `TFRecordFiles` can be otherwise."""
        return "Correct features= of TFRecordFiles, or pass parse= to make_input_fn."

    @property
    def has_checksums(self) -> bool:
        """Whether records have checksums of their own."""
        return isinstance(self.files, TFRecordFiles)

    def decoder(self, fields: Sequence[Field]) -> Decoder | None:
        """What takes the records apart, where they are no framed Examples."""
        if isinstance(self.files, TFRecordFiles):
            return None
        if isinstance(self.files, TextLineFiles):
            return Unframed(ends_line=True)
        if all(field.is_whole for field in fields):
            return Unframed(ends_line=False)
        return FixedRecords(self.files.dtype, fields)


def open_files(files: RecordFiles) -> PlainDataset:
    """Finds the files and the records in them.

    Files of no records are passed over. What is appended to a file later is not seen.

    Raises:
        DatasetError: a file is not there, or there are no records.
        CorruptionError: a file is cut, damaged or compressed; names file and offset.
        UsageError: a file comes twice.
        StorageError: a file cannot be read.
    """
    found = find_files(files.files)
    with ThreadPoolExecutor(_SCANNERS, thread_name_prefix="tpudata-scan") as pool:
        offsets = list(pool.map(lambda file: _offsets(files, file), found))
    full = [(file, starts) for file, starts in zip(found, offsets, strict=True) if len(starts) > 1]
    if not full:
        raise DatasetError(f"files={files.files!r}: {counted(len(found), 'file')} have no records. Name files that do.")
    shards, paths, indexes = [], {}, {}
    for number, (file, starts) in enumerate(full):
        name = shard_name(SPLIT, number, len(full))
        shards.append(Shard(name, len(starts) - 1, file.size, 0))
        paths[name], indexes[name] = file.path, _index(starts, file.size)
    records, size = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
    manifest = Manifest(
        layout="",
        splits={SPLIT: Split(tuple(shards))},
        features=tuple(files.features),
        source=Source(str(files.files), records, size, ""),
        created_by=__version__,
    )
    return PlainDataset(str(files.files), manifest, files, paths, indexes)


def _offsets(files: RecordFiles, file: Entry) -> Offsets:
    if isinstance(files, TFRecordFiles):
        return frame_offsets(file)
    if isinstance(files, TextLineFiles):
        return line_offsets(file, files.skip_lines)
    return fixed_offsets(file, files.dtype.itemsize, files.header_bytes, files.footer_bytes)


def _index(offsets: Offsets, size: int) -> ShardIndex:
    """The index of a file of which no checksum is known."""
    none = np.zeros(0, np.uint32)
    return ShardIndex(offsets.astype(np.uint64), none, BLOCK_RECORDS, size, 0, None, {})


class Unframed:
    """Leaves records that stand one behind the other as they are, in the column that `Strings` has.

    Args:
        ends_line: whether a record ends with a line break that is no part of it.
    """

    def __init__(self, *, ends_line: bool) -> None:
        self._ends_line = ends_line

    def decode(self, data: bytes, bounds: npt.NDArray[np.int64], path: str, offset: int) -> Columns:  # noqa: ARG002
        """One column of bytes."""
        ends = bounds.tolist()
        column = np.empty(len(ends) - 1, object)
        for number in range(len(column)):
            record = data[ends[number] : ends[number + 1]]
            column[number] = record.removesuffix(b"\n").removesuffix(b"\r") if self._ends_line else record
        return {Strings.NAME: column}


class FixedRecords:
    """Takes records of one length apart.

    Args:
        dtype: what a record is, a structured dtype.
        fields: the parts that are read.
    """

    def __init__(self, dtype: np.dtype[Any], fields: Sequence[Field]) -> None:
        self._dtype = dtype
        self._fields = fields

    def decode(self, data: bytes, bounds: npt.NDArray[np.int64], path: str, offset: int) -> Columns:  # noqa: ARG002
        """By part, an array [n, *field.shape] in the machine's byte order."""
        records = np.frombuffer(data, self._dtype)
        return {f.feature.name: records[f.feature.name].astype(f.feature.dtype, copy=False) for f in self._fields}

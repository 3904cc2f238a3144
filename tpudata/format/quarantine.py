"""Records that readers skip because they are damaged: DIR/index/quarantine.json, which `tpudata verify --quarantine` writes.

A JSON object:

    version     1
    checksum    CRC-32C of this file, taken while these eight digits are zeros
    shards      by name, an object for each damaged shard:
        crc32c    CRC-32C of the shard as written, so that the entry applies to no other shard
        bytes     size of its file when the damage was found, 0 if it was missing then
        records   the skipped records, ascending: a list [first, stop, reason] for records first, ..., stop - 1 of the shard

Without this file, nothing is skipped.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tpudata.checked_json import CRC32C, TEXT, WHOLE, Entries, FixedList, Items, Keys, abbreviate_value, parse_json
from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError
from tpudata.format.checksums import NO_CHECKSUM, checksum_fits, insert_checksum
from tpudata.format.layout import INDEX_FOLDER
from tpudata.format.manifest.manifest import Manifest, Shard, list_shards
from tpudata.storage import storage_for

QUARANTINE_NAME = f"{INDEX_FOLDER}/quarantine.json"
_VERSION = 1
_SCHEMA = Keys(
    {
        "version": WHOLE,
        "checksum": CRC32C,
        "shards": Entries(Keys({"crc32c": CRC32C, "bytes": WHOLE, "records": Items(FixedList((WHOLE, WHOLE, TEXT)))})),
    }
)
_FIX = "Delete it, and run `tpudata verify --quarantine` again."


class SkippedRecords(NamedTuple):
    """Neighbouring records of a shard that are skipped.

    Attributes:
        first: index of the first one in the shard.
        stop: index of the record after the last one.
        reason: the damage, in words.
    """

    first: int
    stop: int
    reason: str


@dataclasses.dataclass(frozen=True)
class ShardQuarantine:
    """Skipped records of a shard.

    Attributes:
        crc32c: CRC-32C of the shard's file as written.
        bytes: size of the file when the damage was found, 0 if it was missing then.
        records: the skipped records, ascending.
    """

    crc32c: int
    bytes: int
    records: tuple[SkippedRecords, ...]

    @property
    def count(self) -> int:
        """Number of records that are skipped."""
        return sum(stop - first for first, stop, _ in self.records)

    def kept_runs(self, record_count: int) -> npt.NDArray[np.int64]:
        """Return the runs of records that readers keep of the shard, each [first, stop): int64 [runs, 2].

        Args:
            record_count: number of records of the shard, with the skipped ones.
        """
        # The runs before, between and after the skipped runs in `self.records`; empty runs are dropped.
        firsts = [0, *(stop for _, stop, _ in self.records)]
        stops = [*(first for first, _, _ in self.records), record_count]
        runs = [(first, stop) for first, stop in zip(firsts, stops, strict=True) if first < stop]
        return np.array(runs, np.int64).reshape(-1, 2)


@dataclasses.dataclass(frozen=True)
class Quarantine:
    """Skipped records of a dataset.

    Attributes:
        shards: damaged shards by name.
    """

    shards: Mapping[str, ShardQuarantine] = dataclasses.field(default_factory=dict)

    def for_shard(self, shard: Shard) -> ShardQuarantine:
        """Return the skipped records of a shard; if it has none, `records` is empty and `bytes` is the size in the manifest."""
        entry = self.shards.get(shard.name)
        # The entry may be about a shard of the same name that another conversion wrote.
        if entry is None or entry.crc32c != shard.crc32c:
            return ShardQuarantine(shard.crc32c, shard.bytes, ())
        return entry

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        value = {
            "version": _VERSION,
            "checksum": NO_CHECKSUM,
            "shards": {
                name: {"crc32c": f"{shard.crc32c:08x}", "bytes": shard.bytes, "records": shard.records}
                for name, shard in sorted(self.shards.items())
            },
        }
        data = json.dumps(value, indent=1).encode() + b"\n"
        return insert_checksum(data)

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Quarantine:
        """Parse what `to_bytes` wrote.

        Args:
            data: the file's bytes.
            path: path of the file, for messages.

        Raises:
            CorruptionError: the file is damaged, or of another version, or skipped records overlap or do not ascend.
        """
        # None, for a file without a checksum, is also damage.
        if not checksum_fits(data):
            raise CorruptionError(path, 0, f"the checksum does not match the content. {_FIX}")
        try:
            value = parse_json(data)
            # The version is checked first, since the schema is of this version. A missing version is reported by the schema.
            version = value.get("version", _VERSION) if isinstance(value, dict) else _VERSION
            if version != _VERSION:
                raise ValueError(f"its version is unknown (got {abbreviate_value(version)}, expected {_VERSION})")
            _SCHEMA.check("", value)
            for name, entry in value["shards"].items():
                _check_ranges(f"shards[{name!r}].records", entry["records"])
        except ValueError as error:
            raise CorruptionError(path, 0, f"not a list of records in quarantine: {error}. {_FIX}") from None
        return cls(
            {
                name: ShardQuarantine(
                    int(entry["crc32c"], 16),
                    entry["bytes"],
                    tuple(SkippedRecords(*skipped) for skipped in entry["records"]),
                )
                for name, entry in value["shards"].items()
            }
        )

    def check(self, manifest: Manifest, path: str) -> None:
        """Raise CorruptionError if records are skipped that a shard does not have.

        Args:
            manifest: manifest of the dataset.
            path: path of the file, for messages.
        """
        for shard in list_shards(manifest):
            skipped = self.for_shard(shard).records
            if skipped and skipped[-1].stop > shard.records:
                raise CorruptionError(
                    path,
                    0,
                    f"records up to {skipped[-1].stop} are skipped in {shard.name}, which has"
                    f" {count_text(shard.records, 'record')}. {_FIX}",
                )


def read_quarantine(folder: str, manifest: Manifest) -> Quarantine:
    """Read and check the quarantine of a dataset; without the file, nothing is in quarantine.

    Raises:
        CorruptionError: the file is damaged, or skips records that a shard does not have.
        StorageError: it cannot be read.
    """
    storage = storage_for(folder)
    path = storage.join(folder, QUARANTINE_NAME)
    if storage.stat(path) is None:
        return Quarantine()
    quarantine = Quarantine.from_bytes(storage.read(path), path)
    quarantine.check(manifest, path)
    return quarantine


def _check_ranges(field: str, ranges: list[tuple[int, int, str]]) -> None:
    """Raise ValueError if a range is empty, or if the ranges overlap or do not ascend.

    Args:
        field: name of the ranges' field in the file, for the message.
        ranges: (first record, record after the last one, reason) of each range.
    """
    for index, (first, stop, _) in enumerate(ranges):
        if first >= stop:
            raise ValueError(f"{field}[{index}] has no records (got {first} to {stop})")
    for index, ((_, previous_stop, _), (first, _, _)) in enumerate(itertools.pairwise(ranges), 1):
        if first < previous_stop:
            raise ValueError(f"{field}[{index}] begins at {first}, before the end {previous_stop} of the one before")

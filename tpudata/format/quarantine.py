"""Records that readers skip because they are damaged: DIR/index/quarantine.json, which `tpudata verify --quarantine` writes.

A JSON object:

    version     1
    checksum    CRC-32C of this file, taken while these eight digits are zeros
    shards      by name, an object for each damaged shard:
        crc32c    CRC-32C of the shard as it was written, so that the entry applies to no other shard
        bytes     size of its file when the damage was found, 0 if it is missing
        records   the skipped records, ascending: a list [first, last, reason] for records first, ..., last - 1 of the shard

Without this file, nothing is skipped.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError
from tpudata.format.layout import INDEX_FOLDER
from tpudata.format.manifest.manifest import Shard

QUARANTINE_NAME = f"{INDEX_FOLDER}/quarantine.json"
_VERSION = 1
_CHECKSUM = re.compile(rb'(?<=\n "checksum": ")[0-9a-f]{8}(?=",\n)')
_NO_CHECKSUM = "00000000"
_FIX = "Delete it, and run `tpudata verify --quarantine` again."


class SkippedRecords(NamedTuple):
    """Neighbouring records of a shard that are skipped.

    Attributes:
        first: number of the first one in the shard.
        last: number of the record after the last one.
        reason: the damage, in words.
    """

    first: int
    last: int
    reason: str


@dataclasses.dataclass(frozen=True)
class ShardQuarantine:
    """Skipped records of a shard.

    Attributes:
        crc32c: CRC-32C of the shard's file as it was written.
        bytes: size of the file when the damage was found, 0 if it is missing.
        records: the skipped records, ascending.
    """

    crc32c: int
    bytes: int
    records: tuple[SkippedRecords, ...]

    @property
    def count(self) -> int:
        """Number of records that are skipped."""
        return sum(last - first for first, last, _ in self.records)

    def kept(self, records: int) -> npt.NDArray[np.int64]:
        """Return [first, last) of the runs of records that are read from a shard of `records`: int64 [runs, 2]."""
        firsts = [0, *(last for _, last, _ in self.records)]
        lasts = [*(first for first, _, _ in self.records), records]
        runs: npt.NDArray[np.int64] = np.array(
            [run for run in zip(firsts, lasts, strict=True) if run[0] < run[1]], np.int64
        )
        return runs.reshape(-1, 2)


@dataclasses.dataclass(frozen=True)
class Quarantine:
    """Skipped records of a dataset.

    Attributes:
        shards: damaged shards by name.
    """

    shards: Mapping[str, ShardQuarantine] = dataclasses.field(default_factory=dict)

    def of(self, shard: Shard) -> ShardQuarantine:
        """Return the skipped records of a shard, possibly none."""
        found = self.shards.get(shard.name)
        # An entry for a shard of another conversion does not apply to this one.
        if found is None or found.crc32c != shard.crc32c:
            return ShardQuarantine(shard.crc32c, shard.bytes, ())
        return found

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        value = {
            "version": _VERSION,
            "checksum": _NO_CHECKSUM,
            "shards": {
                name: {"crc32c": f"{found.crc32c:08x}", "bytes": found.bytes, "records": found.records}
                for name, found in sorted(self.shards.items())
            },
        }
        data = json.dumps(value, indent=1).encode() + b"\n"
        return _CHECKSUM.sub(b"%08x" % google_crc32c.value(data), data, count=1)

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Quarantine:
        """Parse what `to_bytes` wrote.

        Args:
            data: the file's bytes.
            path: path of the file, for messages.

        Raises:
            CorruptionError: the file is damaged, or of another version.
        """
        found = _CHECKSUM.search(data)
        zeroed = b"" if found is None else data[: found.start()] + _NO_CHECKSUM.encode() + data[found.end() :]
        if found is None or google_crc32c.value(zeroed) != int(found[0], 16):
            raise CorruptionError(path, 0, f"the checksum does not match the content. {_FIX}")
        value = json.loads(data)
        if value["version"] != _VERSION:
            raise CorruptionError(
                path, 0, f"quarantine of unknown version {value['version']} (expected {_VERSION}). {_FIX}"
            )
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

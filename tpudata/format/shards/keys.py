"""The keys of a shard: the inputs that it was made from, so that an append finds the new ones.

`DIR/index/train-00000-of-00012.keys`, integers little-endian:

    bytes   what
    8       b"TPUDKEY1"
    8       N, number of inputs, also rejected ones, uint64
    4       CRC-32C of the shard's file, uint32
    16 N    an entry of each input, in ascending order as bytes:
                8   the first half of the 128-bit BLAKE2b hash of its key
                7   a 56-bit hash of what the listing stated about the input when it was converted
                1   0 if the shard has a record of it, 1 if it was rejected
    4       CRC-32C of all bytes before, uint32

Readers of records do not need it. It is written after the shard's index.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError
from tpudata.format.checksums import CHECKSUM_BYTES, append_checksum, split_checksum
from tpudata.format.manifest.manifest import Shard

MAGIC = b"TPUDKEY1"
ENTRY_BYTES = 16
KEY_BYTES = 8
RECORD, REJECTED = b"\0", b"\1"
# Strings of 16 bytes in numpy, which sort and compare as bytes do.
ENTRY = np.dtype(f"S{ENTRY_BYTES}")
Entries: TypeAlias = npt.NDArray[np.bytes_]
_HEAD = struct.Struct("<8sQI")


@dataclasses.dataclass(frozen=True, eq=False)
class ShardKeys:
    """The keys of one shard.

    Attributes:
        entries: S16 [inputs], ascending.
        shard_crc32c: CRC-32C of the shard's file.
    """

    entries: Entries
    shard_crc32c: int

    @classmethod
    def of(cls, entries: Entries, shard_crc32c: int) -> ShardKeys:
        """Return the keys of a shard, from its inputs' entries in any order."""
        return cls(np.sort(entries), shard_crc32c)

    @property
    def record_count(self) -> int:
        """Number of inputs that have a record."""
        last_bytes = self.entries.view(np.uint8)[ENTRY_BYTES - 1 :: ENTRY_BYTES]
        return int(np.count_nonzero(last_bytes == RECORD[0]))

    def to_bytes(self) -> bytes:
        """Return the keys as stored on disk."""
        body = _HEAD.pack(MAGIC, len(self.entries), self.shard_crc32c) + self.entries.tobytes()
        return append_checksum(body)

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> ShardKeys:
        """Parse what `to_bytes` wrote.

        Args:
            data: the file's bytes.
            path: path of the file, for messages.

        Raises:
            CorruptionError: the bytes are not the whole keys of a shard.
        """
        if len(data) < _HEAD.size + CHECKSUM_BYTES or data[: len(MAGIC)] != MAGIC:
            raise CorruptionError(path, 0, f"not the keys of a shard (expected {MAGIC!r} at its start)")
        body, is_intact = split_checksum(data)
        if not is_intact:
            raise CorruptionError(path, 0, "the checksum of the keys does not match")
        _, count, shard_crc32c = _HEAD.unpack_from(body)
        if len(body) != _HEAD.size + ENTRY_BYTES * count:
            raise CorruptionError(
                path, len(body), f"wrong length (expected {count_text(count, 'entry', 'entries')} before its checksum)"
            )
        entries = np.frombuffer(body, ENTRY, count=count, offset=_HEAD.size)
        if not _are_valid(entries):
            raise CorruptionError(
                path, _HEAD.size, "the entries are not as they were written: ascending, each 0 or 1 at its end"
            )
        return cls(entries, shard_crc32c)

    def check(self, shard: Shard, path: str, *, is_one_to_one: bool = True) -> None:
        """Raise CorruptionError if these are not the keys of `shard`.

        Args:
            shard: the shard, as the manifest lists it.
            path: path of the keys, for messages.
            is_one_to_one: whether each input that is not rejected has its own record; then the number of records must also match.
        """
        if self.shard_crc32c != shard.crc32c or (is_one_to_one and self.record_count != shard.records):
            raise CorruptionError(
                path,
                0,
                f"the keys of another shard: {count_text(self.record_count, 'record')}, checksum {self.shard_crc32c:08x}; the"
                f" manifest says {count_text(shard.records, 'record')}, checksum {shard.crc32c:08x}",
            )


def _are_valid(entries: Entries) -> bool:
    """Return whether entries ascend, and the last byte of each is valid: 0 for a record, 1 for a rejected input."""
    # Each entry as two big-endian integers, which numpy compares faster than strings; its last byte is the lowest of the second.
    halves = entries.view(">u8").reshape(-1, 2)
    key_hashes, second_halves = halves[:, 0], halves[:, 1]
    has_same_key = key_hashes[1:] == key_hashes[:-1]
    ascends = (key_hashes[1:] > key_hashes[:-1]) | (has_same_key & (second_halves[1:] >= second_halves[:-1]))
    return bool(ascends.all() and ((second_halves & 0xFF) <= REJECTED[0]).all())

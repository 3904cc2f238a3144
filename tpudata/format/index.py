"""The index of a shard: where its records start, and checksums of blocks of them.

`DIR/index/train-00000-of-00012.index`, all integers little-endian, N records in blocks of B:

    bytes        what
    8            b"TPUDIDX1"
    8            N, number of records, uint64
    8            size of the shard in bytes, uint64
    4            CRC-32C of the whole shard, uint32
    4            B, records per block, uint32
    4            S, size of the summary in bytes, uint32
    8 (N + 1)    byte offset of each record's header in the shard, then the shard's size, uint64
    4 ceil(N/B)  CRC-32C of the shard's bytes of each block, headers and footers included, uint32
    S            summary: UTF-8 JSON object that the job wrote about the shard's records
    4            CRC-32C of all bytes before, uint32

The offsets give a seek to any record and exact counts; the block checksums let a reader that takes a whole block check it at
once, without one call per record. The index is written after its shard, so a shard with a valid index is complete.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError
from tpudata.format.tfrecord import Written

MAGIC = b"TPUDIDX1"
# A block is what a reader takes and checks at once: large enough that the checksum's cost per record vanishes, small
# enough that a few blocks of 100 kB images fit a buffer.
BLOCK_RECORDS = 64
_HEAD = struct.Struct("<8sQQIII")
_CRC = struct.Struct("<I")


@dataclasses.dataclass(frozen=True, eq=False)
class ShardIndex:
    """The index of one shard.

    Attributes:
        offsets: uint64 [records + 1]: byte offset of each record's header, and last the shard's size.
        block_crc32c: uint32 [ceil(records / block_records)]: CRC-32C of each block's bytes.
        block_records: records per block.
        shard_crc32c: CRC-32C of the whole shard.
        summary: what the job wrote about the shard's records.
    """

    offsets: npt.NDArray[np.uint64]
    block_crc32c: npt.NDArray[np.uint32]
    block_records: int
    shard_crc32c: int
    summary: Mapping[str, Any]

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.offsets) - 1

    @property
    def shard_bytes(self) -> int:
        """Size of the shard in bytes."""
        return int(self.offsets[-1])

    @classmethod
    def of(cls, written: Written, summary: Mapping[str, Any]) -> ShardIndex:
        """The index of a shard that a RecordWriter has just written."""
        return cls(
            offsets=np.array(written.offsets, "<u8"),
            block_crc32c=np.array(written.block_crc32c, "<u4"),
            block_records=written.block_records,
            shard_crc32c=written.crc32c,
            summary=summary,
        )

    def to_bytes(self) -> bytes:
        """The index as it stands on disk."""
        summary = json.dumps(self.summary, sort_keys=True, ensure_ascii=False).encode()
        head = _HEAD.pack(MAGIC, self.records, self.shard_bytes, self.shard_crc32c, self.block_records, len(summary))
        body = head + self.offsets.astype("<u8").tobytes() + self.block_crc32c.astype("<u4").tobytes() + summary
        return body + _CRC.pack(google_crc32c.value(body))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> ShardIndex:
        """Parses what `to_bytes` wrote.

        Args:
            data: the file's bytes.
            path: where they come from, for messages.

        Raises:
            CorruptionError: the bytes are not a whole index.
        """
        if len(data) < _HEAD.size + _CRC.size or data[: len(MAGIC)] != MAGIC:
            raise CorruptionError(path, 0, f"not an index: it does not begin with {MAGIC!r}")
        body, crc = data[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])[0]
        if google_crc32c.value(body) != crc:
            raise CorruptionError(path, 0, "the checksum of the index does not fit")
        _, records, _, shard_crc32c, block_records, summary_bytes = _HEAD.unpack_from(body)
        blocks = -(-records // block_records)
        expected = _HEAD.size + 8 * (records + 1) + 4 * blocks + summary_bytes
        if len(body) != expected:
            raise CorruptionError(path, len(body), f"the index should have {expected} bytes before its checksum")
        offsets = np.frombuffer(body, "<u8", records + 1, _HEAD.size)
        block_crc32c = np.frombuffer(body, "<u4", blocks, _HEAD.size + offsets.nbytes)
        summary = json.loads(body[len(body) - summary_bytes :])
        return cls(offsets, block_crc32c, block_records, shard_crc32c, summary)

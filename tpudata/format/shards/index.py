"""The index of a shard: the offsets of its records and blocks, and the checksums of the blocks.

`DIR/index/train-00000-of-00012.index`, all integers little-endian, N records in blocks of B, ceil(N/B) = K blocks:

    bytes      what
    8          b"TPUDIDX2"
    8          N, number of records, uint64
    8          size of the shard's file in bytes, uint64
    4          CRC-32C of the shard's file, uint32
    4          B, records per block, uint32
    4          S, size of the summary in bytes, uint32
    4          compression, uint32: 0 none, 2 gzip (see tpudata.format.tfrecord.gzip_blocks; 1 is obsolete)
    8 (N + 1)  byte offset of each record's header, then the size of all records with their frames, uint64
    4 K        CRC-32C of the bytes of each block, headers and footers included, uint32
    8 (K + 1)  only with gzip: byte offset in the file at which each block begins, then the end of the last one, uint64
    S          summary: UTF-8 JSON object that the job wrote about the shard's records
    4          CRC-32C of all bytes before, uint32

Without compression, offsets of records are offsets in the file. With gzip, offsets of records and checksums of blocks refer to the
unpacked stream.

The offsets allow seeking to any record or block, and exact counts; the checksums of blocks let a reader check a whole block in one
call. The index is written after its shard, so a shard with a valid index is complete.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tpudata.checked_json import INT64_MAX, Anything, Plain, parse_json
from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError
from tpudata.format.checksums import CHECKSUM_BYTES, append_checksum, split_checksum
from tpudata.format.tfrecord.framing import FRAME_BYTES
from tpudata.format.tfrecord.gzip_blocks import GZIP, MAX_RATIO
from tpudata.format.tfrecord.record_writer import WrittenRecords

MAGIC = b"TPUDIDX2"
# Common to the indexes of all layouts.
_MAGIC_PREFIX = b"TPUDIDX"
_RESTORE = "Restore the file, or convert the dataset again."
_COMPRESSION_BY_CODE: dict[int, str | None] = {0: None, 2: GZIP}
# Readers take and check one block at a time: it is large enough that the checksum's cost per record vanishes, and small enough that
# a few blocks of 100 kB images fit a buffer.
BLOCK_RECORDS = 64
_HEAD = struct.Struct("<8sQQIIII")
# The offsets of the records follow the header.
HEAD_BYTES = _HEAD.size
# Bytes of an offset, of a record or of a block.
OFFSET_BYTES = 8


@dataclasses.dataclass(frozen=True, eq=False)
class ShardIndex:
    """The index of one shard.

    Attributes:
        offsets: uint64 [records + 1]: byte offset of each record's header, and the size of all records; before compression.
        block_crc32c: uint32 [blocks]: CRC-32C of each block's bytes, before compression.
        block_records: records per block.
        shard_bytes: size of the shard's file.
        shard_crc32c: CRC-32C of the shard's file.
        block_offsets: uint64 [blocks + 1]: byte offset in a compressed file at which each block begins, and the end of the last
            one; None if the shard is not compressed.
        summary: what the job that wrote the records noted about them, a JSON object.
    """

    offsets: npt.NDArray[np.uint64]
    block_crc32c: npt.NDArray[np.uint32]
    block_records: int
    shard_bytes: int
    shard_crc32c: int
    block_offsets: npt.NDArray[np.uint64] | None
    summary: Mapping[str, Any]

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.offsets) - 1

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.block_crc32c)

    @property
    def compression(self) -> str | None:
        """None, or `"gzip"`."""
        return None if self.block_offsets is None else GZIP

    def block_range(self, block: int) -> tuple[int, int]:
        """Return the byte offsets at which a block begins and ends, before compression; blocks count from 0."""
        first = block * self.block_records
        stop = min(first + self.block_records, self.records)
        return int(self.offsets[first]), int(self.offsets[stop])

    def file_range(self, block: int) -> tuple[int, int]:
        """Return the byte offsets in the shard's file at which a block begins and ends; with gzip, `unpack_blocks` unpacks it."""
        if self.block_offsets is None:
            return self.block_range(block)
        return int(self.block_offsets[block]), int(self.block_offsets[block + 1])

    @classmethod
    def from_written(cls, written: WrittenRecords, summary: Mapping[str, Any]) -> ShardIndex:
        """Return the index of a shard that a RecordWriter has just written."""
        return cls(
            offsets=written.offsets,
            block_crc32c=written.block_crc32c,
            block_records=written.block_records,
            shard_bytes=written.file_bytes,
            shard_crc32c=written.crc32c,
            block_offsets=written.block_offsets,
            summary=summary,
        )

    def to_bytes(self) -> bytes:
        """Return the index as stored on disk."""
        # backslashreplace makes a JSON escape of a lone surrogate, which stands for a byte of a file name that is not UTF-8.
        encoded_summary = json.dumps(self.summary, sort_keys=True, ensure_ascii=False).encode(errors="backslashreplace")
        compression_code = next(code for code, name in _COMPRESSION_BY_CODE.items() if name == self.compression)
        head = _HEAD.pack(
            MAGIC,
            self.records,
            self.shard_bytes,
            self.shard_crc32c,
            self.block_records,
            len(encoded_summary),
            compression_code,
        )
        block_offsets = b"" if self.block_offsets is None else self.block_offsets.astype("<u8").tobytes()
        offsets = self.offsets.astype("<u8").tobytes()
        block_crc32c = self.block_crc32c.astype("<u4").tobytes()
        body = b"".join((head, offsets, block_crc32c, block_offsets, encoded_summary))
        return append_checksum(body)

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> ShardIndex:
        """Parse what `to_bytes` wrote, and check that records and blocks are contiguous and fill the file.

        Args:
            data: the file's bytes.
            path: path of the file, for messages.

        Raises:
            CorruptionError: the bytes are not a whole index, or an index of another layout, no shard can have these offsets, or the
                summary is not a JSON object.
        """
        if data.startswith(_MAGIC_PREFIX) and not data.startswith(MAGIC):
            raise CorruptionError(
                path,
                0,
                f"an index of another layout (got {data[: len(MAGIC)]!r}, expected {MAGIC!r}). Convert the dataset again.",
            )
        if len(data) < _HEAD.size + CHECKSUM_BYTES or not data.startswith(MAGIC):
            raise CorruptionError(path, 0, f"not an index (expected {MAGIC!r} at its start)")
        body, is_intact = split_checksum(data)
        if not is_intact:
            raise CorruptionError(path, 0, "the checksum of the index does not match")
        _, record_count, shard_bytes, shard_crc32c, block_records, summary_bytes, compression = _HEAD.unpack_from(body)
        if not record_count or not block_records or compression not in _COMPRESSION_BY_CODE:
            content = f"{count_text(record_count, 'record')} in blocks of {count_text(block_records)}"
            raise CorruptionError(
                path,
                0,
                f"{content}, compression {compression}: this tpudata writes no such index. Convert the dataset again",
            )
        block_count = -(-record_count // block_records)
        is_compressed = _COMPRESSION_BY_CODE[compression] is not None
        block_offset_count = block_count + 1 if is_compressed else 0
        offset_bytes = OFFSET_BYTES * (record_count + 1 + block_offset_count)
        expected_bytes = _HEAD.size + offset_bytes + CHECKSUM_BYTES * block_count + summary_bytes
        if len(body) != expected_bytes:
            raise CorruptionError(
                path, len(body), f"the index has the wrong length (expected {expected_bytes} bytes before its checksum)"
            )
        offsets = np.frombuffer(body, "<u8", count=record_count + 1, offset=_HEAD.size)
        block_crc32c = np.frombuffer(body, "<u4", count=block_count, offset=_HEAD.size + offsets.nbytes)
        position = _HEAD.size + offsets.nbytes + block_crc32c.nbytes
        block_offsets = np.frombuffer(body, "<u8", count=block_count + 1, offset=position) if is_compressed else None
        try:
            _check_offsets(offsets, block_offsets, block_records, shard_bytes)
        except ValueError as error:
            raise CorruptionError(path, 0, f"not the index of a shard: {error}. {_RESTORE}") from None
        try:
            summary = parse_json(body[len(body) - summary_bytes :])
            # It must be an object, nested no deeper than `Anything` allows; messages call it "it".
            Plain((dict,)).check("it", summary)
            Anything().check("it", summary)
        except ValueError as error:
            reason = f"the summary is not JSON as it was written: {error}. {_RESTORE}"
            raise CorruptionError(path, len(body) - summary_bytes, reason) from None
        return cls(offsets, block_crc32c, block_records, shard_bytes, shard_crc32c, block_offsets, summary)


def _check_offsets(
    offsets: npt.NDArray[np.uint64], block_offsets: npt.NDArray[np.uint64] | None, block_records: int, shard_bytes: int
) -> None:
    """Raise ValueError if no shard of this size can have these offsets.

    Args:
        offsets: byte offset of each record's header, and the size of all records, before compression: uint64 [records + 1].
        block_offsets: byte offset of each block in a compressed file, and the end of the last one: uint64 [blocks + 1]; None
            without compression.
        block_records: records per block.
        shard_bytes: size of the shard's file, at which the last record or, with compression, the last block must end.
    """
    if shard_bytes > INT64_MAX or offsets.max() > INT64_MAX:
        raise ValueError("an offset is beyond 2**63 - 1")
    # Signed, since differences of unsigned offsets would wrap instead of being negative.
    record_bounds = offsets.view("<i8")
    if record_bounds[0] != 0 or (np.diff(record_bounds) < FRAME_BYTES).any():
        raise ValueError(f"the records are not contiguous from byte 0 on, each with {FRAME_BYTES} bytes or more")
    if block_offsets is None:
        if record_bounds[-1] != shard_bytes:
            raise ValueError(f"the records end at byte {record_bounds[-1]} of {shard_bytes}")
        return
    if block_offsets.max() > INT64_MAX:
        raise ValueError("an offset is beyond 2**63 - 1")
    block_bounds = block_offsets.view("<i8")
    if block_bounds[0] != 0 or block_bounds[-1] != shard_bytes or (np.diff(block_bounds) <= 0).any():
        raise ValueError(f"the blocks do not ascend from byte 0 to {shard_bytes}")
    # A reader allocates a block's unpacked size, so an index must not claim more than gzip can compress into the block's bytes.
    unpacked_sizes = np.diff(np.append(record_bounds[:-1:block_records], record_bounds[-1]))
    if (unpacked_sizes // MAX_RATIO > np.diff(block_bounds)).any():
        raise ValueError("a block is smaller than gzip can make it")

"""Writing of TFRecord files, with one pass of CRC-32C over each byte of the records.

That pass gives the checksum in the record's frame; `tpudata.format.tfrecord.crc32c` derives the checksums of blocks and
of an uncompressed file.
"""

from __future__ import annotations

import array
import dataclasses
import functools
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from tpudata.format.tfrecord.crc32c import extend_crc32c, move_crc32c
from tpudata.format.tfrecord.framing import FOOTER_BYTES, FRAME_BYTES, MASK_DELTA, pack_checksum, pack_header
from tpudata.format.tfrecord.gzip_blocks import GZIP, GzipBlockWriter, check_compression

# From this length on, a copy costs more than a separate part.
_LARGE_BYTES = 1 << 14
# Bytes that are collected for one write. More saves no time; with less, small records would not share a call.
_MAX_HELD_BYTES = 1 << 19
# Records whose blocks get their checksums together.
_BATCH_RECORDS = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False)
class WrittenRecords:
    """Offsets, sizes and checksums of a file that a RecordWriter has written.

    Attributes:
        offsets: uint64 [records + 1]: byte offset of every record's header, and the size of all records, before compression.
        block_crc32c: uint32 [blocks]: CRC-32C of the bytes of each block of `block_records` records before compression; the
            last block may be shorter.
        block_records: records per block.
        file_bytes: size of the file.
        crc32c: CRC-32C of the file's bytes.
        block_offsets: uint64 [blocks + 1]: byte offset in the compressed file at which each block begins, and the end of the
            last one; None if the file is not compressed.
    """

    offsets: npt.NDArray[np.uint64]
    block_crc32c: npt.NDArray[np.uint32]
    block_records: int
    file_bytes: int
    crc32c: int
    block_offsets: npt.NDArray[np.uint64] | None


class RecordWriter:
    """Writer of records to an open file, which collects the offsets and checksums for the index.

    Memory holds half a MB of output, or one larger record, and 12 bytes per record; `finish` takes some 25 more per record.

    Args:
        file: file opened for writing, at its start.
        block_records: number of records that share a checksum in the index.
        compression: None, or `"gzip"`, see `tpudata.format.tfrecord.gzip_blocks`.

    Raises:
        UsageError: the compression is unknown.
    """

    def __init__(self, file: BinaryIO, block_records: int, compression: str | None = None) -> None:
        check_compression(compression)
        self._file = file
        self._gzip_writer = GzipBlockWriter(file) if compression == GZIP else None
        self._block_records = block_records
        self._sizes = array.array("Q")
        self._crcs = array.array("I")
        # Pieces that are not yet written, the small pieces after them, which become one piece, and the bytes of both.
        self._pieces: list[bytes] = []
        self._small_pieces: list[bytes] = []
        self._held_bytes = 0

    def write(self, *parts: bytes) -> int:
        """Append one record, given whole or in parts; return its size in bytes. The record may reach the file only in `finish`."""
        size = crc = 0
        for part in parts:
            size += len(part)
            crc = google_crc32c.extend(crc, part)
        small_pieces = self._small_pieces
        small_pieces.append(_pack_small_header(size) if size < _LARGE_BYTES else pack_header(size))
        for part in parts:
            if len(part) < _LARGE_BYTES:
                small_pieces.append(part)
            else:
                self._pieces += (b"".join(small_pieces), part)
                small_pieces.clear()
        small_pieces.append(pack_checksum(crc))
        self._sizes.append(size)
        self._crcs.append(crc)
        self._held_bytes += size + FRAME_BYTES
        if self._held_bytes >= _MAX_HELD_BYTES:
            self._write_held()
        if self._gzip_writer is not None and len(self._sizes) % self._block_records == 0:
            self._end_block(self._gzip_writer)
        return size

    def finish(self) -> WrittenRecords:
        """Write the remaining data, and return the offsets and checksums of the file. Nothing may be written afterwards."""
        self._write_held()
        sizes = np.array(self._sizes, np.uint64)
        offsets = np.zeros(len(sizes) + 1, np.uint64)
        np.cumsum(sizes + np.uint64(FRAME_BYTES), out=offsets[1:])
        block_crcs = self._compute_all_block_crcs()
        # Without compression, the file is its blocks, and its checksum follows from theirs.
        if self._gzip_writer is None:
            # The slice drops the end that is appended a second time after a full last block.
            block_ends = np.append(offsets[self._block_records :: self._block_records], offsets[-1])[: len(block_crcs)]
            bytes_after = (offsets[-1] - block_ends).astype(np.int64)
            file_crc = int(np.bitwise_xor.reduce(move_crc32c(block_crcs, bytes_after)))
            return WrittenRecords(
                offsets,
                block_crcs,
                self._block_records,
                file_bytes=int(offsets[-1]),
                crc32c=file_crc,
                block_offsets=None,
            )
        if len(sizes) % self._block_records:
            self._end_block(self._gzip_writer)
        block_offsets = np.array(self._gzip_writer.offsets, np.uint64)
        return WrittenRecords(
            offsets,
            block_crcs,
            self._block_records,
            file_bytes=self._gzip_writer.size,
            crc32c=self._gzip_writer.crc32c,
            block_offsets=block_offsets,
        )

    def _compute_all_block_crcs(self) -> npt.NDArray[np.uint32]:
        """Return the CRC-32C of each block: uint32 [blocks].

        The computation takes 200 bytes per record, so records go in batches of blocks.
        """
        # A batch has whole blocks.
        batch_records = -(-_BATCH_RECORDS // self._block_records) * self._block_records
        # The first batch is empty, for a file without records.
        batches = [np.zeros(0, np.uint32)]
        for first in range(0, len(self._sizes), batch_records):
            sizes = np.array(self._sizes[first : first + batch_records], np.int64)
            crcs = np.array(self._crcs[first : first + batch_records], np.uint32)
            batches.append(_compute_block_crcs(sizes, crcs, self._block_records))
        return np.concatenate(batches)

    def _end_block(self, gzip_writer: GzipBlockWriter) -> None:
        """End the current block of a compressed file, after writing its records."""
        self._write_held()
        gzip_writer.end_block()

    def _write_held(self) -> None:
        """Write the held pieces to the file, or to the current block of a compressed file."""
        pieces = [*self._pieces, b"".join(self._small_pieces)]
        if self._gzip_writer is None:
            self._file.writelines(pieces)
        else:
            self._gzip_writer.write(pieces)
        self._pieces.clear()
        self._small_pieces.clear()
        self._held_bytes = 0


# Cached for small records, whose sizes recur.
_pack_small_header = functools.lru_cache(maxsize=4096)(pack_header)


def _compute_block_crcs(
    sizes: npt.NDArray[np.int64], crcs: npt.NDArray[np.uint32], block_records: int
) -> npt.NDArray[np.uint32]:
    """Return the CRC-32C of each block of framed records: uint32 [blocks].

    A block's checksum is the exclusive-or of the checksums of its parts, each moved by the bytes that follow the part in the block.

    Args:
        sizes: int64 [records], bytes of each record's data.
        crcs: uint32 [records], CRC-32C of each record's data.
        block_records: records per block; the last block may be shorter.
    """
    first_records = np.arange(0, len(sizes), block_records)
    record_counts = np.diff(np.append(first_records, len(sizes)))
    record_ends = np.cumsum(sizes + FRAME_BYTES)
    block_ends = record_ends[first_records + record_counts - 1]
    # Bytes of each record's block after the record.
    bytes_after = np.repeat(block_ends, record_counts) - record_ends
    length_crcs = extend_crc32c(np.zeros(len(sizes), np.uint32), _take_bytes(sizes.astype("<u8")))
    header_crcs = extend_crc32c(length_crcs, _take_bytes(_mask_all(length_crcs)))
    # A body is the data and the footer.
    body_crcs = extend_crc32c(crcs, _take_bytes(_mask_all(crcs)))
    # Headers and bodies are moved together: a step costs hardly more for twice as many checksums.
    moved_crcs = move_crc32c(
        np.concatenate([header_crcs, body_crcs]), np.concatenate([bytes_after + sizes + FOOTER_BYTES, bytes_after])
    )
    contributions = moved_crcs[: len(sizes)] ^ moved_crcs[len(sizes) :]
    block_crcs: npt.NDArray[np.uint32] = np.bitwise_xor.reduceat(contributions, first_records)
    return block_crcs


def _mask_all(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return checksums masked as in `tpudata.format.tfrecord.framing`, in little-endian order: uint32 [n]."""
    # Sums of uint32 wrap.
    masked: npt.NDArray[np.uint32] = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(MASK_DELTA)
    return masked.astype("<u4")


def _take_bytes(values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return the bytes of each value: uint8 [values, bytes]."""
    return values.view(np.uint8).reshape(len(values), -1)

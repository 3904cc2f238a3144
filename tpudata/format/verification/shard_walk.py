"""Walk through the records of one shard, which finds damage and its place.

Two passes of CRC-32C cover each byte, not three. One is the record's own checksum. The other runs through all records; its final
value is the checksum of an uncompressed file, and the checksum of a block follows from its values at both ends of the block (see
`tpudata.format.tfrecord.crc32c`). A third pass runs through the packed bytes of a compressed file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO, NamedTuple

import google_crc32c

from tpudata.console.tables import count_text
from tpudata.format.manifest.manifest import Shard
from tpudata.format.shards.index import ShardIndex
from tpudata.format.tfrecord.crc32c import split_crc32c
from tpudata.format.tfrecord.framing import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    UNPACKED,
    has_checksum,
    unpack_header,
)
from tpudata.format.tfrecord.gzip_blocks import unpack_blocks
from tpudata.format.verification.defect import Defect, Problem

# From path, offset and data of a record to the problems of its content.
Problems = Callable[[str, int, bytes], list[Problem]]


class _BadBlocks(NamedTuple):
    """Consecutive blocks that differ from those that the index was written for.

    Attributes:
        start: offset of their first record.
        end: offset after their last record.
        packed: range of bytes in the file if they cannot be unpacked, else None.
    """

    start: int
    end: int
    packed: tuple[int, int] | None


class Walk:
    """Walk through the records of a shard, with the checksums up to the current place.

    Args:
        path: path of the shard's file, for messages.
        shard: its entry in the manifest.
        index: its index, or None if that is not valid.

    Attributes:
        offset: current offset in the records.
        read: current offset in the file.
    """

    def __init__(self, path: str, shard: Shard, index: ShardIndex | None) -> None:
        self.offset = self.read = 0
        self._path = path
        self._shard = shard
        self._index = index
        self._where = UNPACKED if index is not None and index.compression is not None else ""
        self._next_record = 0
        self._crc = 0
        self._file_crc: int | None = None
        # Damage is reported once: a damaged record is not reported again as its block or file.
        self._damaged = self._damaged_block = self._broken_off = False
        self._block_start = self._block_crc = 0
        self._bad_blocks: _BadBlocks | None = None

    def check_records(self, file: BinaryIO, size: int, problems: Problems) -> Iterator[list[Defect]]:
        """Read record after record up to byte `size`, and yield the defects of each."""
        while self.offset < size and not self._broken_off:
            defects = list(self._check_next_record(file, size, problems))
            if self._file_crc is None:
                self.read = self.offset
            yield defects

    def check_blocks(self, file: BinaryIO, index: ShardIndex, problems: Problems) -> Iterator[list[Defect]]:
        """Do the same for a compressed file: the index has the offsets of blocks, so damage does not hide later ones."""
        self._file_crc = google_crc32c.value(file.read(index.file_range(0)[0]))
        for block in range(index.blocks):
            begin, end = index.block_range(block)
            packed_begin, packed_end = index.file_range(block)
            self._enter(index, block, begin)
            packed = file.read(packed_end - packed_begin)
            self.read = packed_begin + len(packed)
            self._file_crc = google_crc32c.extend(self._file_crc, packed)
            if len(packed) < packed_end - packed_begin:
                yield [self._break_off(f"the file ends inside the block that begins at its byte {packed_begin}")]
                return
            try:
                data = unpack_blocks(packed, end - begin)
            except ValueError:
                yield list(self._note_bad_block(begin, end, (packed_begin, packed_end)))
                self._damaged = True
                self._enter(index, block + 1, end)
            else:
                yield from self.check_records(io.BytesIO(data), end, problems)
        self._file_crc = google_crc32c.extend(self._file_crc, file.read())

    def _enter(self, index: ShardIndex, block: int, offset: int) -> None:
        """Continue at the beginning of a block, regardless of errors in earlier blocks."""
        self._index, self._broken_off, self._damaged_block = index, False, False
        self._next_record = min(block * index.block_records, index.records)
        self.offset = self._block_start = offset
        self._block_crc = self._crc

    def find_end_defects(self) -> Iterator[Defect]:
        """Yield the defects that show at the end of the file."""
        yield from self._close_block(is_last=True)
        if self._broken_off:
            return
        if self._next_record != self._shard.records:
            yield self._report_damage(
                self.offset,
                f"{count_text(self._next_record, 'record')}, the manifest says {count_text(self._shard.records)}",
            )
        crc = self._crc if self._file_crc is None else self._file_crc
        if crc != self._shard.crc32c and not self._damaged:
            reason = f"the checksum of the file is {crc:08x}, the manifest says {self._shard.crc32c:08x}"
            yield Defect(self._path, 0, reason)

    def _check_next_record(self, file: BinaryIO, size: int, problems: Problems) -> Iterator[Defect]:
        """Read the next record, and yield its defects."""
        start = self.offset
        end = yield from self._find_expected_end()
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            yield self._break_off(f"the file ends inside a record's header ({len(header)} of {HEADER_BYTES} bytes)")
            return
        length = unpack_header(header)
        if length is None:
            reason = "the checksum of a record's length does not match"
            if end is None or end > size:
                yield self._break_off(f"{reason}; the rest is not checked, because the next record cannot be located")
                return
            # The index has the offset of the next record.
            yield self._report_damage(start, reason)
            length = end - start - FRAME_BYTES
        elif length > size - start - FRAME_BYTES:
            yield self._break_off(f"the file ends inside a record of {length} bytes")
            return
        data, footer = file.read(length), file.read(FOOTER_BYTES)
        if len(data) + len(footer) < length + FOOTER_BYTES:
            yield self._break_off(f"the file ends inside a record of {length} bytes")
            return
        self._crc = google_crc32c.extend(google_crc32c.extend(google_crc32c.extend(self._crc, header), data), footer)
        if not has_checksum(data, footer):
            yield self._report_damage(start, f"the checksum of a record of {length} bytes does not match")
        else:
            for problem in problems(self._path, start, data):
                yield self._make_defect(start, problem.reason, problem.kind)
        self.offset += length + FRAME_BYTES
        self._next_record += 1
        if self._index is not None and self._next_record % self._index.block_records == 0:
            yield from self._close_block()

    def _find_expected_end(self) -> Generator[Defect, None, int | None]:
        """Return the end of the next record by the index, or None; yield a defect if index and shard differ."""
        index = self._index
        if index is None or self._next_record >= index.records:
            return None
        expected = int(index.offsets[self._next_record])
        if expected == self.offset:
            return int(index.offsets[self._next_record + 1])
        yield from self._flush_blocks()
        yield self._report_damage(
            self.offset, f"record {self._next_record} begins here, by the index it begins at byte {expected}"
        )
        self._index = None
        return None

    def _close_block(self, is_last: bool = False) -> Iterator[Defect]:
        """Compare the block that ends at the current place with its checksum in the index."""
        index, size = self._index, self.offset - self._block_start
        if index is not None and size and not self._broken_off:
            block = (self._next_record - 1) // index.block_records
            crc = split_crc32c(self._crc, self._block_crc, size)
            # The last block of a cut file, and records after the last block, show in the count.
            is_whole = self._next_record in ((block + 1) * index.block_records, index.records)
            fits = not is_whole or crc == index.block_crc32c[block]
            if fits or self._damaged_block:
                yield from self._flush_blocks()
            else:
                yield from self._note_bad_block(self._block_start, self.offset, None)
        self._block_start, self._block_crc, self._damaged_block = self.offset, self._crc, False
        if is_last:
            yield from self._flush_blocks()

    def _note_bad_block(self, start: int, end: int, packed: tuple[int, int] | None) -> Iterator[Defect]:
        """Record a block that differs from the index; yield the earlier ones if they have a different kind of defect."""
        before = self._bad_blocks
        if before is not None and (before.packed is None) == (packed is None):
            start = before.start
            packed = packed and before.packed and (before.packed[0], packed[1])
        else:
            yield from self._flush_blocks()
        self._bad_blocks = _BadBlocks(start, end, packed)

    def _flush_blocks(self) -> Iterator[Defect]:
        """Yield one defect for the bad blocks that were noted last, which lie next to each other."""
        if self._bad_blocks is None:
            return
        start, end, packed = self._bad_blocks
        self._bad_blocks = None
        if packed is None:
            reason = (
                f"{end - start} bytes of whole records differ from those that were written, by the index's checksums"
            )
        else:
            size = end - start
            reason = f"{size} bytes of records cannot be unpacked from bytes {packed[0]} to {packed[1]} of the file"
        yield self._report_damage(start, reason)

    def _break_off(self, reason: str) -> Defect:
        self._broken_off = True
        return self._report_damage(self.offset, reason)

    def _report_damage(self, offset: int, reason: str) -> Defect:
        self._damaged = self._damaged_block = True
        return self._make_defect(offset, reason)

    def _make_defect(self, offset: int, reason: str, kind: str = "") -> Defect:
        return Defect(self._path, offset, reason + self._where, kind)

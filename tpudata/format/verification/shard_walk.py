"""Walk through the records of one shard, which finds damage and its position.

Two passes of CRC-32C cover each byte, not three. One is the record's own checksum. The other runs through all records; its final
value is the checksum of an uncompressed file, and the checksum of a block follows from its values at both ends of the block (see
`tpudata.format.tfrecord.crc32c`). A third pass runs through the compressed bytes of a compressed file.
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
    matches_checksum,
    unpack_header,
)
from tpudata.format.tfrecord.gzip_blocks import unpack_blocks
from tpudata.format.verification.defect import Defect, Problem

# Returns the problems of a record's content, given the record's path, offset and data.
FindProblems = Callable[[str, int, bytes], list[Problem]]


class _BadBlocks(NamedTuple):
    """Consecutive blocks that differ from the blocks that the index was written for.

    Attributes:
        begin: offset of their first record.
        end: offset after their last record.
        file_range: their byte range in the file if they cannot be unpacked; None if they can, but contain different bytes.
    """

    begin: int
    end: int
    file_range: tuple[int, int] | None


class ShardWalk:
    """Walk through the records of a shard, with the checksums up to the current offset.

    Args:
        path: path of the shard's file, for messages.
        shard: its entry in the manifest.
        index: its index, or None if that is not valid.

    Attributes:
        offset: current offset in the records, before compression.
        file_offset: current offset in the file.
    """

    def __init__(self, path: str, shard: Shard, index: ShardIndex | None) -> None:
        self.offset = self.file_offset = 0
        self._path = path
        self._shard = shard
        # None without a valid index, and after a record that does not begin at the index's offset (with compression, up to the
        # end of its block).
        self._index = index
        self._reason_suffix = UNPACKED if index is not None and index.compression is not None else ""
        self._next_record_index = 0
        # CRC-32C of the records up to `offset`, and of a compressed file up to `file_offset`.
        self._crc = 0
        self._compressed_crc: int | None = None
        # Damage is reported once: a damaged record is not reported again as its block or file.
        self._is_damaged = self._is_block_damaged = False
        # Whether the next record cannot be located.
        self._is_broken_off = False
        # Offset at which the current block begins, and the value of `_crc` there.
        self._block_begin = self._block_begin_crc = 0
        self._bad_blocks: _BadBlocks | None = None

    def find_record_defects(self, file: BinaryIO, end: int, find_problems: FindProblems) -> Iterator[list[Defect]]:
        """Read record after record up to offset `end`, and yield the defects of each."""
        while self.offset < end and not self._is_broken_off:
            defects = list(self._read_next_record(file, end, find_problems))
            # Without compression, offsets of records are offsets in the file.
            if self._compressed_crc is None:
                self.file_offset = self.offset
            yield defects

    def find_block_defects(
        self, file: BinaryIO, index: ShardIndex, find_problems: FindProblems
    ) -> Iterator[list[Defect]]:
        """Read a compressed file block by block, and yield the defects of each block or of each of its records.

        The index contains the offset of every block, so damage hides no later block.
        """
        self._compressed_crc = 0
        for block_index in range(index.blocks):
            begin, end = index.block_range(block_index)
            file_begin, file_end = index.file_range(block_index)
            self._enter_block(index, block_index, begin)
            compressed_data = file.read(file_end - file_begin)
            self.file_offset = file_begin + len(compressed_data)
            self._compressed_crc = google_crc32c.extend(self._compressed_crc, compressed_data)
            if len(compressed_data) < file_end - file_begin:
                yield [self._break_off(f"the file ends inside the block that begins at its byte {file_begin}")]
                return
            try:
                data = unpack_blocks(compressed_data, end - begin)
            except ValueError:
                yield list(self._note_bad_block(begin, end, (file_begin, file_end)))
                # The bad block explains a wrong checksum of the file; its own defect may be yielded after more blocks.
                self._is_damaged = True
                # Count the records of this block, even if it is the last one.
                self._enter_block(index, block_index + 1, end)
            else:
                yield from self.find_record_defects(io.BytesIO(data), end, find_problems)
        # The checksum of the file covers bytes after the last block.
        self._compressed_crc = google_crc32c.extend(self._compressed_crc, file.read())

    def _enter_block(self, index: ShardIndex, block_index: int, offset: int) -> None:
        """Continue at the beginning of a block, or after the last one, regardless of errors in earlier blocks."""
        self._index = index
        self._is_broken_off = self._is_block_damaged = False
        self._next_record_index = min(block_index * index.block_records, index.records)
        self.offset = self._block_begin = offset
        self._block_begin_crc = self._crc

    def find_end_defects(self) -> Iterator[Defect]:
        """Yield the defects that show at the end of the file."""
        yield from self._close_block()
        yield from self._flush_bad_blocks()
        if self._is_broken_off:
            return
        if self._next_record_index != self._shard.records:
            yield self._report_damage(
                self.offset,
                f"{count_text(self._next_record_index, 'record')}, the manifest says {count_text(self._shard.records)}",
            )
        crc = self._crc if self._compressed_crc is None else self._compressed_crc
        if crc != self._shard.crc32c and not self._is_damaged:
            reason = f"the checksum of the file is {crc:08x}, the manifest says {self._shard.crc32c:08x}"
            yield Defect(self._path, 0, reason)

    def _read_next_record(self, file: BinaryIO, end: int, find_problems: FindProblems) -> Iterator[Defect]:
        """Read the next record, which should not reach beyond offset `end`, and yield its defects."""
        begin = self.offset
        expected_end = yield from self._find_expected_end()
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            yield self._break_off(f"the file ends inside a record's header ({len(header)} of {HEADER_BYTES} bytes)")
            return
        length = unpack_header(header)
        if length is None:
            reason = "the checksum of a record's length does not match"
            if expected_end is None or expected_end > end:
                yield self._break_off(f"{reason}; the rest is not checked, because the next record cannot be located")
                return
            # The index contains the offset of the next record.
            yield self._report_damage(begin, reason)
            length = expected_end - begin - FRAME_BYTES
        elif length > end - begin - FRAME_BYTES:
            yield self._break_off(f"the file ends inside a record of {length} bytes")
            return
        data, footer = file.read(length), file.read(FOOTER_BYTES)
        if len(data) + len(footer) < length + FOOTER_BYTES:
            yield self._break_off(f"the file ends inside a record of {length} bytes")
            return
        for part in (header, data, footer):
            self._crc = google_crc32c.extend(self._crc, part)
        if not matches_checksum(data, footer):
            yield self._report_damage(begin, f"the checksum of a record of {length} bytes does not match")
        else:
            for problem in find_problems(self._path, begin, data):
                yield self._make_defect(begin, problem.reason, problem.kind)
        self.offset += length + FRAME_BYTES
        self._next_record_index += 1
        if self._index is not None and self._next_record_index % self._index.block_records == 0:
            yield from self._close_block()

    def _find_expected_end(self) -> Generator[Defect, None, int | None]:
        """Return the offset in the index at which the next record ends, or None; yield a defect if index and shard differ."""
        index = self._index
        if index is None or self._next_record_index >= index.records:
            return None
        expected_begin = int(index.offsets[self._next_record_index])
        if expected_begin == self.offset:
            return int(index.offsets[self._next_record_index + 1])
        yield from self._flush_bad_blocks()
        yield self._report_damage(
            self.offset,
            f"record {self._next_record_index} begins here, by the index it begins at byte {expected_begin}",
        )
        # The next records are read without the index; in a compressed file, up to the end of the block.
        self._index = None
        return None

    def _close_block(self) -> Iterator[Defect]:
        """Compare the block that ends at the current offset with its checksum in the index.

        A block that differs is noted, so that one defect reports it together with its neighbours; an intact block ends their run.
        """
        index = self._index
        size = self.offset - self._block_begin
        if index is not None and size and not self._is_broken_off:
            block_index = (self._next_record_index - 1) // index.block_records
            crc = split_crc32c(self._crc, self._block_begin_crc, size)
            # The last block of a truncated file and records beyond the index have no checksum; the number of records reports both.
            is_last_block = self._next_record_index == index.records
            has_block_crc = is_last_block or (
                self._next_record_index % index.block_records == 0 and self._next_record_index < index.records
            )
            differs = has_block_crc and crc != index.block_crc32c[block_index]
            # A damaged record, which is reported already, explains a wrong checksum of its block.
            if differs and not self._is_block_damaged:
                yield from self._note_bad_block(self._block_begin, self.offset, file_range=None)
            else:
                yield from self._flush_bad_blocks()
        self._block_begin = self.offset
        self._block_begin_crc = self._crc
        self._is_block_damaged = False

    def _note_bad_block(self, begin: int, end: int, file_range: tuple[int, int] | None) -> Iterator[Defect]:
        """Note a bad block. Join it to the noted blocks if they are bad in the same way; otherwise yield their defect first.

        Args:
            begin: offset of the block's first record.
            end: offset after its last record.
            file_range: byte range of the block in the file if it cannot be unpacked; None if its bytes differ from those written.
        """
        noted_blocks = self._bad_blocks
        if noted_blocks is not None and noted_blocks.file_range is None and file_range is None:
            begin = noted_blocks.begin
        elif noted_blocks is not None and noted_blocks.file_range is not None and file_range is not None:
            begin = noted_blocks.begin
            file_range = (noted_blocks.file_range[0], file_range[1])
        else:
            yield from self._flush_bad_blocks()
        self._bad_blocks = _BadBlocks(begin, end, file_range)

    def _flush_bad_blocks(self) -> Iterator[Defect]:
        """Yield one defect for the bad blocks that were noted since the last call, if there are any."""
        if self._bad_blocks is None:
            return
        begin, end, file_range = self._bad_blocks
        self._bad_blocks = None
        size = end - begin
        if file_range is None:
            reason = f"{size} bytes of whole records differ from those that were written, by the index's checksums"
        else:
            file_begin, file_end = file_range
            reason = f"{size} bytes of records cannot be unpacked from bytes {file_begin} to {file_end} of the file"
        yield self._report_damage(begin, reason)

    def _break_off(self, reason: str) -> Defect:
        """Return the defect after which the next record cannot be found, and end the reading of records."""
        self._is_broken_off = True
        return self._report_damage(self.offset, reason)

    def _report_damage(self, offset: int, reason: str) -> Defect:
        """Return a defect of the records' bytes, and note that it explains wrong checksums of their block and of the file."""
        self._is_damaged = self._is_block_damaged = True
        return self._make_defect(offset, reason)

    def _make_defect(self, offset: int, reason: str, kind: str = "") -> Defect:
        return Defect(self._path, offset, reason + self._reason_suffix, kind)

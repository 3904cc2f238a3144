"""Re-reading one shard and its index: every byte, every checksum, every record.

How each byte is covered, with two passes of CRC-32C over it and not three. One is the record's own checksum. The other runs through
the file, and its value at the end is the file's checksum, which the manifest has. That of a block follows from the values where
the block begins and ends (see `tpudata.format.crc32c`), at a cost per block. The index has a checksum of its own.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import BinaryIO

import google_crc32c
import numpy as np

from tpudata.errors import CorruptionError, StorageError
from tpudata.format.crc32c import crc32c_of_rest
from tpudata.format.example import Value, decode_example
from tpudata.format.index import ShardIndex
from tpudata.format.layout import index_name
from tpudata.format.manifest import Manifest, Shard
from tpudata.format.record_check import RecordCheck
from tpudata.format.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, masked_crc32c
from tpudata.storage import storage_for

# From the manifest and a decoded record to what does not fit in it, in words.
ExampleCheck = Callable[[Manifest, Mapping[str, Value]], Iterable[str]]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_PROGRESS_BYTES = 8_000_000


@dataclasses.dataclass(frozen=True)
class Defect:
    """Something in a dataset that is not what it should be.

    Attributes:
        path: the file.
        offset: byte in that file: of the record, line or block that is damaged, or where a file ends too early. None where the
            file as a whole is missing or should not be there.
        reason: what does not fit.
    """

    path: str
    offset: int | None
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}"
            if self.offset is None
            else f"{self.path} at byte {self.offset}: {self.reason}"
        )


class ShardCheck:
    """Checks shards of one dataset; pickled to worker processes.

    Args:
        folder: the dataset's.
        manifest: its manifest.
        example_check: further checks of each decoded record, or None.
    """

    def __init__(self, folder: str, manifest: Manifest, example_check: ExampleCheck | None) -> None:
        self._folder = folder
        self._manifest = manifest
        self._example_check = example_check
        self._record_check = RecordCheck(manifest)

    def defects(self, shard: Shard, progress: Callable[[int], None] | None = None) -> Iterator[Defect]:
        """Yields the defects of a shard and its index, in the order of the bytes.

        Memory holds one record and the index.

        Args:
            shard: which one.
            progress: called with the number of bytes read since the last call.
        """
        storage = storage_for(self._folder)
        index = yield from self._index(shard)
        path = storage.join(self._folder, shard.name)
        walk = _Walk(path, shard, index)
        try:
            entry = storage.stat(path)
            if entry is None:
                yield Defect(path, None, f"is missing; the manifest says {shard.bytes} bytes")
                return
            if entry.size != shard.bytes:
                end = min(entry.size, shard.bytes)
                yield Defect(path, end, f"the file has {entry.size} bytes, the manifest says {shard.bytes}")
            reported = 0
            with storage.open(path) as file:
                for defects in walk.records(file, entry.size, self._problems):
                    yield from defects
                    if progress and walk.offset - reported >= _PROGRESS_BYTES:
                        progress(walk.offset - reported)
                        reported = walk.offset
            yield from walk.ending()
            if progress:
                progress(shard.bytes - reported)
        except (StorageError, OSError) as error:
            yield Defect(path, walk.offset, f"cannot be read: {error}")

    def _problems(self, path: str, offset: int, data: bytes) -> list[str]:
        """What is wrong with the content of a record."""
        try:
            example = decode_example(data, path=path, offset=offset)
        except CorruptionError as error:
            return [error.reason]
        problems = list(self._record_check.problems(example))
        if self._example_check is not None:
            problems += self._example_check(self._manifest, example)
        return problems

    def _index(self, shard: Shard) -> Generator[Defect, None, ShardIndex | None]:
        """Yields what is wrong with a shard's index; returns it where it can be relied on, else None."""
        storage = storage_for(self._folder)
        path = storage.join(self._folder, index_name(shard.name))
        try:
            if storage.stat(path) is None:
                yield Defect(path, None, "is missing")
                return None
            data = storage.read(path)
            index = ShardIndex.from_bytes(data, path)
        except CorruptionError as error:
            yield Defect(path, error.offset, error.reason)
            return None
        except (StorageError, ValueError, ArithmeticError) as error:
            yield Defect(path, 0, f"cannot be read: {error}")
            return None
        said, due = (index.records, index.shard_bytes, index.shard_crc32c), (shard.records, shard.bytes, shard.crc32c)
        if said != due:
            yield Defect(path, 0, f"describes another shard: {_described(*said)}; the manifest says {_described(*due)}")
            return None
        steps = np.diff(index.offsets.astype(np.int64))
        if index.offsets[0] != 0 or (steps < FRAME_BYTES).any() or index.to_bytes() != data:
            yield Defect(path, 0, "no index of records one after the other, though its checksum fits")
            return None
        return index


class _Walk:
    """Goes through the records of a shard, and keeps what is known at the place reached.

    Attributes:
        offset: byte reached.
    """

    def __init__(self, path: str, shard: Shard, index: ShardIndex | None) -> None:
        self.offset = 0
        self._path = path
        self._shard = shard
        self._index = index
        self._number = 0
        self._crc = 0
        # What is damaged is named once: where a record is, neither its block nor the file is named for the same bytes.
        self._damaged = self._damaged_block = self._broken_off = False
        self._block_start = self._block_crc = 0
        self._bad_blocks: tuple[int, int] | None = None

    def records(
        self, file: BinaryIO, size: int, problems: Callable[[str, int, bytes], list[str]]
    ) -> Iterator[list[Defect]]:
        """Reads record after record, and yields the defects of each."""
        while self.offset < size and not self._broken_off:
            yield list(self._record(file, size, problems))

    def ending(self) -> Iterator[Defect]:
        """Yields what the end of the file shows."""
        yield from self._close_block(last=True)
        if self._broken_off:
            return
        if self._number != self._shard.records:
            yield self._damage(self.offset, f"{self._number} records, the manifest says {self._shard.records}")
        if self._crc != self._shard.crc32c and not self._damaged:
            yield self._defect(
                0, f"the checksum of the file is {self._crc:08x}, the manifest says {self._shard.crc32c:08x}"
            )

    def _record(self, file: BinaryIO, size: int, problems: Callable[[str, int, bytes], list[str]]) -> Iterator[Defect]:
        start = self.offset
        end = yield from self._expected_end()
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            yield self._break_off(f"the file ends inside a record's header ({len(header)} of {HEADER_BYTES} bytes)")
            return
        length, header_crc = _HEADER.unpack(header)
        whole = masked_crc32c(header[:8]) == header_crc
        if not whole:
            reason = "the checksum of a record's length does not fit"
            if end is None or end > size:
                yield self._break_off(
                    f"{reason}; what follows is not checked, because nothing says where the next record is"
                )
                return
            # The index knows where the next record begins.
            yield self._damage(start, reason)
            length = end - start - FRAME_BYTES
        elif length > size - start - FRAME_BYTES:
            yield self._break_off(f"the file ends inside a record of {length} bytes")
            return
        data, footer = file.read(length), file.read(FOOTER_BYTES)
        if len(data) + len(footer) < length + FOOTER_BYTES:
            yield self._break_off(f"the file ends inside a record of {length} bytes")
            return
        self._crc = google_crc32c.extend(google_crc32c.extend(google_crc32c.extend(self._crc, header), data), footer)
        if masked_crc32c(data) != _FOOTER.unpack(footer)[0]:
            yield self._damage(start, f"the checksum of a record of {length} bytes does not fit")
        else:
            for problem in problems(self._path, start, data):
                yield self._defect(start, problem)
        self.offset += length + FRAME_BYTES
        self._number += 1
        if self._index is not None and self._number % self._index.block_records == 0:
            yield from self._close_block()

    def _expected_end(self) -> Generator[Defect, None, int | None]:
        """Returns where the next record ends by the index, or None; yields where the index is at odds with the shard."""
        index = self._index
        if index is None or self._number >= index.records:
            return None
        expected = int(index.offsets[self._number])
        if expected == self.offset:
            return int(index.offsets[self._number + 1])
        yield from self._flush_blocks()
        yield self._damage(self.offset, f"record {self._number} begins here, by the index it begins at byte {expected}")
        self._index = None
        return None

    def _close_block(self, last: bool = False) -> Iterator[Defect]:
        """Compares the block that ends at the place reached with its checksum in the index."""
        index, size = self._index, self.offset - self._block_start
        if index is not None and size and not self._broken_off:
            block = (self._number - 1) // index.block_records
            crc = crc32c_of_rest(self._crc, self._block_crc, size)
            # A block that a cut file ends in, and records beyond the last one, show in the count.
            whole = self._number in ((block + 1) * index.block_records, index.records)
            fits = not whole or crc == index.block_crc32c[block]
            if fits or self._damaged_block:
                yield from self._flush_blocks()
            elif self._bad_blocks is None:
                self._bad_blocks = self._block_start, self.offset
            else:
                self._bad_blocks = self._bad_blocks[0], self.offset
        self._block_start, self._block_crc, self._damaged_block = self.offset, self._crc, False
        if last:
            yield from self._flush_blocks()

    def _flush_blocks(self) -> Iterator[Defect]:
        """Yields the blocks, one behind the other, that are whole records but not those that the index was written for."""
        if self._bad_blocks is not None:
            start, end = self._bad_blocks
            self._bad_blocks = None
            yield self._damage(
                start, f"{end - start} bytes of whole records are not those that were written, by the index's checksums"
            )

    def _break_off(self, reason: str) -> Defect:
        self._broken_off = True
        return self._damage(self.offset, reason)

    def _damage(self, offset: int, reason: str) -> Defect:
        self._damaged = self._damaged_block = True
        return self._defect(offset, reason)

    def _defect(self, offset: int, reason: str) -> Defect:
        return Defect(self._path, offset, reason)


def _described(records: int, size: int, crc32c: int) -> str:
    return f"{records} records, {size} bytes, checksum {crc32c:08x}"

"""From a dataset's files to records: ranges of them, read, checked and taken apart."""

from __future__ import annotations

import bisect
import contextlib
import copy
import dataclasses
import itertools
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError, DatasetError, TpudataError
from tpudata.format import Dataset, ShardIndex
from tpudata.format.tfrecord import FOOTER_BYTES, HEADER_BYTES
from tpudata.input.frames import Defects, damaged_frames, mended_frames, packed_range, unpacked_frames
from tpudata.storage import is_remote, storage_for

# By name, an array [n, ...] with a row for each record; strings stand in an array of objects.
Columns: TypeAlias = "dict[str, npt.NDArray[np.generic]]"

# Threads that check and decode at the same time, while others wait for what they read. Python runs one of them, and what numpy does
# by itself is short: with as many as read, they pass the turn to each other more than they work, at up to twice the cost.
_DECODERS = max(1, min(4, (os.cpu_count() or 1) // 2))
# Reads under way at the same time. At 50 ms each, as object stores take, 32 of 0.4 MB are 250 MB/s. A disk answers at once, and
# every thread more has memory of its own, which is no longer in a processor's cache when its turn comes again.
_REMOTE_READERS, _LOCAL_READERS = 32, _DECODERS
_log = logging.getLogger("tpudata")


def check_shards(dataset: Dataset, split: str) -> None:
    """Checks that the shards of a split are there and have their sizes, without reading them.

    Raises:
        DatasetError: the split has no shards, or one is missing.
        CorruptionError: a shard has another size than the manifest says.
    """
    shards = dataset.manifest.split(split).shards
    if not shards:
        raise DatasetError(f"{dataset.path}: split {split!r} has no records. Choose another split.")
    sizes = {entry.name: entry.size for entry in storage_for(dataset.path).list(dataset.path)}
    for shard in shards:
        size = sizes.get(shard.name)
        if size is None:
            raise DatasetError(f"{dataset.shard_path(shard)} is missing. Restore it, or convert the dataset again.")
        if size != shard.bytes:
            raise CorruptionError(
                dataset.shard_path(shard),
                min(size, shard.bytes),
                f"the file has {size} bytes, the manifest says {shard.bytes}. Restore it, or convert the dataset again.",
            )


class Decoder(Protocol):
    """Takes serialised records apart. Implementations are safe to share between threads."""

    def decode(self, data: bytes, bounds: npt.NDArray[np.int64], path: str, offset: int) -> Columns:
        """The columns of framed records.

        Args:
            data: the frames, one behind the other.
            bounds: int64 [n + 1]: where each frame begins in `data`, and the end.
            path: the file, for messages.
            offset: where `data` begins in it.
        """


class Reader(Protocol):
    """The records of a split, or of a part of it, by number. Implementations are safe to share between threads."""

    @property
    def readers(self) -> int:
        """How many threads should read at the same time."""

    def expect(self, first: int, last: int) -> None:
        """Says that the records [first, last) will be read soon, and lets a disk begin."""

    def read(self, first: int, last: int) -> Piece:
        """Reads the records [first, last), which are of one shard."""


class Strings:
    """Leaves records as they are, in the column "serialized"."""

    NAME = "serialized"

    def decode(self, data: bytes, bounds: npt.NDArray[np.int64], path: str, offset: int) -> Columns:  # noqa: ARG002
        """One column of bytes."""
        ends = bounds.tolist()
        column = np.empty(len(ends) - 1, object)
        for number in range(len(column)):
            column[number] = data[ends[number] + HEADER_BYTES : ends[number + 1] - FOOTER_BYTES]
        return {self.NAME: column}


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """Neighbouring records, read.

    Attributes:
        columns: of the records; in place of a damaged one, of the split's first whole one: the same wherever reading began.
        damaged: numbers of the damaged ones in the piece.
    """

    columns: Columns
    damaged: tuple[int, ...]


class Damage:
    """Counts damaged records and decides whether reading goes on.

    Args:
        most: how many different records may be damaged.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def note(self, error: CorruptionError) -> None:
        """Logs a damaged record, once; raises the error where it is one too many."""
        with self._lock:
            if (error.path, error.offset) in self._found:
                return
            if len(self._found) >= self._most:
                if self._most == 0:
                    raise error
                raise CorruptionError(
                    error.path, error.offset, f"{error.reason}; max_corrupt={self._most} others were skipped before it"
                )
            self._found.add((error.path, error.offset))
            count = len(self._found)
        _log.warning("Skipped damaged record %d of at most %d: %s", count, self._most, error)


class Source:
    """The records of a split by number; safe to share between threads.

    Args:
        dataset: the dataset.
        split: name of the split.
        decoder: takes the records apart.
        verify: check every byte that is read against the index's checksums.
        max_corrupt: how many different records may be damaged; one more is an error.
    """

    def __init__(self, dataset: Dataset, split: str, decoder: Decoder, *, verify: bool, max_corrupt: int) -> None:
        self._dataset = dataset
        self._shards = dataset.manifest.split(split).shards
        self._paths = [dataset.shard_path(shard) for shard in self._shards]
        self._ends = list(itertools.accumulate(shard.records for shard in self._shards))
        self._decoder = decoder
        self._verify = verify
        self._damage = Damage(max_corrupt)
        # The frame of the split's first whole record, once it was needed.
        self._whole: list[bytes] = []
        self._turns = threading.BoundedSemaphore(_DECODERS)
        self._indexes: list[ShardIndex | None] = [None] * len(self._shards)

    def with_decoder(self, decoder: Decoder) -> Source:
        """The same records, taken apart by another decoder; damaged ones are counted together."""
        other = copy.copy(self)
        other._decoder = decoder
        return other

    @property
    def readers(self) -> int:
        """How many threads should read at the same time."""
        return _REMOTE_READERS if is_remote(self._paths[0]) else _LOCAL_READERS

    def index(self, number: int) -> ShardIndex:
        """The index of a shard, read once."""
        index = self._indexes[number]
        if index is None:
            # Two threads may both read it; they read the same.
            index = self._indexes[number] = self._dataset.index(self._shards[number])
        return index

    def expect(self, first: int, last: int) -> None:
        """Says that the records [first, last) will be read soon, and lets a disk begin."""
        number, begin, end = self._place(first, last)
        # What is wrong with the index is told to who reads the records.
        with contextlib.suppress(TpudataError):
            index, path = self.index(number), self._paths[number]
            if index.compression is None:
                start, stop = int(index.offsets[begin]), int(index.offsets[end])
            else:
                start, stop = packed_range(index, begin, end)
            storage_for(path).expect(path, start, stop - start)

    def read(self, first: int, last: int) -> Piece:
        """Reads the records [first, last), which are of one shard.

        Raises:
            CorruptionError: a record is damaged; names file and offset.
            StorageError: the file cannot be read.
        """
        try:
            return self._read(first, last)
        except CorruptionError:
            if not is_remote(self._paths[0]):
                raise
            # What is whole in the store may have been damaged on the way: parts of an object come without a checksum.
            return self._read(first, last)

    def _read(self, first: int, last: int) -> Piece:
        number, begin, end = self._place(first, last)
        data, bounds, lost = self._frames(number, begin, end)
        with self._turns:
            damaged = self._noted(self._defects(data, bounds, number, begin, lost))
            if damaged:
                data, bounds = mended_frames(data, bounds, damaged, self._first_whole())
            offset = int(self.index(number).offsets[begin])
            columns = self._decoder.decode(data, bounds, self._paths[number], offset)
        return Piece(columns, tuple(sorted(damaged)))

    def _frames(self, number: int, begin: int, end: int) -> tuple[bytes, npt.NDArray[np.int64], Defects]:
        """The frames of records of a shard, where each begins and the last one ends, and which could not be unpacked."""
        index, path = self.index(number), self._paths[number]
        bounds = index.offsets[begin : end + 1].astype(np.int64)
        offset = int(bounds[0])
        bounds -= offset
        if index.compression is not None:
            data, lost = unpacked_frames(path, index, begin, end, is_checked=self._verify)
            return data, bounds, lost
        data = storage_for(path).read_range(path, offset, int(bounds[-1]), is_checked=self._verify)
        if len(data) < bounds[-1]:
            cut = int(np.searchsorted(bounds, len(data), "right")) - 1
            reason = f"the file ends inside a record, at byte {offset + len(data)}"
            raise CorruptionError(path, offset + int(bounds[cut]), reason)
        return data, bounds, []

    def _defects(
        self, data: bytes, bounds: npt.NDArray[np.int64], number: int, begin: int, lost: Defects
    ) -> Iterator[tuple[int, CorruptionError]]:
        """Yields (number in the piece, error) of each damaged record; `lost` are known already."""
        yield from lost
        if self._verify:
            known = {record for record, _ in lost}
            yield from damaged_frames(data, bounds, self.index(number), begin, self._paths[number], known)

    def _first_whole(self) -> bytes:
        """The frame of the first record of the split that is not damaged. Those before it are not counted for that."""
        if not self._whole:
            # Two threads may both look for it; they find the same.
            self._whole.append(self._find_whole())
        return self._whole[0]

    def _find_whole(self) -> bytes:
        for record in range(self._ends[-1]):
            number, begin, end = self._place(record, record + 1)
            data, bounds, lost = self._frames(number, begin, end)
            if next(self._defects(data, bounds, number, begin, lost), None) is None:
                return data
        raise DatasetError(f"{self._dataset.path}: every record is damaged. Convert the dataset again.")

    def _place(self, first: int, last: int) -> tuple[int, int, int]:
        """The shard of the split's records [first, last), and [begin, end) of them in it."""
        number = bisect.bisect_right(self._ends, first)
        before = self._ends[number] - self._shards[number].records
        return number, first - before, last - before

    def _noted(self, found: Iterable[tuple[int, CorruptionError]]) -> set[int]:
        """The numbers of damaged records, all of which are counted."""
        numbers = set()
        for number, error in found:
            self._damage.note(error)
            numbers.add(number)
        return numbers

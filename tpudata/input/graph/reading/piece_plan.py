"""Plan of reading from an object store: pieces of shards, each of which is one request or a few, without overlap.

TensorFlow's client for `gs://` keeps one block of an open file, 64 MB by default. A read that is not in it fetches a whole block
from there, cut at the end of the object. So what ends with its object, or with such a block, costs nothing more; anything else
fetches up to a block too much. Shards of the usual size are one piece each.
"""

from __future__ import annotations

import dataclasses
import operator

import numpy as np

from tpudata.format import Dataset, ShardIndex
from tpudata.input.graph.reading.kept_shards import KeptShards
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.options.reading import Reading
from tpudata.input.order.chunks import Chunks, Integers
from tpudata.input.order.training import largest_divisor
from tpudata.storage import is_remote

# Bytes of a block that are left free: TensorFlow's first read is of the byte before a piece, its last one ends a little after it.
_SPARE_BYTES = 64
# A shard's last piece is no larger than this many others, so that shards of the usual 100 MB, 15 % more or less, are one piece.
# A cut at 64 MB halved the rate of evaluation with shards of 75 MB: the small rests took the places of requests in flight.
_LAST_PIECE = 2
# The default window of the shuffle, in bytes of stored records, and its least length in records, if they take no more than so many
# bytes. A host of a TPU has 48 GB or more.
_WINDOW_BYTES = 512 << 20
_WINDOW_RECORDS, _MOST_WINDOW_BYTES = 2048, 1 << 30
# Share of the bytes that may be fetched twice because lanes end inside of pieces.
_MOST_WASTE = 0.03
# Places in a piece at which the cost of a cut is found.
_CUTS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of the shards of a split, in order.

    Attributes:
        starts: number of the first record of each piece, int64 [pieces].
        stops: number of the record after the last one, int64 [pieces].
        begins: byte at which it begins in its file, int64 [pieces].
        ends: byte at which it ends, int64 [pieces].
        file_bytes: size of its file, int64 [pieces].
    """

    starts: Integers
    stops: Integers
    begins: Integers
    ends: Integers
    file_bytes: Integers

    @classmethod
    def of(cls, dataset: Dataset, split: str, piece_bytes: int) -> Pieces:
        """Cut the shards of a split, by the indexes of those that are larger than a piece.

        Raises:
            CorruptionError: an index is damaged.
            DatasetError: an index belongs to another shard.
            StorageError: an index cannot be read.
        """
        kept = KeptShards.of(dataset, split)

        def of_shard(number: int) -> tuple[Integers, Integers]:
            shard = kept.shards[number]
            if shard.bytes <= _LAST_PIECE * piece_bytes:
                return np.zeros(1, np.int64), np.zeros(1, np.int64)
            return _cut(dataset.index(shard), kept.runs[number], piece_bytes)

        # A shard without kept records has no piece.
        parts = kept.map(of_shard)
        numbers = kept.numbers.tolist()
        starts = np.concatenate([first + kept.begins[n] for n, (first, _) in zip(numbers, parts, strict=True)])
        sizes = [kept.shards[n].bytes for n in numbers]
        ends = [np.append(begin[1:], size) for (_, begin), size in zip(parts, sizes, strict=True)]
        return cls(
            starts,
            np.append(starts[1:], kept.ends[-1]),
            np.concatenate([begin for _, begin in parts]),
            np.concatenate(ends),
            np.repeat(sizes, [len(first) for first, _ in parts]),
        )

    @property
    def mean_bytes(self) -> int:
        """Mean size of a piece, in bytes."""
        return int((self.ends - self.begins).mean())

    def cut_bytes(self, block: int) -> float:
        """Return the mean number of bytes that are fetched twice if a piece is read in two parts, the larger one first.

        Args:
            block: bytes that a read fetches at least, as far as its file has them.
        """
        sizes = (self.ends - self.begins)[:, np.newaxis]
        head = sizes * (1 + (np.arange(_CUTS) + 0.5) / _CUTS) / 2
        rest = (self.file_bytes - self.begins)[:, np.newaxis]
        blocks = np.minimum(np.ceil(head / block) * block, rest)
        # A read from the start of a file may be larger than a block.
        first = np.where((self.begins[:, np.newaxis] == 0) & (head > block), head, blocks)
        second = np.minimum(np.ceil((sizes - head) / block) * block, rest - head)
        wasted = (first + second - sizes).mean(axis=1)
        return float(np.average(wasted, weights=sizes[:, 0]))


def _cut(index: ShardIndex, runs: Integers, piece_bytes: int) -> tuple[Integers, Integers]:
    """Return the number of the first kept record and the byte offset of each piece of a shard.

    Args:
        index: index of the shard.
        runs: runs of kept records, [first, last) in the shard, int64 [runs, 2].
        piece_bytes: size of a piece.
    """
    kept = np.concatenate([np.arange(first, last) for first, last in runs.tolist()])
    if index.block_offsets is None:
        records, offsets = np.arange(len(kept)), index.offsets.astype(np.int64)[kept]
    else:
        # Any record of a compressed block needs the whole block.
        blocks = np.unique(kept // index.block_records)
        records = np.searchsorted(kept, blocks * index.block_records)
        offsets = index.block_offsets.astype(np.int64)[blocks]
    found, limit = [0], max(1, piece_bytes - _SPARE_BYTES)
    while index.shard_bytes - offsets[found[-1]] > _LAST_PIECE * piece_bytes:
        place = int(np.searchsorted(offsets, offsets[found[-1]] + limit, "right")) - 1
        # A record may be larger than a piece.
        place = max(place, found[-1] + 1)
        if place >= len(offsets):
            break
        found.append(place)
    begins = offsets[found]
    # Whatever precedes the first kept record is not read.
    return records[found].astype(np.int64), begins


@dataclasses.dataclass(frozen=True, eq=False)
class PiecePlan(ReadPlan):
    """Plan for an object store.

    Attributes:
        pieces: pieces of all stored records.
        reading: options of reading.
    """

    pieces: Pieces = dataclasses.field(kw_only=True)
    reading: Reading = dataclasses.field(kw_only=True)

    @property
    def chunks(self) -> Chunks:
        """Pieces for reading in order."""
        return self._select(Chunks(self.pieces.starts, self.pieces.stops))

    @property
    def mixed_chunks(self) -> Chunks:
        """Pieces for a shuffle."""
        return self.chunks

    def lanes(self, batch_size: int) -> int:
        """Return the number of lanes: as many as divide the batch, unless their ends inside of pieces cost too much."""
        sizes = self.pieces.ends - self.pieces.begins
        cost = self.pieces.cut_bytes(self.reading.piece_bytes)
        most = int(_MOST_WASTE * float(sizes.sum()) / cost) + 1 if cost else batch_size
        return largest_divisor(batch_size, min(most, self.reading.lanes))

    def fetch_ratio(self, batch_size: int, hosts: int) -> float:
        """Return the bytes that all hosts together fetch in training, for each byte of the split, on average."""
        lanes, each = self.lanes(batch_size), batch_size // hosts
        stride = batch_size // lanes
        read = sum(-(-(host + 1) * each // stride) - host * each // stride for host in range(hosts)) / lanes
        sizes = self.pieces.ends - self.pieces.begins
        return read * (1 + (lanes - 1) * self.pieces.cut_bytes(self.reading.piece_bytes) / float(sizes.sum()))

    def pieces_of(self, records: Integers) -> Integers:
        """Return the numbers of the pieces that have records, by their numbers, int64 [n]."""
        stored = records if self.ids is None else self.ids[records]
        return np.searchsorted(self.pieces.starts, stored, "right") - 1

    @property
    def default_window(self) -> tuple[int, int, int]:
        """The default window."""
        return _WINDOW_BYTES, _WINDOW_RECORDS, _MOST_WINDOW_BYTES

    @property
    def piece_memory(self) -> int:
        """Bytes of memory that a piece takes: as it is fetched, unpacked if it is compressed, and as records."""
        copies = 1 if self.block_records is None else 2
        return self.pieces.mean_bytes + copies * (int(self.sizes.ends[-1]) // len(self.pieces.starts))

    def reads(self, free: int | None) -> int:
        """Return the number of pieces that are read at the same time, given the free memory in bytes."""
        return self.reading.reads(self.piece_memory, free)


def is_read_in_pieces(dataset: Dataset, split: str, reading: Reading) -> bool:
    """Return whether a split is read in pieces: it is on an object store, or the options ask for them."""
    first = dataset.shard_path(dataset.manifest.split(split).shards[0])
    return is_remote(first) if reading.pieces is None else reading.pieces


def plan_reading(dataset: Dataset, split: str, reading: Reading) -> ReadPlan:
    """Return the plan for all records of a split."""
    plan = ReadPlan.of(dataset, split)
    if not is_read_in_pieces(dataset, split, reading):
        return plan
    pieces = Pieces.of(dataset, split, operator.index(reading.piece_bytes))
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return PiecePlan(**values, pieces=pieces, reading=reading)

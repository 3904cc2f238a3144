"""Pieces of shards, each of which is one request to an object store or a few, without overlap.

TensorFlow's client for `gs://` keeps one block of an open file, 64 MB by default. A read that is not in it fetches a whole block
from there, cut at the end of the object. So what ends with its object, or with such a block, costs nothing more; anything else
fetches up to a block too much. Shards of the usual size are one piece each.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tpudata.format import Dataset, ShardIndex
from tpudata.input.graph.reading.kept_shards import KeptShards
from tpudata.input.order.chunks import Integers

# Bytes of a block that are left free: TensorFlow's first read is of the byte before a piece, its last one ends a little after it.
_SPARE_BYTES = 64
# A shard's last piece is no larger than this many others, so that shards of the usual 100 MB, 15 % more or less, are one piece.
# A cut at 64 MB halved the rate of evaluation with shards of 75 MB: the small rests took the places of requests in flight.
_LAST_PIECE = 2
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

        def cut_shard(number: int) -> tuple[Integers, Integers]:
            shard = kept.shards[number]
            if shard.bytes <= _LAST_PIECE * piece_bytes:
                return np.zeros(1, np.int64), np.zeros(1, np.int64)
            return _cut(dataset.index(shard), kept.runs[number], piece_bytes)

        # A shard without kept records has no piece.
        parts = kept.map(cut_shard)
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
    firsts, limit = [0], max(1, piece_bytes - _SPARE_BYTES)
    while index.shard_bytes - offsets[firsts[-1]] > _LAST_PIECE * piece_bytes:
        place = int(np.searchsorted(offsets, offsets[firsts[-1]] + limit, "right")) - 1
        # A record may be larger than a piece.
        place = max(place, firsts[-1] + 1)
        if place >= len(offsets):
            break
        firsts.append(place)
    begins = offsets[firsts]
    # Whatever precedes the first kept record is not read.
    return records[firsts].astype(np.int64), begins

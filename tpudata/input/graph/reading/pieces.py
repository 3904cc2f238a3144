"""Pieces of shards, each fetched by one or a few requests to an object store, without overlap.

TensorFlow's client for `gs://` keeps one block of an open file, 64 MB by default. A read that is not in it fetches a whole block
from there, cut at the end of the object. So a read that ends with its object, or with the block, costs nothing more; any other read
fetches up to a block too much. Shards of the usual size are one piece each.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tpudata.format import Dataset, ShardIndex
from tpudata.input.graph.reading.kept_shards import KeptShards
from tpudata.input.order.chunks import Integers

# A piece is this much smaller than a block, since TensorFlow also reads the byte before a piece and a few bytes after it.
_SPARE_BYTES = 64
# Largest last piece of a shard, in multiples of `piece_bytes`: shards of the usual 100 MB, 15 % more or less, are then one piece.
# Cutting shards of 75 MB at 64 MB would halve the rate of evaluation, since small remainders use up the requests in flight.
_MAX_LAST_PIECE_RATIO = 2
# Number of positions in a piece over which the cost of a cut is averaged.
_SAMPLED_CUTS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of the shards of a split, in order.

    Attributes:
        firsts: index of the first record of each piece, int64 [pieces].
        stops: index of the record after each piece's last one, int64 [pieces].
        begins: byte at which each piece begins in its file, int64 [pieces].
        ends: byte at which each piece ends in its file, int64 [pieces].
        file_bytes: size of each piece's file, int64 [pieces].
    """

    firsts: Integers
    stops: Integers
    begins: Integers
    ends: Integers
    file_bytes: Integers

    @classmethod
    def cut(cls, dataset: Dataset, split: str, piece_bytes: int) -> Pieces:
        """Cut the shards of a split into pieces; reads the indexes of shards larger than two pieces.

        Raises:
            CorruptionError: an index is damaged.
            DatasetError: an index belongs to another shard.
            StorageError: an index cannot be read.
        """
        shards = KeptShards.make(dataset, split)

        def cut_shard(shard_index: int) -> tuple[Integers, Integers]:
            """Return the first record and the first byte of each piece, counted from the shard's start; see `_cut_shard`."""
            shard = shards.shards[shard_index]
            if shard.bytes <= _MAX_LAST_PIECE_RATIO * piece_bytes:
                # One piece: first record 0, first byte 0.
                return np.zeros(1, np.int64), np.zeros(1, np.int64)
            return _cut_shard(dataset.index(shard), shards.runs[shard_index], piece_bytes)

        # A shard without kept records has no piece.
        cut_shards = shards.map(cut_shard)
        indices = shards.indices.tolist()
        firsts = np.concatenate(
            [
                firsts_in_shard + shards.firsts[index]
                for index, (firsts_in_shard, _) in zip(indices, cut_shards, strict=True)
            ]
        )
        sizes = [shards.shards[index].bytes for index in indices]
        # Each piece ends where the next one begins, and the last one with the shard.
        ends = [np.append(piece_begins[1:], size) for (_, piece_begins), size in zip(cut_shards, sizes, strict=True)]
        return cls(
            firsts,
            np.append(firsts[1:], shards.stops[-1]),
            np.concatenate([piece_begins for _, piece_begins in cut_shards]),
            np.concatenate(ends),
            np.repeat(sizes, [len(piece_begins) for _, piece_begins in cut_shards]),
        )

    @property
    def mean_bytes(self) -> int:
        """Mean size of a piece, in bytes."""
        return int((self.ends - self.begins).mean())

    def estimate_wasted_bytes(self, block_bytes: int) -> float:
        """Return the mean number of bytes that are fetched in excess if a piece is read in two parts, the larger one first.

        Args:
            block_bytes: minimum number of bytes that a read fetches, unless the file ends first.
        """
        sizes = (self.ends - self.begins)[:, np.newaxis]
        # Cuts at evenly spaced positions in the second half: the larger part is then the first one.
        head_sizes = sizes * (1 + (np.arange(_SAMPLED_CUTS) + 0.5) / _SAMPLED_CUTS) / 2
        bytes_to_file_end = (self.file_bytes - self.begins)[:, np.newaxis]
        whole_blocks = np.minimum(np.ceil(head_sizes / block_bytes) * block_bytes, bytes_to_file_end)
        # A read from the start of a file may be larger than a block.
        is_one_fetch = (self.begins[:, np.newaxis] == 0) & (head_sizes > block_bytes)
        first_fetch = np.where(is_one_fetch, head_sizes, whole_blocks)
        tail_sizes = sizes - head_sizes
        second_fetch = np.minimum(np.ceil(tail_sizes / block_bytes) * block_bytes, bytes_to_file_end - head_sizes)
        wasted = (first_fetch + second_fetch - sizes).mean(axis=1)
        return float(np.average(wasted, weights=sizes[:, 0]))


def _cut_shard(index: ShardIndex, runs: Integers, piece_bytes: int) -> tuple[Integers, Integers]:
    """Return the first record of each piece of a shard, as an index among its kept records, and the byte at which the piece begins.

    Args:
        index: index of the shard.
        runs: runs of kept records, [first, stop) in the shard, int64 [runs, 2].
        piece_bytes: size of a piece.
    """
    kept_records = np.concatenate([np.arange(first, stop) for first, stop in runs.tolist()])
    # The records with which a piece can begin, as indices among the kept records, and their byte offsets.
    if index.block_offsets is None:
        records = np.arange(len(kept_records))
        offsets = index.offsets.astype(np.int64)[kept_records]
    else:
        # A piece has whole blocks, since any record of a compressed block needs the whole block.
        blocks = np.unique(kept_records // index.block_records)
        records = np.searchsorted(kept_records, blocks * index.block_records)
        offsets = index.block_offsets.astype(np.int64)[blocks]
    # Indices in `records` and `offsets` at which the pieces begin.
    firsts = [0]
    max_bytes = max(1, piece_bytes - _SPARE_BYTES)
    while index.shard_bytes - offsets[firsts[-1]] > _MAX_LAST_PIECE_RATIO * piece_bytes:
        # The last record, or block, that begins at most `max_bytes` after the piece's start, so that the piece ends there.
        next_first = int(np.searchsorted(offsets, offsets[firsts[-1]] + max_bytes, "right")) - 1
        # A record, or block, larger than `max_bytes` is a piece by itself.
        next_first = max(next_first, firsts[-1] + 1)
        if next_first >= len(offsets):
            break
        firsts.append(next_first)
    # The first piece begins at the first kept record: bytes before it are not read.
    return records[firsts].astype(np.int64), offsets[firsts]

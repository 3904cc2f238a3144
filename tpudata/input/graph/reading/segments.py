"""Tables of the byte ranges of a split's records, from which a graph reads any range of records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from tpudata.format import Dataset, ShardIndex
from tpudata.input.graph.reading.kept_shards import KeptShards
from tpudata.input.order.chunks import Integers


@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """Runs of neighbouring records of a file, in the order of the split.

    Attributes:
        paths: paths of the files.
        file_bytes: size of each file, int64 [files].
        firsts: index of the first record of each segment, and last the number of records, int64 [segments + 1].
        files: index of each segment's file, int64 [segments].
        offsets: byte offset in the file at which reading begins, int64 [segments].
        sizes: bytes that are read, int64 [segments].
        skips: number of read records before the segment's first one, since compressed blocks are read whole, int64 [segments].
        first_records: index in the file of the first record that is read, int64 [segments].
        have_gaps: whether records in quarantine lie between segments of a file.
    """

    paths: tuple[str, ...]
    file_bytes: Integers
    firsts: Integers
    files: Integers
    offsets: Integers
    sizes: Integers
    skips: Integers
    first_records: Integers
    have_gaps: bool


def cut_into_segments(dataset: Dataset, split: str, cuts: Iterable[int]) -> Segments:
    """Cut a split into segments. Records in quarantine are omitted, and have no record numbers.

    Args:
        dataset: the dataset.
        split: name of the split.
        cuts: record numbers at which a segment begins, in addition to the first record of each run of kept records.

    Raises:
        CorruptionError: an index is damaged.
        DatasetError: an index belongs to another shard.
        StorageError: an index cannot be read.
    """
    shards = KeptShards.make(dataset, split)
    all_cuts = np.unique(np.fromiter(cuts, np.int64))

    def cut_shard(shard_index: int) -> tuple[Integers, ...]:
        first, stop = shards.firsts[shard_index], shards.stops[shard_index]
        cuts_of_shard = all_cuts[slice(*np.searchsorted(all_cuts, [first, stop]))] - first
        return _cut_shard(dataset.index(shards.shards[shard_index]), shards.runs[shard_index], cuts_of_shard)

    shard_segments = shards.map(cut_shard)
    firsts, offsets, sizes, skips, first_records = (
        np.concatenate(column) for column in zip(*shard_segments, strict=True)
    )
    files = np.repeat(shards.indices, [len(columns[0]) for columns in shard_segments])
    return Segments(
        paths=tuple(dataset.shard_path(shard) for shard in shards.shards),
        # The size of a damaged file, which may differ from the manifest's.
        file_bytes=np.array([dataset.quarantine.for_shard(shard).bytes for shard in shards.shards], np.int64),
        firsts=np.append(firsts + shards.firsts[files], shards.stops[-1]),
        files=files,
        offsets=offsets,
        sizes=sizes,
        skips=skips,
        first_records=first_records,
        have_gaps=any(len(shard_runs) > 1 for shard_runs in shards.runs),
    )


def _cut_shard(index: ShardIndex, runs: Integers, cuts: Integers) -> tuple[Integers, ...]:
    """Return (firsts, offsets, sizes, skips, first_records) of the segments of a shard, as in `Segments`.

    `firsts` are indices among the kept records of the shard.

    Args:
        index: index of the shard.
        runs: runs of kept records, [first, stop) in the shard, int64 [runs, 2].
        cuts: indices among kept records at which a segment begins, in addition to the first record of each run.
    """
    ends = np.cumsum(runs[:, 1] - runs[:, 0])
    begins = np.append(0, ends[:-1])
    firsts = np.unique(np.concatenate([begins, cuts]))
    counts = np.append(firsts[1:], ends[-1]) - firsts
    # The run that has each segment, and so the index in the shard of the segment's first record.
    run_indices = np.searchsorted(begins, firsts, "right") - 1
    records = firsts - begins[run_indices] + runs[run_indices, 0]
    stops = records + counts
    if index.block_offsets is None:
        offsets = index.offsets.astype(np.int64)
        return firsts, offsets[records], offsets[stops] - offsets[records], np.zeros_like(firsts), records
    # Blocks are read whole, from the first record's block on; the records before it in its block are skipped.
    first_blocks, stop_blocks = records // index.block_records, -(-stops // index.block_records)
    offsets = index.block_offsets.astype(np.int64)
    first_records = first_blocks * index.block_records
    sizes = offsets[stop_blocks] - offsets[first_blocks]
    return firsts, offsets[first_blocks], sizes, records - first_records, first_records

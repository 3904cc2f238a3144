"""The shard plan: how many shards, and which records go into which.

Records are placed by a hash of their key, which shuffles them globally. Cutting the range of hashes into equal parts would give
shards of unequal size, so a first pass adds up the bytes of narrow ranges (see beam_jobs.tally), and the shards are cut between
these where the bytes add up. That pass depends on neither workers nor order, and with it the number and the names of all shards
are known before the first is written.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from beam_jobs.options import ConvertOptions
from beam_jobs.reference import DIGEST_BYTES, shuffled_position
from beam_jobs.tally import BUCKET_BITS, BUCKET_SHIFT, Tally, TallyPart
from tpudata.errors import SourceError, UsageError
from tpudata.format import shard_name
from tpudata.format.tfrecord import FRAME_BYTES

# A shard then still has four buckets, which keeps it within 15 % of its target.
_MOST_SHARDS = 1 << BUCKET_BITS - 2
_GROUP_SHARDS = 64
_GROUP_REFERENCES = 1 << 16


@dataclasses.dataclass(frozen=True)
class SplitPlan:
    """The shards of one split.

    Attributes:
        records: how many records were planned.
        estimated_bytes: what the shards are expected to take together.
        starts: first bucket of each shard but the first, ascending.
    """

    records: int
    estimated_bytes: int
    starts: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of shards."""
        return len(self.starts) + 1

    @property
    def group_width(self) -> int:
        """How many neighbouring shards are grouped at once: as many as hold some 64,000 references, 64 at most."""
        return max(1, min(_GROUP_SHARDS, _GROUP_REFERENCES * self.count // self.records))

    def shard_of(self, position: int) -> int:
        """The shard that holds a position, counted from 0."""
        return bisect_right(self.starts, position >> BUCKET_SHIFT)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a whole conversion.

    Attributes:
        splits: by name.
        seed: of the order.
        files: number of input records.
        bytes: their size.
        fingerprint: digest of all keys and sizes, whatever their order.
    """

    splits: dict[str, SplitPlan]
    seed: int
    files: int
    bytes: int
    fingerprint: str

    def position(self, digest: int) -> int:
        """Where a record stands in the order of its split."""
        return shuffled_position(digest, self.seed)

    def shard_names(self) -> set[str]:
        """The file names of all shards."""
        return {shard_name(name, n, split.count) for name, split in self.splits.items() for n in range(split.count)}


class SumTallies(beam.CombineFn):  # type: ignore[misc]
    """Combines TallyParts into one Tally."""

    def create_accumulator(self) -> Tally:
        """Nothing counted."""
        return Tally()

    def add_input(self, tally: Tally, part: TallyPart) -> Tally:
        """Adds a part."""
        tally.add(part)
        return tally

    def merge_accumulators(self, tallies: Iterable[Tally]) -> Tally:
        """Adds tallies up."""
        total = Tally()
        for tally in tallies:
            total.merge(tally)
        return total

    def extract_output(self, tally: Tally) -> Tally:
        """The sum."""
        return tally


def make_plan(tally: Tally, ratio: float, options: ConvertOptions, overhead: int) -> Plan:
    """Cuts the shards.

    Args:
        tally: of all references.
        ratio: bytes of a record's content in a shard over its bytes in the input.
        options: size or number of shards.
        overhead: bytes that a record takes in a shard beside its content.

    Raises:
        SourceError: there is nothing to convert.
        UsageError: not as many shards can be made as were asked for.
    """
    if not tally.buckets:
        raise SourceError(f"{options.input} has no files to convert.")
    empty = set(options.split.shares if options.split else ()) - set(tally.buckets)
    if empty:
        raise SourceError(
            f"--split: no record falls into {', '.join(sorted(empty))}; the input has"
            f" {sum(tally.records(split) for split in tally.buckets)}. Give it a larger share, or bring more records."
        )
    splits = {}
    for split in sorted(tally.buckets):
        records = tally.records(split)
        content = np.rint(tally.buckets[split] * ratio).astype(np.int64)
        buckets = content + tally.filled[split] * (overhead + FRAME_BYTES)
        size = int(buckets.sum())
        starts = cut(buckets, options.num_shards or _shard_count(size, options))
        _check_count(split, records, len(starts) + 1, options)
        splits[split] = SplitPlan(records, size, starts)
    files = sum(split.records for split in splits.values())
    return Plan(splits, options.seed, files, tally.bytes, f"{tally.fingerprint:0{2 * DIGEST_BYTES}x}")


def _shard_count(size: int, options: ConvertOptions) -> int:
    """The number of shards, a multiple as asked for, that makes each nearest to the target."""
    multiple = options.shards_multiple_of
    count = max(1, round(size / options.shard_bytes / multiple)) * multiple
    if count > _MOST_SHARDS:
        raise UsageError(
            f"{size:,} bytes in shards of {options.shard_bytes:,} bytes are {count:,} shards; a split has {_MOST_SHARDS:,} at most."
            " Give a larger --shard-size."
        )
    return count


def _check_count(split: str, records: int, count: int, options: ConvertOptions) -> None:
    wanted, multiple = options.num_shards, options.shards_multiple_of
    if wanted and count < wanted:
        raise UsageError(
            f"--num-shards is {wanted}, but split {split} of {records} records fills {count} of them at most without an empty"
            " one. Ask for fewer."
        )
    if count % multiple:
        raise UsageError(
            f"--shards-multiple-of is {multiple}, but split {split} of {records} records fills {count} shards. Ask for a"
            " smaller multiple."
        )


def cut(buckets: npt.NDArray[np.int64], count: int) -> tuple[int, ...]:
    """Cuts buckets into runs of about equal bytes, none of them empty.

    Args:
        buckets: int64 [buckets], bytes of each.
        count: number of runs wanted; fewer where fewer buckets hold anything.

    Returns:
        The first bucket of each run but the first, ascending.
    """
    filled = np.flatnonzero(buckets)
    count = min(count, len(filled))
    ends = np.cumsum(buckets[filled])
    order = np.arange(1, count)
    targets = order * (int(ends[-1]) / count)
    # The number of filled buckets before each cut: the cut nearest to its target ...
    after = np.searchsorted(ends, targets)
    before = np.where(after > 0, ends[after - 1], 0)
    cuts = after + (ends[after] - targets < targets - before)
    # ... moved where it must be, so that every run has a bucket: cuts ascend, and leave one for each run to come.
    cuts = np.maximum.accumulate(np.maximum(cuts, 1) - order) + order
    cuts = np.minimum(cuts, len(filled) - count + order)
    return tuple(int(bucket) for bucket in filled[cuts])

"""The shard plan: how many shards, and which records go into which.

Records are placed by a hash of their key, which shuffles them globally. Cutting the range of hashes into equal parts would give
shards of unequal size, so a first pass adds up the bytes of each of 2**18 narrow ranges ("buckets"), and the shards are cut
between buckets where the bytes add up. That pass is one small table whatever the number of records, it depends on neither
workers nor order, and with it the number and the names of all shards are known before the first is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
from bisect import bisect_right
from collections.abc import Iterable

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from beam_jobs.options import ConvertOptions
from beam_jobs.reference import HASH_BITS, Reference, key_bytes
from tpudata.errors import SourceError, UsageError
from tpudata.format.tfrecord import FRAME_BYTES

# 2 MB per split; at 10,000 shards (1 TB) a shard is still 26 buckets, so that a cut is off by 2 % of it at most.
BUCKET_BITS = 18
_FINGERPRINT_BYTES = 16


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

    def shard_of(self, position: int) -> int:
        """The shard that holds a position, counted from 0."""
        return bisect_right(self.starts, position >> (HASH_BITS - BUCKET_BITS))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a whole conversion.

    Attributes:
        splits: by name.
        files: number of input records.
        bytes: their size.
        fingerprint: digest of all keys and sizes, whatever their order.
    """

    splits: dict[str, SplitPlan]
    files: int
    bytes: int
    fingerprint: str


@dataclasses.dataclass
class Tally:
    """What the first pass adds up.

    Attributes:
        buckets: int64 [2**18] by split: estimated bytes per bucket.
        records: by split.
        bytes: of all input records.
        fingerprint: sum of digests, modulo 2**128.
    """

    buckets: dict[str, npt.NDArray[np.int64]] = dataclasses.field(default_factory=dict)
    records: dict[str, int] = dataclasses.field(default_factory=dict)
    bytes: int = 0
    fingerprint: int = 0

    def add(self, reference: Reference, overhead: int) -> None:
        """Counts one record of `reference.size` bytes and `overhead` more in the shard."""
        buckets = self.buckets.get(reference.split)
        if buckets is None:
            buckets = self.buckets[reference.split] = np.zeros(1 << BUCKET_BITS, np.int64)
        buckets[reference.position >> (HASH_BITS - BUCKET_BITS)] += reference.size + overhead
        self.records[reference.split] = self.records.get(reference.split, 0) + 1
        self.bytes += reference.size
        self._add_fingerprint(_digest(reference))

    def merge(self, other: Tally) -> None:
        """Adds what another tally has counted."""
        for split, buckets in other.buckets.items():
            self.buckets[split] = self.buckets[split] + buckets if split in self.buckets else buckets
        for split, records in other.records.items():
            self.records[split] = self.records.get(split, 0) + records
        self.bytes += other.bytes
        self._add_fingerprint(other.fingerprint)

    def _add_fingerprint(self, value: int) -> None:
        self.fingerprint = (self.fingerprint + value) % (1 << 8 * _FINGERPRINT_BYTES)


class MakePlan(beam.CombineFn):  # type: ignore[misc]
    """Combines all references into one Plan.

    Args:
        options: shard size or number.
        overhead: bytes that a record takes in a shard beside the input's own bytes.
    """

    def __init__(self, options: ConvertOptions, overhead: int) -> None:
        super().__init__()
        self._options = options
        self._overhead = overhead + FRAME_BYTES

    def create_accumulator(self) -> Tally:
        """Nothing counted."""
        return Tally()

    def add_input(self, tally: Tally, reference: tuple[object, ...]) -> Tally:
        """Counts one reference."""
        tally.add(Reference(*reference), self._overhead)  # type: ignore[arg-type]
        return tally

    def merge_accumulators(self, tallies: Iterable[Tally]) -> Tally:
        """Adds tallies up."""
        total = Tally()
        for tally in tallies:
            total.merge(tally)
        return total

    def extract_output(self, tally: Tally) -> Plan:
        """Cuts the shards; SourceError where there is nothing to convert."""
        if not tally.records:
            raise SourceError(f"{self._options.input} has no files to convert.")
        splits = {}
        for split in sorted(tally.buckets):
            buckets = tally.buckets[split]
            size = int(buckets.sum())
            wanted = self._options.num_shards or max(1, round(size / self._options.shard_bytes))
            starts = cut(buckets, wanted)
            if self._options.num_shards and len(starts) + 1 < wanted:
                raise UsageError(
                    f"--num-shards is {wanted}, but split {split} of {tally.records[split]} records fills at most"
                    f" {len(starts) + 1} shards without an empty one. Ask for fewer."
                )
            splits[split] = SplitPlan(tally.records[split], size, starts)
        files = sum(tally.records.values())
        return Plan(splits, files, tally.bytes, f"{tally.fingerprint:0{2 * _FINGERPRINT_BYTES}x}")


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
    targets = int(ends[-1]) * order / count
    # The number of filled buckets before each cut: the cut nearest to its target ...
    after = np.searchsorted(ends, targets)
    before = np.where(after > 0, ends[after - 1], 0)
    cuts = after + (ends[after] - targets < targets - before)
    # ... moved where it must be, so that every run has a bucket: cuts ascend, and leave one for each run to come.
    cuts = np.maximum.accumulate(np.maximum(cuts, 1) - order) + order
    cuts = np.minimum(cuts, len(filled) - count + order)
    return tuple(int(bucket) for bucket in filled[cuts])


def _digest(reference: Reference) -> int:
    data = b"%d:%s" % (reference.size, key_bytes(reference.key))
    return int.from_bytes(hashlib.blake2b(data, digest_size=_FINGERPRINT_BYTES).digest(), "big")

"""What the first pass adds up: bytes by place in the order, and a fingerprint of the input.

The order of records is a range of 64-bit numbers. A tally adds up the bytes of each of its 2**18 equal parts ("buckets"): one
small table whatever the number of records, the same in whatever order it is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from beam_jobs.reference import DIGEST_BYTES, HASH_BITS, Reference, shuffled_position

# 2 MB per split; at 10,000 shards (1 TB) a shard is still 26 buckets, so that a cut is off by 2 % of it at most.
BUCKET_BITS = 18
BUCKET_SHIFT = HASH_BITS - BUCKET_BITS
_FINGERPRINT_MASK = (1 << 8 * DIGEST_BYTES) - 1


@dataclasses.dataclass
class Tally:
    """Bytes and records of many references.

    Attributes:
        buckets: int64 [2**18] by split: bytes per bucket, as in the input.
        filled: int64 [2**18] by split: records per bucket.
        bytes: of all records.
        fingerprint: sum of the records' digests, each multiplied by an odd number that its size makes, modulo 2**128.
    """

    buckets: dict[str, npt.NDArray[np.int64]] = dataclasses.field(default_factory=dict)
    filled: dict[str, npt.NDArray[np.int64]] = dataclasses.field(default_factory=dict)
    bytes: int = 0
    fingerprint: int = 0

    def records(self, split: str) -> int:
        """Number of records in a split."""
        return int(self.filled[split].sum())

    def add(self, part: TallyPart) -> None:
        """Adds the references of a part."""
        for split, (buckets, sizes) in part.splits.items():
            if split not in self.buckets:
                self.buckets[split] = np.zeros(1 << BUCKET_BITS, np.int64)
                self.filled[split] = np.zeros(1 << BUCKET_BITS, np.int64)
            np.add.at(self.buckets[split], buckets, sizes)
            np.add.at(self.filled[split], buckets, 1)
        self._add_sums(part.bytes, part.fingerprint)

    def merge(self, other: Tally) -> None:
        """Adds what another tally has counted."""
        for mine, theirs in ((self.buckets, other.buckets), (self.filled, other.filled)):
            for split, values in theirs.items():
                mine[split] = mine[split] + values if split in mine else values
        self._add_sums(other.bytes, other.fingerprint)

    def _add_sums(self, size: int, fingerprint: int) -> None:
        self.bytes += size
        self.fingerprint = (self.fingerprint + fingerprint) & _FINGERPRINT_MASK


@dataclasses.dataclass(frozen=True)
class TallyPart:
    """The same for a few thousand references, small enough to pass on.

    Attributes:
        splits: by split: the bucket (uint32) and the size (int64) of each of its references.
        bytes, fingerprint: as in Tally.
    """

    splits: dict[str, tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]
    bytes: int
    fingerprint: int

    @classmethod
    def of(cls, references: Iterable[Reference], seed: int) -> TallyPart:
        """Counts references, as `seed` orders them."""
        splits: dict[str, tuple[list[int], list[int]]] = {}
        fingerprint = 0
        for reference in references:
            buckets, sizes = splits.setdefault(reference.split, ([], []))
            buckets.append(shuffled_position(reference.digest, seed) >> BUCKET_SHIFT)
            sizes.append(reference.size)
            fingerprint += reference.digest * (2 * reference.size + 1)
        arrays = {
            split: (np.array(buckets, np.uint32), np.array(sizes, np.int64))
            for split, (buckets, sizes) in splits.items()
        }
        total = sum(int(sizes.sum()) for _, sizes in arrays.values())
        return cls(arrays, total, fingerprint & _FINGERPRINT_MASK)

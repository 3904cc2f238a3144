"""Sums of the first pass: bytes by place in the order, and a fingerprint of the input.

The order of records is a range of 64-bit positions. A tally adds up the bytes of narrow parts of it ("buckets"), between which
shards can be cut: a small table that does not depend on the order of adding.

Shuffled positions fill the range evenly, and a bucket is one of its 2**18 equal parts. Without a shuffle, a bucket is some
neighbouring records: 16 at most, and about 1 MB, or a single one if a unit has few.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.references.packs.columns import narrow
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.record_order import Positions
from beam_jobs.references.reference import HASH_BITS, Digests

# With 10,000 shards (1 TB) a shard still has 26 buckets, so a cut is off by at most 2 % of it.
BUCKET_BITS = 18
_BUCKET_SHIFT = np.uint64(HASH_BITS - BUCKET_BITS)
_INSIDE_BUCKET = (np.uint64(1) << _BUCKET_SHIFT) - np.uint64(1)
_FEW_RECORDS, _RUN_RECORDS = 256, 16
_RUN_BYTES_SHIFT = 20
# Number of collected buckets at which they are added up.
_PENDING = 1 << 18
_HASH_MASK = (1 << HASH_BITS) - 1
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """Buckets in ascending order.

    Attributes:
        starts: uint64 [n]: position of the first record of each.
        bytes: int64 [n]: bytes of the records in each, as in the input.
        records: int64 [n]: number of records in each.
        texts: int64 [n]: bytes of the texts of the records in addition to their content.
    """

    starts: Positions
    bytes: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    texts: npt.NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the columns in as few bytes as possible: workers pass on a bucket for almost every record."""
        equal_parts = bool(len(self.starts)) and not (self.starts & _INSIDE_BUCKET).any()
        starts = narrow(self.starts >> _BUCKET_SHIFT) if equal_parts else self.starts
        columns = (self.bytes, self.records, self.texts)
        return _unpickle, (equal_parts, starts, *(narrow(column) if len(column) else column for column in columns))

    @classmethod
    def add_up(cls, parts: Iterable[Buckets]) -> Buckets:
        """Return the sum of tables with common buckets, in any order."""
        parts = list(parts)
        starts, rows = np.unique(np.concatenate([part.starts for part in parts]), return_inverse=True)
        # Not np.bincount: its weights are floats, which are inexact beyond 2**53 bytes.
        sums = np.zeros((3, len(starts)), np.int64)
        for name, column in zip(("bytes", "records", "texts"), sums, strict=True):
            np.add.at(column, rows, np.concatenate([getattr(part, name) for part in parts]))
        return cls(starts, *sums)


def _unpickle(equal_parts: bool, starts: npt.NDArray[Any], *columns: npt.NDArray[Any]) -> Buckets:
    starts = starts.astype(np.uint64)
    return Buckets(starts << _BUCKET_SHIFT if equal_parts else starts, *(column.astype(np.int64) for column in columns))


@dataclasses.dataclass(frozen=True)
class TallyPart:
    """Sums for one pack of references, small enough to pass on.

    Attributes:
        splits: buckets by split, some of them possibly repeated.
        bytes: total bytes of the records.
        fingerprint: sums of the two halves of all keys' digests, each digest multiplied by an odd number from its record's size,
            modulo 2**64.
    """

    splits: dict[str, Buckets]
    bytes: int
    fingerprint: tuple[int, int]

    @classmethod
    def of(
        cls, pack: Pack, digests: Digests, *, shuffled: bool, texts: npt.NDArray[np.int64] | None = None
    ) -> TallyPart:
        """Count the references of a pack.

        Args:
            pack: the pack; without a shuffle, neighbours in the source's order.
            digests: digests of its keys.
            shuffled: whether its positions are shuffled.
            texts: int64 [n]: bytes of the texts of each record in addition to its content; None for none.
        """
        buckets = _bucket_equal_parts if shuffled else _bucket_runs
        if texts is None:
            texts = np.zeros(len(pack.keys), np.int64)
        splits = {}
        for split, rows in pack.rows_by_split():
            splits[split] = buckets(pack.positions[rows], pack.sizes[rows].astype(np.int64), texts[rows])
        odd = pack.sizes.astype(np.uint64) * np.uint64(2) + np.uint64(1)
        high, low = (digests * odd[:, None]).sum(axis=0, dtype=np.uint64).tolist()
        return cls(splits, int(pack.sizes.sum(dtype=np.int64)), (high, low))


class Tally:
    """The sum of any number of TallyParts.

    Attributes:
        bytes: total bytes of the records.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._fingerprint = (0, 0)
        self._parts: dict[str, list[Buckets]] = {}
        self._pending: dict[str, int] = {}

    @property
    def splits(self) -> list[str]:
        """The splits that have records, sorted."""
        return sorted(self._parts)

    @property
    def fingerprint(self) -> str:
        """128 bits in hexadecimal digits: equal for equal keys and sizes, in any order."""
        return "".join(f"{half:016x}" for half in self._fingerprint)

    def buckets(self, split: str) -> Buckets:
        """Return the buckets of a split, without repetitions."""
        self._parts[split] = [Buckets.add_up(self._parts[split])]
        self._pending[split] = 0
        return self._parts[split][0]

    def add(self, part: TallyPart) -> None:
        """Add a part."""
        for split, buckets in part.splits.items():
            self._add(split, [buckets])
        self._add_sums(part.bytes, part.fingerprint)

    def merge(self, other: Tally) -> None:
        """Add another tally."""
        for split, parts in other._parts.items():
            if split in self._parts:
                self._add(split, parts)
            else:
                # Keep the other tally's parts and count: adding them up again for each merge would cost the square of their number.
                self._parts[split], self._pending[split] = list(parts), other._pending[split]
        self._add_sums(other.bytes, other._fingerprint)

    def _add(self, split: str, parts: list[Buckets]) -> None:
        self._parts.setdefault(split, []).extend(parts)
        self._pending[split] = self._pending.get(split, 0) + sum(len(part.starts) for part in parts)
        if self._pending[split] >= _PENDING:
            self.buckets(split)

    def _add_sums(self, size: int, fingerprint: tuple[int, int]) -> None:
        self.bytes += size
        high, low = (mine + theirs & _HASH_MASK for mine, theirs in zip(self._fingerprint, fingerprint, strict=True))
        self._fingerprint = high, low


def is_fingerprint(text: str) -> bool:
    """Return whether a text is the fingerprint of a set of inputs."""
    return _FINGERPRINT.fullmatch(text) is not None


def join_fingerprints(fingerprint: str, other: str) -> str:
    """Return the fingerprint of the union of two sets of inputs, from those of each: it is a sum over the inputs."""
    halves = [[int(text[:16], 16), int(text[16:], 16)] for text in (fingerprint, other)]
    return "".join(f"{sum(pair) & _HASH_MASK:016x}" for pair in zip(*halves, strict=True))


def _bucket_equal_parts(positions: Positions, sizes: npt.NDArray[np.int64], texts: npt.NDArray[np.int64]) -> Buckets:
    return Buckets(positions >> _BUCKET_SHIFT << _BUCKET_SHIFT, sizes, np.ones(len(sizes), np.int64), texts)


def _bucket_runs(positions: Positions, sizes: npt.NDArray[np.int64], texts: npt.NDArray[np.int64]) -> Buckets:
    records = 1 if len(sizes) < _FEW_RECORDS else _RUN_RECORDS
    runs, megabytes = np.arange(len(sizes)) // records, np.cumsum(sizes) >> _RUN_BYTES_SHIFT
    first = np.flatnonzero(np.diff(runs, prepend=-1) | np.diff(megabytes, prepend=-1))
    counts = np.diff(first, append=len(sizes))
    return Buckets(positions[first], np.add.reduceat(sizes, first), counts, np.add.reduceat(texts, first))

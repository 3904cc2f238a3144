"""Sums of the first pass: bytes by position in the order of records, and a fingerprint of the input.

The order of records is a range of 64-bit positions. A tally adds up the bytes of narrow parts of it ("buckets"), between which
shards can begin: a small table that does not depend on the order of adding.

Shuffled positions fill the range evenly, and a bucket is one of its 2**18 equal parts. Without a shuffle, a bucket has up to 16
neighbouring records of about 1 MB together, or a single record in a pack of fewer than 256.
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

# With 10,000 shards (1 TB) a shard still has 26 buckets, so its ends are off by at most 2 % of it.
BUCKET_BITS = 18
_BUCKET_SHIFT = np.uint64(HASH_BITS - BUCKET_BITS)
_INSIDE_BUCKET = (np.uint64(1) << _BUCKET_SHIFT) - np.uint64(1)
# Without a shuffle, each record of a pack of fewer than 256 has a bucket; larger packs have up to 16 neighbours in a bucket.
_FEW_RECORDS, _RUN_RECORDS = 256, 16
# Shift that turns a number of bytes into a number of MiB: without a shuffle, a new bucket begins where this number changes.
_RUN_BYTES_SHIFT = 20
# Number of buckets that are collected before they are added up.
_MAX_PENDING = 1 << 18
_HASH_MASK = (1 << HASH_BITS) - 1
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """Buckets in ascending order.

    Attributes:
        starts: uint64 [n]: position at which each begins, which is that of its first record only without a shuffle.
        bytes: int64 [n]: bytes of the records in each, as in the input.
        record_counts: int64 [n]: number of records in each.
        extra_bytes: int64 [n]: approximate bytes of the names and extra features that the records have besides their content.
    """

    starts: Positions
    bytes: npt.NDArray[np.int64]
    record_counts: npt.NDArray[np.int64]
    extra_bytes: npt.NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the columns in as few bytes as possible, since workers pass on a bucket for almost every record."""
        # Shuffled buckets begin at multiples of a bucket's width, whose low bits are 0 and need not be pickled.
        has_equal_buckets = bool(len(self.starts)) and not (self.starts & _INSIDE_BUCKET).any()
        starts = narrow(self.starts >> _BUCKET_SHIFT) if has_equal_buckets else self.starts
        columns = (self.bytes, self.record_counts, self.extra_bytes)
        # `narrow` needs at least one number, so an empty column stays unchanged.
        return _unpickle, (
            has_equal_buckets,
            starts,
            *(narrow(column) if len(column) else column for column in columns),
        )

    @classmethod
    def add_up(cls, parts: Iterable[Buckets]) -> Buckets:
        """Return the buckets of all parts, each once and with its sums; the same bucket may be in several parts."""
        parts = list(parts)
        starts, rows = np.unique(np.concatenate([part.starts for part in parts]), return_inverse=True)
        # np.bincount would add up floats, which are inexact beyond 2**53 bytes.
        sums = np.zeros((3, len(starts)), np.int64)
        for name, column in zip(("bytes", "record_counts", "extra_bytes"), sums, strict=True):
            np.add.at(column, rows, np.concatenate([getattr(part, name) for part in parts]))
        return cls(starts, *sums)


def _unpickle(has_equal_buckets: bool, starts: npt.NDArray[Any], *columns: npt.NDArray[Any]) -> Buckets:
    """Return the buckets that `Buckets.__reduce__` pickled; with `has_equal_buckets`, starts lack their low bits, which are 0."""
    starts = starts.astype(np.uint64)
    return Buckets(
        starts << _BUCKET_SHIFT if has_equal_buckets else starts, *(column.astype(np.int64) for column in columns)
    )


@dataclasses.dataclass(frozen=True)
class TallyPart:
    """Sums for one pack of references, small enough to pass on to another worker.

    Attributes:
        buckets_by_split: buckets of each split; the same bucket may occur several times.
        bytes: total bytes of the records in the input.
        fingerprint: sums of the two halves of all keys' digests, each digest multiplied by an odd number from its record's size,
            modulo 2**64.
    """

    buckets_by_split: dict[str, Buckets]
    bytes: int
    fingerprint: tuple[int, int]

    @classmethod
    def from_pack(
        cls, pack: Pack, digests: Digests, *, is_shuffled: bool, extra_bytes: npt.NDArray[np.int64] | None = None
    ) -> TallyPart:
        """Return the sums for a pack.

        Args:
            pack: the pack; without a shuffle, of references that are neighbours in the source's order.
            digests: digests of its keys.
            is_shuffled: whether its positions are shuffled.
            extra_bytes: int64 [n]: approximate bytes of the names and extra features that each record has besides its content;
                None if there are none.
        """
        make_buckets = _make_equal_buckets if is_shuffled else _make_run_buckets
        if extra_bytes is None:
            extra_bytes = np.zeros(len(pack.keys), np.int64)
        buckets_by_split = {}
        for split, rows in pack.rows_by_split():
            buckets_by_split[split] = make_buckets(
                pack.positions[rows], pack.sizes[rows].astype(np.int64), extra_bytes[rows]
            )
        # The fingerprint must also change with a size. Odd factors, which have inverses modulo 2**64, keep digests distinct.
        odd_factors = pack.sizes.astype(np.uint64) * np.uint64(2) + np.uint64(1)
        high, low = (digests * odd_factors[:, None]).sum(axis=0, dtype=np.uint64).tolist()
        return cls(buckets_by_split, int(pack.sizes.sum(dtype=np.int64)), (high, low))


class Tally:
    """The sum of any number of TallyParts.

    Attributes:
        bytes: total bytes of the records in the input.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._fingerprint = (0, 0)
        self._parts: dict[str, list[Buckets]] = {}
        # By split, the number of buckets that were added since they were last added up.
        self._pending: dict[str, int] = {}

    @property
    def splits(self) -> list[str]:
        """The splits that have records, sorted."""
        return sorted(self._parts)

    @property
    def fingerprint(self) -> str:
        """128 bits in hexadecimal digits: equal for equal keys and sizes, whatever their order."""
        return "".join(f"{half:016x}" for half in self._fingerprint)

    def add_up_buckets(self, split: str) -> Buckets:
        """Add up the buckets of a split, and return them, each once."""
        self._parts[split] = [Buckets.add_up(self._parts[split])]
        self._pending[split] = 0
        return self._parts[split][0]

    def add(self, part: TallyPart) -> None:
        """Add a part."""
        for split, buckets in part.buckets_by_split.items():
            self._add_buckets(split, [buckets])
        self._add_sums(part.bytes, part.fingerprint)

    def merge(self, other: Tally) -> None:
        """Add another tally."""
        for split, parts in other._parts.items():
            if split in self._parts:
                self._add_buckets(split, parts)
            else:
                # Not by `_add_buckets`, which may add them up again: over many merges, that costs the square of their number.
                self._parts[split], self._pending[split] = list(parts), other._pending[split]
        self._add_sums(other.bytes, other._fingerprint)

    def _add_buckets(self, split: str, parts: list[Buckets]) -> None:
        """Add tables of buckets to a split; add them up once there are many, so that memory holds each bucket about once."""
        self._parts.setdefault(split, []).extend(parts)
        self._pending[split] = self._pending.get(split, 0) + sum(len(part.starts) for part in parts)
        if self._pending[split] >= _MAX_PENDING:
            self.add_up_buckets(split)

    def _add_sums(self, input_bytes: int, fingerprint: tuple[int, int]) -> None:
        """Add the bytes and the fingerprint of a part; the halves of fingerprints are sums modulo 2**64."""
        self.bytes += input_bytes
        high, low = self._fingerprint
        other_high, other_low = fingerprint
        self._fingerprint = (high + other_high) & _HASH_MASK, (low + other_low) & _HASH_MASK


def is_fingerprint(text: str) -> bool:
    """Return whether a string has the form of a fingerprint."""
    return _FINGERPRINT.fullmatch(text) is not None


def join_fingerprints(fingerprint: str, other: str) -> str:
    """Return the fingerprint of the union of two disjoint sets of inputs from their fingerprints, which are sums over inputs."""
    high = (int(fingerprint[:16], 16) + int(other[:16], 16)) & _HASH_MASK
    low = (int(fingerprint[16:], 16) + int(other[16:], 16)) & _HASH_MASK
    return f"{high:016x}{low:016x}"


def _make_equal_buckets(
    positions: Positions, sizes: npt.NDArray[np.int64], extra_bytes: npt.NDArray[np.int64]
) -> Buckets:
    """Return a bucket for each record: the one of 2**18 equal parts of the range that has its position."""
    return Buckets(positions >> _BUCKET_SHIFT << _BUCKET_SHIFT, sizes, np.ones(len(sizes), np.int64), extra_bytes)


def _make_run_buckets(
    positions: Positions, sizes: npt.NDArray[np.int64], extra_bytes: npt.NDArray[np.int64]
) -> Buckets:
    """Return a bucket for each run of up to 16 neighbours and about 1 MB, or for each record if there are fewer than 256."""
    run_length = 1 if len(sizes) < _FEW_RECORDS else _RUN_RECORDS
    runs = np.arange(len(sizes)) // run_length
    megabytes = np.cumsum(sizes) >> _RUN_BYTES_SHIFT
    # A bucket begins where the number of the run or of the megabyte changes; -1 before the first number begins the first bucket.
    firsts = np.flatnonzero(np.diff(runs, prepend=-1) | np.diff(megabytes, prepend=-1))
    counts = np.diff(firsts, append=len(sizes))
    return Buckets(positions[firsts], np.add.reduceat(sizes, firsts), counts, np.add.reduceat(extra_bytes, firsts))

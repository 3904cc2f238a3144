"""The order of records: a 64-bit position for each, by which shards are cut and records stand in them.

Shuffled, a position depends on the record's key and the seed alone, so that records mix globally, and a record keeps its place
among the others whatever else the input holds. Unshuffled, records stand as the source lists them: its units in their order, and
the records of each as they are listed.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Positions: TypeAlias = npt.NDArray[np.uint64]

# Unshuffled, a position is a unit's number and a record's number in it.
_UNIT_SHIFT = 40
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclasses.dataclass(frozen=True)
class Order:
    """Order of records.

    Attributes:
        shuffle: by a hash of their keys, or as the source lists them.
        seed: of the hash.
    """

    shuffle: bool
    seed: int

    def positions(self, digests: Positions, unit: int, first: int) -> Positions:
        """Return the positions of records that were listed one after the other.

        Args:
            digests: uint64 [n]: 64 bits of the digest of each record's key.
            unit: number of the unit that lists them.
            first: number of the first of them among the unit's records.

        Returns:
            uint64 [n], as distinct as the digests are. Shuffled, the finaliser of splitmix64 (Steele, Lea and Flood, "Fast
            Splittable Pseudorandom Number Generators", 2014) over the digest moved by the seed: a bijection for every seed.
        """
        if not self.shuffle:
            start = (unit << _UNIT_SHIFT) + first
            return np.arange(start, start + len(digests), dtype=np.uint64)
        # Products and sums of uint64 arrays are taken modulo 2**64.
        value: Positions = digests + np.uint64((self.seed + 1) * _GOLDEN & 2**64 - 1)
        value = (value ^ value >> np.uint64(30)) * np.uint64(_FIRST)
        value = (value ^ value >> np.uint64(27)) * np.uint64(_SECOND)
        value = value ^ value >> np.uint64(31)
        return value

"""The order of records: a 64-bit position for each, by which records are assigned to shards and sorted.

With a shuffle, a position depends only on the record's key and the seed, so records mix globally, and the order of two records does
not depend on the rest of the input. Without a shuffle, records are in the order of the source: by units, and within a unit as
listed.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Positions: TypeAlias = npt.NDArray[np.uint64]

# Without a shuffle, a position is the index of the unit and, in the lower 40 bits, that of the record in it.
_UNIT_SHIFT = 40
# The increment and the two multipliers of splitmix64.
_GOLDEN, _FIRST_FACTOR, _SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclasses.dataclass(frozen=True)
class RecordOrder:
    """Order of records.

    Attributes:
        shuffle: whether records are ordered by a hash of their keys, instead of as the source lists them.
        seed: seed of the hash.
    """

    shuffle: bool
    seed: int

    def positions(self, digests: npt.NDArray[np.uint64], unit_index: int, first_index: int) -> Positions:
        """Return the positions of consecutively listed records.

        Args:
            digests: uint64 [n]: the low half of the digest of each record's key.
            unit_index: index of the unit.
            first_index: index in the unit of the first of these records.

        Returns:
            uint64 [n]. With a shuffle, the finaliser of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
            Generators", 2014) of digest + (seed + 1) * increment: different digests have different positions for every seed.
        """
        if not self.shuffle:
            start = (unit_index << _UNIT_SHIFT) + first_index
            return np.arange(start, start + len(digests), dtype=np.uint64)
        # Products and sums of uint64 arrays are taken modulo 2**64.
        mixed: Positions = digests + np.uint64(((self.seed + 1) * _GOLDEN) % 2**64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST_FACTOR)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND_FACTOR)
        mixed = mixed ^ (mixed >> np.uint64(31))
        return mixed

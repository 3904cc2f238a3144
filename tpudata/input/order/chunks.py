"""Chunks: neighbouring records of one shard that are read together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = "npt.NDArray[np.int64]"


@dataclasses.dataclass(frozen=True, eq=False)
class Chunks:
    """The records of a split in runs that are read together; none crosses the end of a shard.

    Attributes:
        firsts: index of the first record of each chunk, int64 [chunks].
        stops: index of the record after the last one of each chunk, int64 [chunks].
    """

    firsts: Integers
    stops: Integers

    @classmethod
    def cut(cls, record_counts: Sequence[int], length: int) -> Chunks:
        """Return chunks of `length` records; the last one of a shard may be shorter.

        Args:
            record_counts: number of records of each shard.
            length: number of records of a chunk.
        """
        shard_stops = np.cumsum(np.asarray(record_counts, np.int64))
        shard_firsts = shard_stops - np.asarray(record_counts, np.int64)
        firsts = np.concatenate(
            [np.arange(first, stop, length) for first, stop in zip(shard_firsts, shard_stops, strict=True)]
        )
        # Each chunk ends where the next one begins.
        return cls(firsts, np.append(firsts[1:], shard_stops[-1]))

    @property
    def num_records(self) -> int:
        """Number of records in all chunks."""
        return int(self.stops[-1])


def count_chunk_records(num_records: int, record_bytes: int, chunk_bytes: int, min_chunks: int = 1) -> int:
    """Return the number of records in a chunk: a power of two, so that chunks of 64 or more records end where index blocks do.

    Args:
        num_records: number of records.
        record_bytes: usual size of a record in bytes.
        chunk_bytes: minimum size of a chunk in bytes; a chunk of several records is less than twice as large.
        min_chunks: minimum number of chunks; chunks are smaller than `chunk_bytes` if there would be fewer.
    """
    length = 1
    while length * record_bytes < chunk_bytes and length * 2 * min_chunks <= num_records:
        length *= 2
    return length

"""Sizes of a split's records, from its manifest, and from the indexes of large or compressed shards."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tpudata.format import Dataset
from tpudata.input.graph.reading.kept_shards import KeptShards
from tpudata.input.order.chunks import Integers

# The records of a smaller shard count as equal: the manifest has their mean, and a window differs by less than two such shards.
# A thousand indexes take 1.6 s on gs://.
_EVEN_SHARD_BYTES = 1 << 28
# Places in memory, 8 MB; of more records, those between two places count as equal.
_MOST_PLACES = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class RecordSizes:
    """Bytes before the records of a split, those in quarantine omitted.

    Attributes:
        places: numbers of some records, ascending from 0, and the number of records at the end: int64 [n].
        ends: bytes of all records before each of them, before compression: int64 [n].
    """

    places: Integers
    ends: Integers

    @classmethod
    def of(cls, dataset: Dataset, split: str) -> RecordSizes:
        """Return the sizes in a split; read the indexes that it takes, many at the same time.

        Raises:
            CorruptionError: an index is damaged.
            DatasetError: an index belongs to another shard.
            StorageError: an index cannot be read.
        """
        kept = KeptShards.of(dataset, split)
        step = -(-int(kept.ends[-1]) // _MOST_PLACES)

        def read_sizes(number: int) -> tuple[Integers, Integers, int]:
            shard, begin = kept.shards[number], int(kept.begins[number])
            if dataset.manifest.compression is None and shard.bytes <= _EVEN_SHARD_BYTES:
                count = int(kept.ends[number]) - begin
                return np.array([begin]), np.zeros(1, np.int64), shard.bytes * count // shard.records
            offsets = dataset.index(shard).offsets.astype(np.int64)
            sizes = np.concatenate([np.diff(offsets[first : last + 1]) for first, last in kept.runs[number].tolist()])
            before = np.append(0, np.cumsum(sizes))
            places = np.arange(-begin % step, len(sizes), step)
            return places + begin, before[places], int(before[-1])

        parts = kept.map(read_sizes)
        totals = np.cumsum([0, *(total for _, _, total in parts)])
        ends = [before + total for (_, before, _), total in zip(parts, totals[:-1], strict=True)]
        return cls(
            np.append(np.concatenate([places for places, _, _ in parts]), kept.ends[-1]),
            np.append(np.concatenate(ends), totals[-1]),
        )

    @property
    def mean(self) -> int:
        """Mean size of a record in bytes, at least 1."""
        return max(1, int(self.ends[-1]) // int(self.places[-1]))

    def before(self, records: Integers) -> npt.NDArray[np.float64]:
        """Return the bytes before records, by their numbers."""
        return np.interp(records, self.places, self.ends)

    def at(self, sizes: npt.NDArray[np.float64]) -> Integers:
        """Return the numbers of the records that begin after so many bytes, or just before."""
        return np.interp(sizes, self.ends, self.places).astype(np.int64)

"""Sizes of a split's records, from its manifest, and from the indexes of large or compressed shards."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tpudata.format import Dataset
from tpudata.input.graph.reading.kept_shards import KeptShards
from tpudata.input.order.chunks import Integers

# The records of a smaller shard count as equal: the manifest gives their mean, and a window differs by less than two of them.
# A thousand indexes take 1.6 s on gs://.
_EVEN_SHARD_BYTES = 1 << 28
# Maximum number of sampled records, 16 MB. In a larger split, the records between two samples count as equal.
_MAX_SAMPLES = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class RecordSizes:
    """Cumulative sizes of the records of a split; records in quarantine are omitted.

    Attributes:
        sampled_records: record numbers of some records, ascending from 0, and last the number of all records: int64 [n].
        bytes_before: bytes of all records before each sampled record, and last of all records; uncompressed, int64 [n].
    """

    sampled_records: Integers
    bytes_before: Integers

    @classmethod
    def read(cls, dataset: Dataset, split: str) -> RecordSizes:
        """Return the sizes in a split; reads the indexes of large or compressed shards, many at the same time.

        Raises:
            CorruptionError: an index is damaged.
            DatasetError: an index belongs to another shard.
            StorageError: an index cannot be read.
        """
        shards = KeptShards.make(dataset, split)
        sampling_interval = -(-int(shards.stops[-1]) // _MAX_SAMPLES)

        def read_sizes(shard_index: int) -> tuple[Integers, Integers, int]:
            """Return the sampled records of a shard, the bytes of its records before each sampled one, and of all."""
            shard, first_kept = shards.shards[shard_index], int(shards.firsts[shard_index])
            if dataset.manifest.compression is None and shard.bytes <= _EVEN_SHARD_BYTES:
                # All records count as equal, so that the first one is sample enough.
                count = int(shards.stops[shard_index]) - first_kept
                return np.array([first_kept]), np.zeros(1, np.int64), shard.bytes * count // shard.records
            offsets = dataset.index(shard).offsets.astype(np.int64)
            sizes = np.concatenate(
                [np.diff(offsets[first : stop + 1]) for first, stop in shards.runs[shard_index].tolist()]
            )
            bytes_before = np.append(0, np.cumsum(sizes))
            # The records of this shard among every `sampling_interval`-th record of the split.
            sampled = np.arange(-first_kept % sampling_interval, len(sizes), sampling_interval)
            return sampled + first_kept, bytes_before[sampled], int(bytes_before[-1])

        shard_sizes = shards.map(read_sizes)
        # Bytes of the split before each shard, and last of the whole split.
        bytes_before_shards = np.cumsum([0, *(shard_bytes for _, _, shard_bytes in shard_sizes)])
        bytes_before_samples = [
            bytes_before_shard + bytes_in_shard_before
            for (_, bytes_in_shard_before, _), bytes_before_shard in zip(
                shard_sizes, bytes_before_shards[:-1], strict=True
            )
        ]
        return cls(
            np.append(np.concatenate([sampled for sampled, _, _ in shard_sizes]), shards.stops[-1]),
            np.append(np.concatenate(bytes_before_samples), bytes_before_shards[-1]),
        )

    @property
    def total_bytes(self) -> int:
        """Bytes of all records."""
        return int(self.bytes_before[-1])

    @property
    def mean(self) -> int:
        """Mean size of a record in bytes, at least 1."""
        return max(1, self.total_bytes // int(self.sampled_records[-1]))

    def sum_bytes_before(self, records: Integers) -> npt.NDArray[np.float64]:
        """Return for each record number the bytes of all records before it, interpolated between the sampled records."""
        return np.interp(records, self.sampled_records, self.bytes_before)

    def find_records(self, offsets: npt.NDArray[np.float64]) -> Integers:
        """Return the record number of the record at each byte offset in the split, interpolated between the sampled records."""
        return np.interp(offsets, self.bytes_before, self.sampled_records).astype(np.int64)

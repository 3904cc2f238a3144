"""The shards of a split with their kept records, and work on many of them at the same time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from tpudata.format import Dataset, Shard
from tpudata.input.order.chunks import Integers

_Result = TypeVar("_Result")
# Number of index files that are read at the same time.
_READERS = 32


@dataclasses.dataclass(frozen=True, eq=False)
class KeptShards:
    """The shards of a split; records in quarantine are omitted, and have no record numbers.

    Attributes:
        shards: all shards.
        runs: for each shard the runs of kept records, [first, stop) in it, int64 [runs, 2].
        firsts: index of each shard's first kept record among all kept records, int64 [shards].
        stops: index of the record after its last one, int64 [shards].
    """

    shards: tuple[Shard, ...]
    runs: tuple[Integers, ...]
    firsts: Integers
    stops: Integers

    @classmethod
    def make(cls, dataset: Dataset, split: str) -> KeptShards:
        """Return the shards of a split."""
        shards = dataset.manifest.split(split).shards
        runs = tuple(dataset.kept_runs(shard) for shard in shards)
        counts = np.array([int((shard_runs[:, 1] - shard_runs[:, 0]).sum()) for shard_runs in runs], np.int64)
        stops = np.cumsum(counts)
        return cls(shards, runs, stops - counts, stops)

    @property
    def indices(self) -> Integers:
        """Indices of the shards that have kept records, int64 [n]."""
        return np.flatnonzero(self.stops > self.firsts)

    def map(self, function: Callable[[int], _Result]) -> list[_Result]:
        """Call a function with the number of each shard that has kept records, and return the results in that order.

        It runs in threads, since it may read the shard's index file.
        """
        with ThreadPoolExecutor(_READERS, thread_name_prefix="tpudata-index") as pool:
            return list(pool.map(function, self.indices.tolist()))

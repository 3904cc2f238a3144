"""Sample of each split for a report: a fixed seed picks the records, which are read through the index."""

from __future__ import annotations

import numpy as np

from tpudata.format import Dataset
from tpudata.report.records import SampleReader
from tpudata.report.split_sample import SplitSample
from tpudata.source import RecordSource

DEFAULT_SAMPLES = 2000
_BATCH = 64


def sample_dataset(dataset: Dataset, samples: int = DEFAULT_SAMPLES) -> dict[str, SplitSample]:
    """Read some records of each split, the same ones in every run.

    Args:
        dataset: the dataset.
        samples: number of records of a split, at most.

    Raises:
        CorruptionError: one of them is damaged.
        StorageError: a shard or its index cannot be read.
    """
    first_split: dict[bytes, str] = {}
    return {name: _sample_split(dataset, name, samples, first_split) for name in dataset.manifest.splits}


def _sample_split(dataset: Dataset, split: str, samples: int, first_split: dict[bytes, str]) -> SplitSample:
    """Read some records of a split; `first_split` gets the digest of each, and has those of earlier splits."""
    source = RecordSource(dataset.path, split, decode=None)
    sample, reader = SplitSample(len(source)), SampleReader(dataset)
    digests: set[bytes] = set()
    count = min(samples, len(source))
    numbers = np.sort(np.random.default_rng(0).choice(len(source), count, replace=False)).tolist()
    for first in range(0, count, _BATCH):
        for data in source.__getitems__(numbers[first : first + _BATCH]):
            digest, is_near = reader.add(data, sample)
            other = first_split.setdefault(digest, split)
            if other != split:
                sample.shared[other] += 1
            elif digest in digests:
                sample.duplicates += 1
            elif is_near:
                sample.near_duplicates += 1
            digests.add(digest)
    sample.read = count
    return sample

"""Sample of each split for a report: a fixed seed picks the records, which are read through the index."""

from __future__ import annotations

import numpy as np

from tpudata.format import Dataset
from tpudata.report.records import SampleBuilder
from tpudata.report.split_sample import SplitSample
from tpudata.source import RecordSource

DEFAULT_SAMPLES = 2000
_BATCH_SIZE = 64


def sample_dataset(dataset: Dataset, samples: int = DEFAULT_SAMPLES) -> dict[str, SplitSample]:
    """Return statistics of some records of each split, by the split's name; every run reads the same records.

    Args:
        dataset: the dataset.
        samples: maximum number of records of a split.

    Raises:
        CorruptionError: a record that is read is damaged.
        StorageError: a shard or its index cannot be read.
    """
    # The first split that has a record's content, by the digest of the content: finds records that several splits share.
    first_split_by_digest: dict[bytes, str] = {}
    return {name: _sample_split(dataset, name, samples, first_split_by_digest) for name in dataset.manifest.splits}


def _sample_split(
    dataset: Dataset, split: str, max_records: int, first_split_by_digest: dict[bytes, str]
) -> SplitSample:
    """Return a sample of the records of a split; an empty one if the split has none outside of quarantine.

    Args:
        dataset: the dataset.
        split: name of the split.
        max_records: maximum number of records to read.
        first_split_by_digest: the first split that has a record's content, by the digest of the content; this function adds the
            contents that earlier splits lack.
    """
    # RecordSource rejects a split without records outside of quarantine.
    if not any(len(dataset.kept_runs(shard)) for shard in dataset.manifest.split(split).shards):
        return SplitSample(0)
    source = RecordSource(dataset.path, split, decode=None)
    sample = SplitSample(len(source), read_count=min(max_records, len(source)))
    builder = SampleBuilder(dataset, sample)
    digests: set[bytes] = set()
    indices = np.sort(np.random.default_rng(0).choice(len(source), sample.read_count, replace=False)).tolist()
    for start in range(0, sample.read_count, _BATCH_SIZE):
        for data in source.__getitems__(indices[start : start + _BATCH_SIZE]):
            digest, is_near = builder.add(data)
            first_split = first_split_by_digest.setdefault(digest, split)
            if first_split != split:
                sample.shared[first_split] += 1
            elif digest in digests:
                sample.duplicate_count += 1
            elif is_near:
                sample.near_duplicate_count += 1
            digests.add(digest)
    return sample

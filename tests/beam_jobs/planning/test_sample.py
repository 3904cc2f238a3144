"""The sample by which bytes are estimated is the same for any order of the inputs.

tests/beam_jobs/test_shard_sizes.py compares estimates of plans with datasets; no command shows the sample itself.
"""

from __future__ import annotations

import random

import numpy as np

from beam_jobs.planning.sample import SAMPLE_SIZE, MergeSamples, Sample
from beam_jobs.references.packs.pack import pack_references
from beam_jobs.references.record_order import RecordOrder
from beam_jobs.references.reference import WHOLE_FILE, Reference, key_digest


def listed(count: int, split: str) -> list[Reference]:
    return [Reference(f"{split}/{n}", split, (), f"/in/{split}/{n}", WHOLE_FILE, n) for n in range(count)]


def test_each_split_has_the_same_sample_in_any_order() -> None:
    references = [*listed(3000, "train"), *listed(50, "test")]
    due = {
        split: sorted((item for item in references if item.split == split), key=lambda item: key_digest(item.key))
        for split in ("train", "test")
    }
    sample = Sample()
    sample.add(references)
    assert sample.references_by_split == {split: items[:SAMPLE_SIZE] for split, items in due.items()}
    random.Random(0).shuffle(references)
    other = Sample()
    other.add(references)
    assert other.references_by_split == sample.references_by_split


def test_merged_samples_equal_the_sample_of_all_inputs() -> None:
    references = [*listed(9000, "train"), *listed(300, "test")]
    whole = Sample()
    whole.add(references)
    combine = MergeSamples()
    parts = []
    bounds: dict[str, np.uint64] = {}
    for pack, digests in pack_references(references, RecordOrder(shuffle=True, seed=0), 0):
        part = combine.create_accumulator()
        for smallest in pack.select_smallest(digests, SAMPLE_SIZE, bounds):
            part = combine.add_input(part, smallest.to_bytes())
        parts.append(part)
    merged = combine.extract_output(combine.merge_accumulators(reversed(parts)))
    assert merged.references_by_split == whole.references_by_split

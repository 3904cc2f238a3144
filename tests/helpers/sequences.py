"""A dataset of token sequences on disk, as `tpudata convert text --tokenizer chars --sequence-length` leaves it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from tests.helpers.datasets import write_dataset
from tpudata.format import Feature, open_dataset, write_metadata

VOCAB_SIZE = 12


def write_sequences(folder: Path, counts: dict[str, int], length: int = 16) -> Path:
    """Writes rows that count up from where each begins, so that the next token can be learned; returns the folder."""
    rng = np.random.default_rng(0)

    def row() -> dict[str, bytes]:
        ids = (rng.integers(VOCAB_SIZE) + np.arange(length)) % VOCAB_SIZE
        return {"input_ids": ids.astype("<i4").tobytes()}

    splits = {split: [row() for _ in range(count)] for split, count in counts.items()}
    features = [Feature("input_ids", "bytes", "int32", (length,), "raw")]
    write_dataset(str(folder), splits, features, layout="sequences", shards=1)
    manifest = dataclasses.replace(
        open_dataset(str(folder)).manifest, options={"tokenizer": {"kind": "chars", "vocab_size": VOCAB_SIZE}}
    )
    write_metadata(str(folder), manifest, None)
    return folder

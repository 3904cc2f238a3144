"""scikit-learn's digits as a dataset on disk, with everything that a manifest can say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from tests.helpers.datasets import FILENAME, LABEL, encode_image, write_dataset
from tpudata.format import Feature, Source, open_dataset, write_metadata


def write_digits(folder: Path, counts: dict[str, int], shards: int = 1, label_offset: int = 0) -> Path:
    """Writes the first digits in their order, `counts` of them to each split; returns the folder."""
    digits = load_digits()
    images = (digits.images * (255 / 16)).round().astype(np.uint8)
    label = dataclasses.replace(LABEL, label_offset=label_offset)
    records = [
        {
            "image/encoded": encode_image(image),
            LABEL.name: int(target) + label_offset,
            FILENAME.name: f"{number:04d}.png",
        }
        for number, (image, target) in enumerate(zip(images, digits.target, strict=True))
    ]
    splits, start = {}, 0
    for split, count in counts.items():
        splits[split] = records[start : start + count]
        start += count
    features = [Feature("image/encoded", "bytes", "uint8", (8, 8, 1), "image"), label, FILENAME]
    write_dataset(str(folder), splits, features, layout="imagenet", shards=shards, classes=10)
    manifest = dataclasses.replace(
        open_dataset(str(folder)).manifest,
        source=Source("digits", files=start, bytes=64 * start, fingerprint="0" * 16, ignored_files=1),
        rejected={"not an image": 2},
        options={"seed": 0},
    )
    write_metadata(str(folder), manifest, [str(digit) for digit in range(10)])
    return folder

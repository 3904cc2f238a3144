"""Datasets to damage, and what verify finds in them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.helpers.datasets import write_images
from tpudata.format import (
    verify,
)

# The file is put back after each example.
FIRST, SECOND, OTHER = (
    "train-00000-of-00002.tfrecord",
    "train-00001-of-00002.tfrecord",
    "test-00000-of-00002.tfrecord",
)

FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)


WHERE = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7))


def write_raw(folder: Path, compression: str | None = None) -> Path:
    """Two training shards of equal size with two blocks each, and two small ones; records of one size within a shard."""
    rng = np.random.default_rng(0)
    images = {
        split: list(rng.integers(0, 256, (count, 4, 4, 1), np.uint8)) for split, count in (("train", 140), ("test", 3))
    }
    labels = {split: [i % 10 for i in range(len(pictures))] for split, pictures in images.items()}
    write_images(str(folder), images, labels, shape=(4, 4, 1), layout="raw", shards=2, compression=compression)
    return folder


def places(folder: Path, **options: Any) -> list[tuple[str, int | None]]:
    return [
        (Path(defect.path).relative_to(folder).as_posix(), defect.offset) for defect in verify(str(folder), **options)
    ]


def reasons(folder: Path) -> list[str]:
    return [defect.reason for defect in verify(str(folder))]


def record_starts(path: Path) -> list[int]:
    """Where each record of a whole file begins, and where the file ends: a plain loop."""
    data, starts = path.read_bytes(), [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + 16 + struct.unpack_from("<Q", data, starts[-1])[0])
    return starts


class Replaced:
    """A file with other content while the context lasts."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.before = path, path.read_bytes()
        self.content = content

    def __enter__(self) -> None:
        self.path.write_bytes(self.content)

    def __exit__(self, *error: object) -> None:
        self.path.write_bytes(self.before)


def flipped(data: bytes, where: float, bit: int) -> tuple[bytes, int]:
    place = int(where * len(data))
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed), place


def swap(one: Path, other: Path) -> None:
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)

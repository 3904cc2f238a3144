from __future__ import annotations

import dataclasses
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scripts.fake_gcs import FakeGcs
from tests.helpers.datasets import Written, write_images
from tests.helpers.stores import serve_gs


@pytest.fixture(scope="module", params=[None, "gzip"])
def pictures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """150 small colour pictures of different sizes in 3 shards, plain and compressed: a compressed block holds 64 records."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (4 + i % 5, 9 - i % 4, 3), dtype=np.uint8) for i in range(150)]
    labels = {"train": [i % 10 for i in range(150)]}
    folder = str(tmp_path_factory.mktemp("pictures"))
    return write_images(folder, {"train": images}, labels, shape=(None, None, 3), compression=request.param)


@pytest.fixture
def store() -> Iterator[FakeGcs]:
    """A store that gs:// paths lead to."""
    with serve_gs("data") as store:
        yield store
        # What is in flight would be tried again for minutes, next to other tests.
        store.faults.clear()
        gc.collect()
        for thread in threading.enumerate():
            if thread.name.startswith("tpudata-source"):
                thread.join(10)


@dataclasses.dataclass
class Stored:
    """A dataset of 600 records of 5 kB in 4 shards on a store.

    Attributes:
        store: the store.
        path: the dataset on it.
        copy: the same dataset on a disk.
    """

    store: FakeGcs
    path: str
    copy: Path

    def shard_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.copy.glob("*.tfrecord"))

    def shard_reads(self) -> list[int]:
        """Return the bytes of the answers to requests for parts of shards, and forget them."""
        sizes = [read.size for read in self.store.reads if read.name.endswith(".tfrecord")]
        self.store.reads.clear()
        return sizes


@pytest.fixture(scope="session", params=[None, "gzip"], ids=["plain", "gzip"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 records of 5 kB in 4 shards, each of other bytes; labels are those of a sorted dataset."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (50, 100, 1), dtype=np.uint8) for _ in range(600)]
    labels = {"train": [n // 60 for n in range(600)]}
    folder = tmp_path_factory.mktemp("large")
    write_images(
        str(folder),
        {"train": images},
        labels,
        shape=(50, 100, 1),
        layout="raw",
        shards=4,
        compression=request.param,
    )
    return folder


@pytest.fixture
def stored(store: FakeGcs, large: Path) -> Stored:
    for file in large.rglob("*"):
        if file.is_file():
            store.put("data", f"large/{file.relative_to(large)}", file.read_bytes())
    return Stored(store, "gs://data/large", large)

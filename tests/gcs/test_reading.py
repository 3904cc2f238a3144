"""What feeding requests of a store: pieces, once, with any block size of TensorFlow's client; here blocks and pieces have a MiB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scripts.fake_gcs import FakeGcs, Fault
from tests.gcs.child import Child, digest
from tests.helpers.datasets import write_dataset
from tpudata.format import Feature

RECORDS, PIXELS, BATCH = 4000, 10_000, 64
SHARDS = 25


@pytest.fixture(scope="module")
def child(proxied: dict[str, str]) -> Iterator[Child]:
    child = Child({**proxied, "GCS_READ_CACHE_BLOCK_SIZE_MB": "1"})
    yield child
    child.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[bytes]]:
    """40 MB in shards of 1.6 MB, as objects; and the records."""
    random = np.random.default_rng(0)
    images = [random.bytes(PIXELS) for _ in range(RECORDS)]
    features = [
        Feature("image_raw", "bytes", "uint8", (100, 100, 1), "raw"),
        Feature("label", "int64", "int64", num_classes=10),
    ]
    folder = tmp_path_factory.mktemp("set")
    records = [{"image_raw": image, "label": 0} for image in images]
    write_dataset(str(folder), {"train": records}, features, layout="raw", shards=SHARDS, classes=10)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}, images


@pytest.fixture
def filled_store(store: FakeGcs, files: tuple[dict[str, bytes], list[bytes]]) -> FakeGcs:
    """The store with the dataset in gs://data/set."""
    for name, data in files[0].items():
        store.put("data", f"set/{name}", data)
    store.needs_token = False
    return store


def shard_bytes(store: FakeGcs) -> int:
    return sum(len(found.data) for name, found in store.buckets["data"].items() if name.endswith(".tfrecord"))


def shard_reads(store: FakeGcs) -> tuple[int, int]:
    """Return the requests for parts of shards, and the bytes that answered them, and forget them."""
    reads = [read.size for read in store.reads if read.name.endswith(".tfrecord")]
    store.reads.clear()
    return len(reads), sum(reads)


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_evaluation_reads_each_byte_once_a_host(
    filled_store: FakeGcs, child: Child, files: tuple[dict[str, bytes], list[bytes]], hosts: int
) -> None:
    shard_reads(filled_store)
    found = child("feed_hosts", "gs://data/set", False, hosts, None)
    requests, sent = shard_reads(filled_store)
    images = [*files[1], *[files[1][-1]] * (-RECORDS % BATCH)]
    rows = BATCH // hosts
    expected = [
        digest(b"".join(image for place, image in enumerate(images) if place % BATCH // rows == host))
        for host in range(hosts)
    ]
    assert found == expected
    assert sent <= 1.05 * hosts * shard_bytes(filled_store)
    # One request a shard, and two for the record that pads the last batch.
    assert requests <= hosts * (SHARDS + 4)


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_training_reads_each_byte_of_an_epoch_on_one_host(filled_store: FakeGcs, child: Child, hosts: int) -> None:
    sizes = []
    for epochs in (1, 5):
        shard_reads(filled_store)
        child("feed_hosts", "gs://data/set", True, hosts, epochs * RECORDS // BATCH)
        requests, sent = shard_reads(filled_store)
        sizes.append(sent)
        # A piece is one request, and two where it begins inside of a shard.
        assert requests < 2.5 * sent / (1 << 20)
    # What is read ahead at the end is in both, a piece more or less for each stream of each host.
    assert abs((sizes[1] - sizes[0]) / shard_bytes(filled_store) - 4) < 0.15 * (1 + hosts)


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_cache_is_filled_by_the_first_epoch_and_read_from_then_on(
    filled_store: FakeGcs, child: Child, tmp_path: Path, hosts: int
) -> None:
    steps = 4 * RECORDS // BATCH
    expected = child("feed_hosts", "gs://data/set", True, hosts, steps)
    shard_reads(filled_store)
    assert child("feed_hosts", "gs://data/set", True, hosts, steps, 0, str(tmp_path)) == expected
    sent = shard_reads(filled_store)[1]
    # All hosts together fetch the split once; more are ends of lanes, which are in pieces of other hosts.
    assert sent <= (1.05 if hosts == 1 else 1.3) * shard_bytes(filled_store)
    assert child("feed_hosts", "gs://data/set", True, hosts, steps, 0, str(tmp_path)) == expected
    # Without hosts, the first record alone, whose layout all others have.
    assert shard_reads(filled_store)[1] <= (0.001 if hosts == 1 else 0.3) * shard_bytes(filled_store)


def test_a_start_in_the_middle_reads_no_more_than_the_first_one(filled_store: FakeGcs, child: Child) -> None:
    sizes = []
    for start in (0, 50_000):
        shard_reads(filled_store)
        child("feed_hosts", "gs://data/set", True, 1, 1, start)
        sizes.append(shard_reads(filled_store)[1])
    assert sizes[1] <= 1.5 * sizes[0]


def test_a_store_that_rejects_requests_is_asked_less(filled_store: FakeGcs, child: Child) -> None:
    expected = child("feed_hosts", "gs://data/set", False, 1, None)
    filled_store.reads.clear()
    # Each of 4 streams is rejected 4 times.
    filled_store.faults.add(Fault("429", "read", "*.tfrecord", passing=8, count=16))
    assert child("feed_hosts", "gs://data/set", False, 1, None) == expected
    rejected = [read.seconds for read in filled_store.reads if read.code == 429]
    assert len(rejected) == 16
    # TensorFlow waits longer after each answer of this kind.
    assert rejected[15] - rejected[11] > 1.5 * (rejected[7] - rejected[3])

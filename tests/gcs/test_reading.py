"""Requests of feeding: each piece once, with any block size of TensorFlow's client. Blocks and pieces have 1 MiB here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.fake_gcs import FakeGcs, Fault
from tests.gcs.child import Child, ChildError, digest
from tests.helpers.datasets import write_dataset
from tests.helpers.frames import add_frame
from tpudata.format import Feature, encode_example

RECORDS, PIXELS, BATCH = 4000, 10_000, 64
FEATURES = [
    Feature("image_raw", "bytes", "uint8", (100, 100, 1), "raw"),
    Feature("label", "int64", "int64", num_classes=10),
]
SHARDS = 25
# Of a stored record.
RECORD_BYTES = 10_058
# Not one of the first shards, which are read before the first batch.
SHARD = "gs://data/set/train-00014-of-00025.tfrecord"


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
    folder = tmp_path_factory.mktemp("set")
    records = [{"image_raw": image, "label": 0} for image in images]
    write_dataset(str(folder), {"train": records}, FEATURES, layout="raw", shards=SHARDS, classes=10)
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


@pytest.mark.cases(2)
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_evaluation_reads_each_byte_once_per_host(
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


@pytest.mark.cases(1)
@pytest.mark.parametrize("training", [False, True])
def test_a_compressed_shard_takes_one_request_and_one_for_its_index(
    filled_store: FakeGcs, child: Child, files: tuple[dict[str, bytes], list[bytes]], tmp_path: Path, training: bool
) -> None:
    records = [{"image_raw": image, "label": 0} for image in files[1]]
    write_dataset(
        str(tmp_path), {"train": records}, FEATURES, layout="raw", shards=SHARDS, classes=10, compression="gzip"
    )
    for path in tmp_path.rglob("*.*"):
        filled_store.put("data", f"gz/{path.relative_to(tmp_path)}", path.read_bytes())
    size = sum(path.stat().st_size for path in tmp_path.glob("*.tfrecord"))
    shards, indexes = [], []
    for epochs in (1, 5) if training else (1,):
        filled_store.reads.clear()
        (found,) = child("feed_hosts", "gs://data/gz", training, 1, epochs * RECORDS // BATCH + 1)
        reads = [read for read in filled_store.reads if read.name.startswith("gz/")]
        shards.append([read.size for read in reads if read.name.endswith(".tfrecord")])
        indexes.append([read.size for read in reads if read.name.endswith(".index")])
    if training:
        # In 3 of the 25 shards a lane ends inside one of the 3 blocks, which is read twice. What is read ahead when
        # the program ends differs on a busy machine.
        assert sum(shards[1]) - sum(shards[0]) <= 4.8 * size
    else:
        assert found == digest(b"".join([*files[1], *[files[1][-1]] * (-RECORDS % BATCH)]))
        # Also the first block for the layout of a record, and the last one for the record that pads the last batch.
        assert sum(shards[0]) <= 1.02 * size + 4 * 64 * RECORD_BYTES
    # All indexes are read when the dataset is opened, and a part of one for each piece, with its size.
    assert len(indexes[-1]) <= SHARDS + 2 * len(shards[-1])
    assert sum(indexes[-1]) <= 0.01 * sum(shards[-1])


@pytest.mark.cases(2)
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_together_read_each_byte_once_per_epoch(filled_store: FakeGcs, child: Child, hosts: int) -> None:
    sizes = []
    for epochs in (1, 5):
        shard_reads(filled_store)
        child("feed_hosts", "gs://data/set", True, hosts, epochs * RECORDS // BATCH)
        requests, sent = shard_reads(filled_store)
        sizes.append(sent)
        # A piece takes one request, or two if it begins inside a shard.
        assert requests < 2.5 * sent / (1 << 20)
    # What is read ahead at the end is in both, a piece more or less for each stream of each host.
    assert abs((sizes[1] - sizes[0]) / shard_bytes(filled_store) - 4) < 0.2 * (1 + hosts)


@pytest.mark.cases(1)
@pytest.mark.parametrize("hosts", [1, 2])
def test_the_first_epoch_fills_a_cache_that_later_epochs_read(
    filled_store: FakeGcs, child: Child, tmp_path: Path, hosts: int
) -> None:
    steps = 4 * RECORDS // BATCH
    expected = child("feed_hosts", "gs://data/set", True, hosts, steps)
    shard_reads(filled_store)
    assert child("feed_hosts", "gs://data/set", True, hosts, steps, 0, str(tmp_path)) == expected
    sent = shard_reads(filled_store)[1]
    # All hosts together fetch the split once, plus the ends of lanes that lie in pieces of other hosts.
    assert sent <= (1.05 if hosts == 1 else 1.3) * shard_bytes(filled_store)
    assert child("feed_hosts", "gs://data/set", True, hosts, steps, 0, str(tmp_path)) == expected
    # A single host reads only the first record, whose layout all others share.
    assert shard_reads(filled_store)[1] <= (0.001 if hosts == 1 else 0.3) * shard_bytes(filled_store)


def test_opening_files_without_an_index_reads_them_once_more(
    filled_store: FakeGcs, child: Child, files: tuple[dict[str, bytes], list[bytes]]
) -> None:
    shard_reads(filled_store)
    found = child("feed_files", "gs://data/set/train-*")
    assert found == digest(b"".join([*files[1], *[files[1][-1]] * (-RECORDS % BATCH)]))
    sent = shard_reads(filled_store)[1]
    assert 2 * shard_bytes(filled_store) <= sent <= 2.1 * shard_bytes(filled_store)


@pytest.mark.parametrize(
    ("kind", "options", "contents", "values"),
    [
        ("TextLineFiles", {}, (b"a\nb\n", b"c\nd\n"), [[b"a", b"b"], [b"c", b"d"]]),
        ("FixedLengthRecordFiles", {"record": [("x", "u1")]}, (b"\1\2", b"\3\4"), [[1, 2], [3, 4]]),
        (
            "TFRecordFiles",
            {"features": [Feature("x", "int64", "int64")]},
            tuple(b"".join(add_frame(encode_example({"x": x})) for x in pair) for pair in ((1, 2), (3, 4))),
            [[1, 2], [3, 4]],
        ),
    ],
    ids=["lines", "fixed", "tfrecord"],
)
def test_feeds_a_list_of_files_without_a_manifest(
    store: FakeGcs, child: Child, kind: str, options: dict[str, Any], contents: tuple[bytes, bytes], values: Any
) -> None:
    for name, data in zip("ab", contents, strict=True):
        store.put("data", f"files/{name}", data)
    assert child("feed_kind", kind, ["gs://data/files/a", "gs://data/files/b"], options) == values


def test_starting_in_the_middle_reads_no_more_than_starting_at_zero(filled_store: FakeGcs, child: Child) -> None:
    sizes = []
    for start in (0, 50_000):
        shard_reads(filled_store)
        child("feed_hosts", "gs://data/set", True, 1, 1, start)
        sizes.append(shard_reads(filled_store)[1])
    assert sizes[1] <= 1.5 * sizes[0]


def test_an_iterator_checkpoint_continues_an_evaluation(
    filled_store: FakeGcs, child: Child, files: tuple[dict[str, bytes], list[bytes]]
) -> None:
    # In the middle of a shard of 160 records.
    rest = [*files[1][20 * BATCH :], *[files[1][-1]] * (-RECORDS % BATCH)]
    assert child("restore_feed", "gs://data/set", 20) == [digest(b"".join(rest))] * 2


def test_training_reports_a_bit_changed_in_transit(filled_store: FakeGcs, child: Child) -> None:
    child("open_feed", "gs://data/set", True)
    assert child("feed_on", 1) == 1
    filled_store.faults.add(Fault("corrupt", "read", SHARD.removeprefix("gs://")))
    with pytest.raises(ChildError, match=r"TpudataError: gs://data/set: a record at byte .* was damaged in transit"):
        child("feed_on", 2 * RECORDS // BATCH)
    assert filled_store.faults.met == 1


def test_requests_slow_down_while_the_store_rejects_them(filled_store: FakeGcs, child: Child) -> None:
    expected = child("feed_hosts", "gs://data/set", False, 1, None)
    filled_store.reads.clear()
    # Each of 4 streams is rejected 4 times.
    filled_store.faults.add(Fault("429", "read", "*.tfrecord", passing=8, count=16))
    assert child("feed_hosts", "gs://data/set", False, 1, None) == expected
    rejected: dict[str, list[float]] = {}
    for read in filled_store.reads:
        if read.code == 429:
            rejected.setdefault(read.name, []).append(read.seconds)
    assert sum(map(len, rejected.values())) == 16
    # TensorFlow waits for 0.1 s after the first answer of this kind, twice as long after each further one, and for up
    # to a second more that it draws.
    for times in rejected.values():
        waits = [after - before for before, after in pairwise(times)]
        assert all(seconds > 0.1 * 2**n for n, seconds in enumerate(waits)), waits


def cut_between_records(data: bytes) -> bytes:
    return data[: 100 * RECORD_BYTES]


def cut_in_a_record(data: bytes) -> bytes:
    return data[: 100 * RECORD_BYTES + 5000]


def lengthen_a_record(data: bytes) -> bytes:
    """Return a shard whose first record has 7 bytes more."""
    # Between its length of 12 bytes, with a checksum, and a checksum of 4.
    return add_frame(data[12 : RECORD_BYTES - 4] + bytes(7)) + data[RECORD_BYTES:]


@pytest.mark.cases(3)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            cut_between_records,
            f"CorruptionError: {SHARD} at byte {100 * RECORD_BYTES}: the file has {100 * RECORD_BYTES} bytes",
        ),
        (cut_in_a_record, f"CorruptionError: {SHARD} at byte {100 * RECORD_BYTES}: the record is damaged or cut"),
        (lengthen_a_record, rf"CorruptionError: {SHARD} at byte \d+: the file has {160 * RECORD_BYTES + 7} bytes"),
        (None, f"StorageError: {SHARD} could not be read: .* 404 "),
    ],
    ids=["cut between records", "cut in a record", "other records", "removed"],
)
def test_names_a_shard_that_changes_while_it_is_read(
    filled_store: FakeGcs, child: Child, change: Callable[[bytes], bytes] | None, error: str, training: bool
) -> None:
    child("open_feed", "gs://data/set", training)
    assert child("feed_on", 1) == 1
    objects = filled_store.buckets["data"]
    if change is None:
        del objects[SHARD.removeprefix("gs://data/")]
    else:
        filled_store.put(
            "data", SHARD.removeprefix("gs://data/"), change(objects[SHARD.removeprefix("gs://data/")].data)
        )
    with pytest.raises(ChildError, match=f"^{error}"):
        child("feed_on", 2 * RECORDS // BATCH)


@pytest.mark.cases(1)
@pytest.mark.parametrize("training", [False, True])
def test_names_a_shard_without_permission_after_one_try(filled_store: FakeGcs, child: Child, training: bool) -> None:
    child("open_feed", "gs://data/set", training)
    assert child("feed_on", 1) == 1
    filled_store.faults.add(Fault("403", "read", SHARD.removeprefix("gs://"), count=None))
    with pytest.raises(ChildError, match=f"^StorageError: {SHARD} could not be read: .* 403 "):
        child("feed_on", 2 * RECORDS // BATCH)
    # The error is permanent and not retried; a piece that is read ahead may request it once more.
    assert 1 <= filled_store.faults.met <= 2

"""Iteration over a RecordSource: the records of TensorFlow's reader, in chunks that are read ahead, once each."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import shutil
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.fake_gcs import Fault
from tests.source.conftest import Stored
from tpudata import CorruptionError, RecordSource, StorageError, UsageError, open_dataset
from tpudata.cli import main
from tpudata.format import index_name

# Bytes that make chunks of 64 KiB: a block of 64 records takes five of them.
READ_AHEAD = 256 << 10


def take_until_error(records: Iterator[Any]) -> tuple[list[Any], Exception]:
    """Return the records before an error, and the error."""
    found = []
    while True:
        try:
            found.append(next(records))
        except (CorruptionError, StorageError) as error:
            return found, error


@pytest.mark.tensorflow
def test_yields_what_tensorflow_reads(stored: Stored) -> None:
    import tensorflow as tf

    compression = "GZIP" if open_dataset(str(stored.copy)).manifest.compression else ""
    files = sorted(map(str, stored.copy.glob("train-*")))
    expected = [record.numpy() for record in tf.data.TFRecordDataset(files, compression_type=compression)]
    assert len(expected) == 600
    for path, read_ahead in itertools.product((stored.path, str(stored.copy)), (1, READ_AHEAD, 256 << 20)):
        assert list(RecordSource(path, "train", decode=None, read_ahead=read_ahead)) == expected


def test_requests_each_byte_once(stored: Stored) -> None:
    source = RecordSource(stored.path, "train", decode=None, read_ahead=READ_AHEAD)
    assert len(list(source)) == 600
    sizes = stored.shard_reads()
    assert sum(sizes) == stored.shard_bytes()
    # A compressed shard is read in blocks.
    assert max(sizes) <= 350_000
    assert len(sizes) <= stored.shard_bytes() / (40 << 10)
    # Larger chunks are whole shards here.
    assert len(list(RecordSource(stored.path, "train", decode=None))) == 600
    assert len(stored.shard_reads()) == 4


def test_reads_a_batch_of_neighbours_in_one_request(stored: Stored) -> None:
    source = RecordSource(stored.path, "train", decode=None)
    expected = list(source)
    stored.shard_reads()
    # Near neighbours too, since the gap costs less than a request.
    assert source.__getitems__(range(0, 64, 3)) == expected[0:64:3]
    assert len(stored.shard_reads()) == 1


def test_reads_several_chunks_concurrently_within_read_ahead(stored: Stored) -> None:
    source = RecordSource(stored.path, "train", decode=None, read_ahead=1 << 20)
    list(source)
    stored.store.latency, stored.store.most_in_flight = 0.1, 0
    list(source)
    # Chunks of 256 KiB, or a compressed block each.
    assert 2 <= stored.store.most_in_flight <= 4


def test_memory_stays_near_read_ahead(large: Path) -> None:
    source = RecordSource(large, "train", decode=None, read_ahead=READ_AHEAD)
    # The indexes are loaded.
    list(source)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in source:
            time.sleep(0.0005)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # A block of a compressed shard, 320 kB, is more than read_ahead; packed, and twice while it is unpacked, it takes thrice that.
    is_compressed = open_dataset(str(large)).manifest.compression is not None
    assert peak < (1_000_000 if is_compressed else READ_AHEAD) + 100_000


def test_threads_end_with_the_iterator(stored: Stored) -> None:
    source = RecordSource(stored.path, "train", decode=None, read_ahead=READ_AHEAD)
    before = set(threading.enumerate())
    records = iter(source)
    next(records)
    mine = [
        thread for thread in threading.enumerate() if thread.name.startswith("tpudata-source") and thread not in before
    ]
    assert mine
    del records
    for thread in mine:
        thread.join(10)
        assert not thread.is_alive()


# Python 3.12 warns of any fork next to threads.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_continues_in_a_forked_process(stored: Stored) -> None:
    source = RecordSource(str(stored.copy), "train", decode=None, read_ahead=READ_AHEAD)
    expected = list(source)
    records = iter(source)
    head = list(itertools.islice(records, 100))
    child = os.fork()
    if not child:
        # The parent sees the result by the exit code alone.
        os._exit(0 if head + list(records) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert head + list(records) == expected


def test_yields_the_records_before_a_damaged_one(stored: Stored, tmp_path: Path) -> None:
    folder = shutil.copytree(stored.copy, tmp_path / "damaged")
    dataset = open_dataset(str(folder))
    shard = dataset.manifest.split("train").shards[1]
    index = dataset.index(shard)
    data = bytearray((folder / shard.name).read_bytes())
    data[int(index.offsets[10] + 20) if index.compression is None else int(index.file_range(1)[0]) + 5000] ^= 1
    (folder / shard.name).write_bytes(data)
    stored.store.put("data", f"large/{shard.name}", bytes(data))
    expected = list(RecordSource(str(stored.copy), "train", decode=None))
    for path in (str(folder), stored.path):
        found, error = take_until_error(iter(RecordSource(path, "train", decode=None, read_ahead=READ_AHEAD)))
        assert isinstance(error, CorruptionError)
        assert error.path == f"{path}/{shard.name}"
        assert found == expected[: len(found)]
        if index.compression is None:
            assert (len(found), error.offset) == (160, index.offsets[10])
        else:
            assert len(found) >= 150 + 64
    assert main(["verify", str(folder), "--quarantine"]) == 0
    rest = list(RecordSource(str(folder), "train", decode=None, read_ahead=READ_AHEAD))
    gone = [160] if index.compression is None else range(150 + 64, 150 + 128)
    assert rest == [record for number, record in enumerate(expected) if number not in gone]


def test_reports_a_wrong_offset_of_the_index_as_corruption(stored: Stored, tmp_path: Path) -> None:
    folder = shutil.copytree(stored.copy, tmp_path / "damaged")
    dataset = open_dataset(str(folder))
    shard = dataset.manifest.split("train").shards[1]
    index = dataset.index(shard)
    offsets = index.offsets.copy()
    offsets[10] -= 1
    (folder / index_name(shard.name)).write_bytes(dataclasses.replace(index, offsets=offsets).to_bytes())
    source = RecordSource(str(folder), "train", decode=None, read_ahead=READ_AHEAD)
    expected = list(RecordSource(str(stored.copy), "train", decode=None))
    for records in (iter(source), iter(source.shuffle(window_bytes=1 << 20))):
        found, error = take_until_error(records)
        assert isinstance(error, CorruptionError)
        assert set(found) <= set(expected)


@pytest.mark.parametrize("kind", ["403", "cut", "replaced"])
def test_a_fault_raises_one_error_that_names_the_file(stored: Stored, kind: str) -> None:
    name = sorted(path.name for path in stored.copy.glob("train-*"))[2]
    data = (stored.copy / name).read_bytes()
    source = RecordSource(stored.path, "train", decode=None, read_ahead=READ_AHEAD)
    records = iter(source)
    next(records)
    if kind == "403":
        stored.store.faults.add(Fault("403", "read", f"data/large/{name}", count=None))
    elif kind == "cut":
        stored.store.put("data", f"large/{name}", data[: len(data) // 3])
    else:
        stored.store.put("data", f"large/{name}", np.random.default_rng(1).bytes(len(data)))
    _, error = take_until_error(records)
    assert name in str(error)
    assert "\n" not in str(error)
    stored.store.faults.clear()
    stored.store.put("data", f"large/{name}", data)
    assert len(list(source)) == 600


def test_reads_again_after_a_bit_changed_in_transit(stored: Stored) -> None:
    source = RecordSource(stored.path, "train", decode=None, read_ahead=READ_AHEAD)
    expected = list(source)
    stored.store.faults.add(Fault("unhashed", "read", "data/large/train-*", passing=3))
    assert list(source) == expected
    assert stored.store.faults.met == 1


def test_decodes_as_single_reads_do(large: Path) -> None:
    source = RecordSource(large, "train", read_ahead=READ_AHEAD)
    for number, record in enumerate(source):
        assert record["label"] == number // 60
        if number % 100 == 0:
            np.testing.assert_array_equal(record["image"], source[number]["image"])


@pytest.mark.parametrize("integer", [np.uint8, np.int16])
def test_accepts_a_read_ahead_of_numpy(large: Path, integer: Any) -> None:
    expected = list(RecordSource(large, "train", decode=None))
    assert list(RecordSource(large, "train", decode=None, read_ahead=integer(200))) == expected


@pytest.mark.parametrize("read_ahead", [0, -1, 1.5, "1", True])
def test_rejects_a_wrong_read_ahead(large: Path, read_ahead: Any) -> None:
    with pytest.raises(UsageError, match="read_ahead"):
        RecordSource(large, "train", read_ahead=read_ahead)

"""RecordSource.shuffle: every record once an epoch, read once from the store, the same order everywhere."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import random
import shutil
import threading
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grain.python as grain
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.fake_gcs import Fault
from tests.helpers.datasets import Written
from tests.source.conftest import Stored
from tpudata import CorruptionError, RecordSource, StorageError, UsageError, open_dataset
from tpudata.cli import main

# Bytes of a window of about 6 blocks of a compressed shard, or 32 chunks.
WINDOW = 2 << 20


@pytest.mark.parametrize("integer", [np.int16, np.int32, np.uint8])
def test_integers_of_numpy_do_not_wrap_around(pictures: Written, integer: Any) -> None:
    source = RecordSource(pictures.path, "train", decode=None)
    options = {"seed": 3, "epochs": 100, "host_index": 1, "host_count": 2, "workers": 3, "batch_size": 7}
    expected = source.shuffle(**options, window_bytes=100)
    shuffled = source.shuffle(**{name: integer(value) for name, value in options.items()}, window_bytes=integer(100))
    assert len(shuffled) == len(expected)
    assert list(zip(range(500), shuffled, strict=False)) == list(zip(range(500), expected, strict=False))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 40),
    epochs=st.integers(1, 3),
    hosts=st.integers(1, 7),
    workers=st.integers(1, 4),
    batch_size=st.integers(1, 50),
    window_bytes=st.sampled_from([1, 500, 5_000, 100_000, 1 << 28]),
)
def test_hosts_share_every_record_of_each_epoch(
    pictures: Written, seed: int, epochs: int, hosts: int, workers: int, batch_size: int, window_bytes: int
) -> None:
    source = RecordSource(pictures.path, "train", decode=None)
    expected = Counter(source)
    orders = [
        source.shuffle(
            seed,
            epochs=epochs,
            host_index=host,
            host_count=hosts,
            workers=workers,
            batch_size=batch_size,
            window_bytes=window_bytes,
        )
        for host in range(hosts)
    ]
    assert max(map(len, orders)) - min(map(len, orders)) <= epochs
    for epoch in range(epochs):
        found: list[bytes] = []
        for order in orders:
            size = len(order) // epochs
            found += order.__getitems__(range(epoch * size, (epoch + 1) * size))
        assert Counter(found) == expected


def test_order_depends_only_on_the_arguments(large: Path) -> None:
    source = RecordSource(large, "train", decode=None)
    numbers = {record: number for number, record in enumerate(source)}
    order = source.shuffle(7, epochs=2, window_bytes=WINDOW)
    found = [numbers[record] for record in order]
    assert found == [numbers[record] for record in pickle.loads(pickle.dumps(order))]
    assert found[:600] != found[600:]
    assert found != [numbers[record] for record in source.shuffle(8, epochs=2, window_bytes=WINDOW)]
    # The same on every machine, and in all versions of numpy.
    if open_dataset(str(large)).manifest.compression is None:
        assert found[:8] == [429, 190, 56, 283, 181, 198, 168, 337]


def test_starts_at_any_position(large: Path) -> None:
    source = RecordSource(large, "train", decode=None)
    expected = list(source.shuffle(epochs=2, window_bytes=WINDOW))
    for start in (1, 333, 599, 600, 1199):
        order = source.shuffle(epochs=2, window_bytes=WINDOW)
        assert order.__getitems__(range(start, len(order))) == expected[start:]
    assert order[-1] == expected[-1]


def test_mixes_records_over_the_whole_split(large: Path) -> None:
    source = RecordSource(large, "train", features=["label"])
    labels = [int(record["label"]) for record in source.shuffle(window_bytes=WINDOW)]
    # The split is sorted by its 10 classes; a window has a third of it.
    assert min(len(set(labels[first : first + 100])) for first in range(0, 600, 100)) >= 4
    places = np.argsort(np.argsort(labels, kind="stable"))
    assert np.abs(places - np.arange(600)).mean() > 100


def test_requests_each_byte_once_per_epoch(stored: Stored) -> None:
    order = RecordSource(stored.path, "train", decode=None).shuffle(epochs=3, window_bytes=WINDOW)
    assert len(set(order)) == 600
    sizes = stored.shard_reads()
    assert sum(sizes) == 3 * stored.shard_bytes()
    assert len(sizes) <= 3 * stored.shard_bytes() / (50 << 10)


@pytest.mark.parametrize("by_grain", [False, True])
def test_threads_request_each_byte_once(stored: Stored, by_grain: bool) -> None:
    stored.store.latency = 0.01
    order = RecordSource(stored.path, "train", decode=None).shuffle(epochs=2, window_bytes=WINDOW)
    if by_grain:
        dataset = grain.MapDataset.source(order).to_iter_dataset(grain.ReadOptions(16, 64))
        found = list(dataset)
    else:
        # A thread that were late by a window would read its record alone: threads wait for each other, as a loader's do.
        found = []
        with ThreadPoolExecutor(16) as pool:
            for first in range(0, len(order), 64):
                found += pool.map(order.__getitem__, range(first, min(first + 64, len(order))))
    assert sum(stored.shard_reads()) <= 2.2 * stored.shard_bytes()
    assert found == list(order)


def test_an_iterator_of_grain_continues_from_its_state(large: Path) -> None:
    order = RecordSource(large, "train", decode=None).shuffle(epochs=2, window_bytes=WINDOW)
    iterator = iter(grain.MapDataset.source(order).to_iter_dataset())
    for _ in range(700):
        next(iterator)
    state = iterator.get_state()
    expected = list(iterator)
    other = iter(grain.MapDataset.source(pickle.loads(pickle.dumps(order))).to_iter_dataset())
    other.set_state(state)
    assert list(other) == expected
    assert len(expected) == 500


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_worker_processes_request_their_own_chunks(stored: Stored, workers: int) -> None:
    """Batches go to workers in turn, as by PyTorch's DataLoader; each worker has a copy of the dataset."""
    order = RecordSource(stored.path, "train", decode=None).shuffle(
        epochs=2, workers=workers, batch_size=32, window_bytes=WINDOW
    )
    copies = [pickle.loads(pickle.dumps(order)) for _ in range(workers)]
    found = []
    for number, first in enumerate(range(0, len(order), 32)):
        found += copies[number % workers].__getitems__(range(first, min(first + 32, len(order))))
    assert Counter(found) == Counter(dict.fromkeys(set(found), 2))
    # A block of a compressed shard that two workers share is read by both.
    compressed = open_dataset(str(stored.copy)).manifest.compression is not None
    shared = 4 * (workers - 1) * 330_000 if compressed else 0
    assert 2 * stored.shard_bytes() <= sum(stored.shard_reads()) <= 2 * stored.shard_bytes() + shared


def test_memory_holds_at_most_two_windows(large: Path) -> None:
    if open_dataset(str(large)).manifest.compression is not None:
        pytest.skip("a chunk is a block of 320 kB, packed and unpacked")
    source = RecordSource(large, "train", decode=None)
    window = 640 << 10
    order = source.shuffle(epochs=3, window_bytes=window)
    # The indexes are loaded.
    list(source)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in order:
            # A step, in which the next window is read.
            time.sleep(0.0005)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # Besides, the threads and the order take some memory.
    assert window < peak < 2 * window + 300_000


def test_threads_end_when_the_order_is_dropped(stored: Stored) -> None:
    order = RecordSource(stored.path, "train", decode=None).shuffle(window_bytes=WINDOW)
    before = set(threading.enumerate())
    order[0]
    mine = [
        thread for thread in threading.enumerate() if thread.name.startswith("tpudata-source") and thread not in before
    ]
    assert mine
    del order
    for thread in mine:
        thread.join(10)
        assert not thread.is_alive()


# Python 3.12 warns of any fork next to threads.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_reads_the_same_order(large: Path) -> None:
    order = RecordSource(large, "train", decode=None).shuffle(window_bytes=WINDOW)
    expected = list(RecordSource(large, "train", decode=None).shuffle(window_bytes=WINDOW))
    assert order[0] == expected[0]
    child = os.fork()
    if not child:
        # The parent sees the result by the exit code alone.
        os._exit(0 if list(order) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_reads_again_after_a_store_failed(stored: Stored) -> None:
    order = RecordSource(stored.path, "train", decode=None).shuffle(window_bytes=WINDOW)
    expected = list(order)
    name = sorted(path.name for path in stored.copy.glob("train-*"))[1]
    stored.store.faults.add(Fault("403", "read", f"data/large/{name}", count=None))
    order = RecordSource(stored.path, "train", decode=None).shuffle(window_bytes=WINDOW)
    with pytest.raises(StorageError, match=name):
        list(order)
    stored.store.faults.clear()
    assert list(order) == expected


def test_names_file_and_offset_of_damage(stored: Stored, tmp_path: Path) -> None:
    folder = shutil.copytree(stored.copy, tmp_path / "damaged")
    dataset = open_dataset(str(folder))
    shard = dataset.manifest.split("train").shards[1]
    index = dataset.index(shard)
    if index.compression is not None:
        pytest.skip("a compressed block is damaged as one")
    data = bytearray((folder / shard.name).read_bytes())
    data[int(index.offsets[10]) + 20] ^= 1
    (folder / shard.name).write_bytes(data)
    order = RecordSource(folder, "train", decode=None).shuffle(window_bytes=WINDOW)
    found, errors = [], []
    for position in range(len(order)):
        try:
            found.append(order[position])
        except CorruptionError as error:
            errors.append((error.path, error.offset))
    assert errors == [(str(folder / shard.name), int(index.offsets[10]))]
    assert len(set(found)) == 599
    assert main(["verify", str(folder), "--quarantine"]) == 0
    assert Counter(RecordSource(folder, "train", decode=None).shuffle(window_bytes=WINDOW)) == Counter(found)


def test_warns_if_positions_are_not_read_in_order(large: Path, caplog: pytest.LogCaptureFixture) -> None:
    if open_dataset(str(large)).manifest.compression is not None:
        pytest.skip("compressed, the split is a few windows of one block")
    order = RecordSource(large, "train", decode=None).shuffle(epochs=2, window_bytes=100_000)
    expected = list(order)
    with caplog.at_level(logging.WARNING, "tpudata"):
        # A loop that is begun anew is fine.
        assert list(order) == expected
        order[1000]
        assert list(order) == expected
        assert not caplog.records
        positions = random.Random(0).sample(range(len(order)), 500)
        assert [order[position] for position in positions] == [expected[position] for position in positions]
    assert [record.getMessage().count("again and again") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": -1},
        {"seed": None},
        {"epochs": 0},
        {"host_index": 2, "host_count": 2},
        {"host_index": -1},
        {"host_count": 0},
        {"host_count": 601},
        {"workers": 0},
        {"batch_size": 1.5},
        {"window_bytes": 0},
    ],
)
def test_rejects_wrong_arguments(large: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        RecordSource(large, "train").shuffle(**arguments)


def test_rejects_wrong_positions(large: Path) -> None:
    order = RecordSource(large, "train").shuffle()
    for position in (600, -601):
        with pytest.raises(IndexError, match=str(position)):
            order[position]
    with pytest.raises(IndexError, match="no position an integer of 16,610 bits"):
        order[10**5000]
    for wrong in (1.0, "1", slice(3), True):
        with pytest.raises(TypeError):
            order[wrong]  # type: ignore[index]

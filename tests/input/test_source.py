"""Shards to records: the order, and what is said about shards that are damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from tests.datasets import Written
from tpudata import CorruptionError, Dataset, DatasetError, make_input_fn, open_dataset
from tpudata.format import read_records
from tpudata.input.source import check_shards, serialized_blocks


def records_of(dataset: Dataset, split: str, *, shuffle: bool, seed: int | None = None) -> tf.data.Dataset:
    return serialized_blocks(dataset, split, shuffle=shuffle, seed=seed).unbatch()


@pytest.fixture
def copy(raw_digits: Written, tmp_path: Path) -> Dataset:
    """A dataset of its own to damage."""
    return open_dataset(str(shutil.copytree(raw_digits.path, tmp_path / "copy")))


def shard_file(dataset: Dataset, number: int) -> Path:
    return Path(dataset.shard_path(dataset.manifest.split("test").shards[number]))


def test_in_order_it_equals_tensorflows_reader(raw_digits: Written) -> None:
    dataset = open_dataset(raw_digits.path)
    paths = [dataset.shard_path(shard) for shard in dataset.manifest.split("train").shards]
    want = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    got = records_of(dataset, "train", shuffle=False)
    assert list(got.as_numpy_iterator()) == want
    assert list(got.as_numpy_iterator()) == want


def test_shuffled_it_has_every_record_once_and_moves_the_shards(raw_digits: Written) -> None:
    dataset = open_dataset(raw_digits.path)
    want = sorted(
        record
        for shard in dataset.manifest.split("train").shards
        for _, record in read_records(dataset.shard_path(shard))
    )
    passes = records_of(dataset, "train", shuffle=True, seed=4).repeat(6)
    rows = list(passes.as_numpy_iterator())
    epochs = [rows[i * 300 : (i + 1) * 300] for i in range(6)]
    assert all(sorted(epoch) == want for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", ["length", "data", "footer"])
def test_a_damaged_record_names_file_and_offset(copy: Dataset, training: bool, place: str) -> None:
    path = shard_file(copy, 1)
    offset, record = list(read_records(str(path)))[5]
    data = bytearray(path.read_bytes())
    data[offset + {"length": 1, "data": 12 + len(record) // 2, "footer": 12 + len(record)}[place]] ^= 4
    path.write_bytes(data)
    dataset = make_input_fn(copy.path, "test", training=training)({"batch_size": 10})
    with pytest.raises(tf.errors.OpError, match=rf"CorruptionError: {path} at byte {offset}: "):
        list(dataset.take(30))


def test_a_shard_that_was_exchanged_for_one_of_the_same_size(copy: Dataset) -> None:
    path = shard_file(copy, 0)
    first, second, *rest = [record for _, record in read_records(str(path))]
    with tf.io.TFRecordWriter(str(path)) as writer:
        # Two records less, one of them as large as both with their frames.
        for record in (first + bytes(16) + second, *rest):
            writer.write(record)
    assert path.stat().st_size == copy.manifest.split("test").shards[0].bytes
    records = records_of(copy, "test", shuffle=False)
    with pytest.raises(
        tf.errors.OpError, match=rf"{path} at byte {path.stat().st_size}: the file has 33 records, the manifest says 34"
    ):
        list(records)


def test_a_shard_removed_after_the_start_is_an_error_and_no_endless_retry(copy: Dataset) -> None:
    records = records_of(copy, "test", shuffle=False)
    shard_file(copy, 2).unlink()
    with pytest.raises(tf.errors.NotFoundError, match=shard_file(copy, 2).name):
        list(records)


@pytest.mark.parametrize("left", [0, 5, 0.5])
def test_a_shard_cut_after_the_start_names_file_and_offset(copy: Dataset, left: float) -> None:
    records = records_of(copy, "test", shuffle=False)
    path = shard_file(copy, 2)
    data = path.read_bytes()
    path.write_bytes(data[: left if isinstance(left, int) else int(left * len(data))])
    with pytest.raises(tf.errors.OpError, match=rf"CorruptionError: {path} at byte \d+: the file"):
        list(records)


def test_a_shard_cut_at_the_end_of_a_record(copy: Dataset) -> None:
    records = records_of(copy, "test", shuffle=False)
    path = shard_file(copy, 0)
    offset, _ = list(read_records(str(path)))[-1]
    path.write_bytes(path.read_bytes()[:offset])
    with pytest.raises(
        tf.errors.OpError, match=rf"{path} at byte {offset}: the file has 33 records, the manifest says 34"
    ):
        list(records)


def test_missing_and_cut_shards_are_found_before_reading(copy: Dataset) -> None:
    path = shard_file(copy, 1)
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    with pytest.raises(CorruptionError, match=f"has {len(data) - 3} bytes, the manifest says {len(data)}") as caught:
        make_input_fn(copy.path, "test", training=True)
    assert (caught.value.path, caught.value.offset) == (str(path), len(data) - 3)
    path.unlink()
    with pytest.raises(DatasetError, match=f"{path} is missing"):
        check_shards(copy, "test")
    make_input_fn(copy.path, "train", training=True)  # The other split is whole.

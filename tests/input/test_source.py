"""Ranges of records from files: what is read, and what is said about shards that are damaged."""

from __future__ import annotations

import itertools
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.datasets import Written
from tpudata import CorruptionError, Dataset, DatasetError, make_input_fn, open_dataset
from tpudata.format import decode_example, read_records
from tpudata.input.source import Source, Strings, check_shards


@pytest.fixture
def copy(raw_digits: Written, tmp_path: Path) -> Dataset:
    """A dataset of its own to damage."""
    return open_dataset(str(shutil.copytree(raw_digits.path, tmp_path / "copy")))


def shard_file(dataset: Dataset, number: int, split: str = "test") -> Path:
    return Path(dataset.shard_path(dataset.manifest.split(split).shards[number]))


def source(dataset: Dataset, split: str = "train", *, verify: bool = True, max_corrupt: int = 0) -> Source:
    return Source(dataset, split, Strings(), verify=verify, max_corrupt=max_corrupt)


def damage(dataset: Dataset, number: int, record: int, place: str = "data", split: str = "test") -> int:
    """Flips a bit of a record of a shard; returns the record's offset."""
    offset, end = dataset.index(dataset.manifest.split(split).shards[number]).offsets[record : record + 2].tolist()
    path = shard_file(dataset, number, split)
    whole = bytearray(path.read_bytes())
    whole[{"length": offset + 1, "data": (offset + end) // 2, "footer": end - 4}[place]] ^= 4
    path.write_bytes(whole)
    return int(offset)


def rows(dataset: tf.data.Dataset) -> tuple[Any, Any, Any]:
    """Images, labels and weights of an evaluation, without padding's rows behind the 101 records."""
    found = list(dataset.as_numpy_iterator())
    images = np.concatenate([features["image"] for features, _ in found])[:101]
    weights = np.concatenate([features["weights"] for features, _ in found])[:101]
    return images, np.concatenate([labels for _, labels in found])[:101], weights


@pytest.mark.parametrize("verify", [True, False])
def test_ranges_equal_tensorflows_reader(raw_digits: Written, verify: bool) -> None:
    dataset = open_dataset(raw_digits.path)
    paths = [dataset.shard_path(shard) for shard in dataset.manifest.split("train").shards]
    want = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    reader = source(dataset, verify=verify)
    # Whole shards and blocks of 64, and parts of them.
    for first, last in [(0, 100), (100, 200), (64, 100), (0, 64), (3, 4), (10, 99), (260, 300), (299, 300)]:
        piece = reader.read(first, last)
        assert piece.columns[Strings.NAME].tolist() == want[first:last]
        assert piece.damaged == ()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", ["length", "data", "footer"])
def test_a_damaged_record_names_file_and_offset(copy: Dataset, training: bool, place: str) -> None:
    offset = damage(copy, 1, 5, place)
    dataset = make_input_fn(copy.path, "test", training=training)({"batch_size": 10})
    with pytest.raises(
        tf.errors.OpError, match=rf"CorruptionError: {shard_file(copy, 1)} at byte {offset}: the checksum"
    ):
        list(dataset.take(30))


def test_without_checksums_a_flipped_bit_is_not_seen(copy: Dataset, raw_digits: Written) -> None:
    damage(copy, 1, 5)
    images, labels, _ = rows(
        make_input_fn(copy.path, "test", training=False, verify_checksums=False)({"batch_size": 50})
    )
    assert labels.tolist() == raw_digits.labels["test"]
    assert (images != np.stack(raw_digits.images["test"])).sum() == 1


def test_damaged_records_are_skipped_counted_and_logged(
    copy: Dataset, raw_digits: Written, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = [damage(copy, 1, record) for record in (0, 1, 20)]
    numbers = [34, 35, 54]
    input_fn = make_input_fn(copy.path, "test", training=False, max_corrupt=3)
    with caplog.at_level(logging.WARNING, "tpudata"):
        for _ in range(2):
            images, labels, weights = rows(input_fn({"batch_size": 25}))
    assert np.flatnonzero(weights == 0).tolist() == numbers
    good = weights == 1
    np.testing.assert_array_equal(images[good], np.stack(raw_digits.images["test"])[good])
    assert labels[good].tolist() == np.array(raw_digits.labels["test"])[good].tolist()
    # In their places: the split's first whole record.
    for number in numbers:
        np.testing.assert_array_equal(images[number], raw_digits.images["test"][0])
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3  # Once each, in spite of two passes.
    for count, (message, offset) in enumerate(zip(messages, offsets, strict=True), 1):
        assert f"Skipped damaged record {count} of at most 3: {shard_file(copy, 1)} at byte {offset}: " in message
    with pytest.raises(
        tf.errors.OpError, match=rf"at byte {offsets[2]}: .*; max_corrupt=2 others were skipped before it"
    ):
        rows(make_input_fn(copy.path, "test", training=False, max_corrupt=2)({"batch_size": 25}))


@pytest.mark.parametrize("cache", [False, True])
def test_in_training_another_record_stands_in(copy: Dataset, raw_digits: Written, cache: bool) -> None:
    damage(copy, 1, 7, split="train")
    input_fn = make_input_fn(copy.path, "train", training=True, seed=1, max_corrupt=1, cache=cache)
    found = [
        image.tobytes()
        for features, _ in input_fn({"batch_size": 60}).take(5).as_numpy_iterator()
        for image in features["image"]
    ]
    want = [image.tobytes() for image in raw_digits.images["train"]]
    want[107] = want[0]
    assert sorted(found) == sorted(want)


def test_where_a_whole_shard_is_damaged_the_first_whole_record_stands_in(copy: Dataset, raw_digits: Written) -> None:
    for record in range(33):
        damage(copy, 0, record)
    images, _, weights = rows(make_input_fn(copy.path, "test", training=False, max_corrupt=33)({"batch_size": 101}))
    assert weights.tolist() == [0.0] * 33 + [1.0] * 68
    assert (images[:33] == raw_digits.images["test"][33]).all()
    reader = source(copy, "test", max_corrupt=33)
    # Those that were looked at for that are counted as they are read, and not before.
    for record in reader.read(3, 5).columns[Strings.NAME]:
        assert decode_example(record)["image_raw"] == [raw_digits.images["test"][33].tobytes()]
    with pytest.raises(CorruptionError):
        source(copy, "test", max_corrupt=32).read(0, 33)


@pytest.mark.parametrize("training", [True, False])
def test_what_stands_in_is_the_same_wherever_reading_starts(copy: Dataset, training: bool) -> None:
    # First, middle and last ones of shards, of blocks of 64, and neighbours.
    for shard, records in ((0, (0, 1, 63, 64, 99)), (1, (0, 50, 51, 52)), (2, (99,))):
        for record in records:
            damage(copy, shard, record, split="train")

    def batches(start_step: int = 0, hosts: int = 1, **options: Any) -> list[list[bytes]]:
        """The pictures of steps up to the twelfth, in parts of 10 for the batches of 30."""
        input_fn = make_input_fn(copy.path, "train", training=training, seed=1, max_corrupt=10, **options)
        of_hosts = [
            tpudata.as_numpy(input_fn, 30, start_step=start_step, process_index=host, process_count=hosts)
            for host in range(hosts)
        ]
        steps = zip(*(itertools.islice(host, 12 - start_step) for host in of_hosts), strict=True)
        return [[image.tobytes() for features, _ in step for image in features["image"]] for step in steps]

    buffer = {"shuffle_buffer": 40} if training else {}
    want = batches(**buffer)
    for start_step in range(1, 10):
        assert batches(start_step, **buffer) == want[start_step:]
    assert batches(hosts=3, **buffer) == want
    assert batches(cache=True, **buffer) == want


def test_where_every_record_is_damaged_none_stands_in(copy: Dataset) -> None:
    for number, shard in enumerate(copy.manifest.split("test").shards):
        for record in range(shard.records):
            damage(copy, number, record)
    with pytest.raises(DatasetError, match=r"copy: every record is damaged\. Convert the dataset again\.$"):
        source(copy, "test", max_corrupt=101).read(0, 10)


def test_a_shard_that_was_exchanged_for_one_of_the_same_size(copy: Dataset) -> None:
    path = shard_file(copy, 0)
    first, second, *rest = [record for _, record in read_records(str(path))]
    with tf.io.TFRecordWriter(str(path)) as writer:
        # Two records less, one of them as large as both with their frames.
        for record in (first + bytes(16) + second, *rest):
            writer.write(record)
    assert path.stat().st_size == copy.manifest.split("test").shards[0].bytes
    with pytest.raises(
        CorruptionError, match=rf"{path} at byte 0: a record of {len(first) + 16 + len(second)} bytes, by the index"
    ):
        source(copy, "test").read(0, 34)


def test_records_that_changed_places_are_found_by_the_block(copy: Dataset) -> None:
    path = shard_file(copy, 0)
    records = [record for _, record in read_records(str(path))]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in (records[1], records[0], *records[2:]):
            writer.write(record)
    with pytest.raises(
        CorruptionError, match=rf"{path} at byte 0: .* are not those that were written, by the index's checksums"
    ):
        source(copy, "test", max_corrupt=9).read(0, 34)


def test_a_shard_removed_after_the_start_is_an_error(copy: Dataset) -> None:
    dataset = make_input_fn(copy.path, "test", training=False)({"batch_size": 10})
    shard_file(copy, 2).unlink()
    with pytest.raises(tf.errors.OpError, match=rf"StorageError: {shard_file(copy, 2)} could not be read"):
        list(dataset)


@pytest.mark.parametrize("left", [0, 5, 0.5])
def test_a_shard_cut_after_the_start_names_file_and_offset(copy: Dataset, left: float) -> None:
    dataset = make_input_fn(copy.path, "test", training=False)({"batch_size": 10})
    path = shard_file(copy, 2)
    data = path.read_bytes()
    cut = left if isinstance(left, int) else int(left * len(data))
    offset = max(offset for offset, _ in read_records(str(path)) if offset <= cut)
    path.write_bytes(data[:cut])
    with pytest.raises(
        tf.errors.OpError, match=rf"CorruptionError: {path} at byte {offset}: the file ends inside a record"
    ):
        list(dataset)


def test_an_index_of_another_shard_is_refused(copy: Dataset) -> None:
    folder = Path(copy.path, "index")
    names = sorted(path.name for path in folder.glob("test-*"))
    shutil.copy(folder / names[0], folder / names[2])
    with pytest.raises(DatasetError, match=rf"{folder / names[2]} describes another shard"):
        source(copy, "test").read(80, 90)


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

"""Errors of TensorFlow's readers, translated by the datasets that the reader names.

The translation is private: commands show it for the errors that their readers raise.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.beam_jobs.images import encode, picture
from tests.helpers.datasets import write_dataset
from tpudata.errors import CorruptionError, DatasetError, FeatureError, StorageError, TpudataError
from tpudata.format import Feature, open_dataset
from tpudata.format.read_errors import (
    INDEX_MISMATCH,
    find_file_error,
    name_of_files,
    name_of_split,
    translate_reader_error,
)
from tpudata.input.dataset_ops import cast_to_int32

FEATURES = [Feature("x", "bytes", "string")]


def failing(path: str, name: str, compression: str = "") -> str:
    """Return what TensorFlow says of reading a file inside a function of a dataset of that name."""

    def read(_: tf.Tensor) -> tf.Tensor:
        return tf.data.TFRecordDataset(path, compression).batch(1000).get_single_element()

    with pytest.raises(tf.errors.OpError) as raised:
        list(tf.data.Dataset.range(1).map(read, name=name))
    return str(raised.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # A name that needs care.
    path = tmp_path / "Bilder 1_2 [ä]"
    write_dataset(str(path), {"train": [{"x": b"abc" * n} for n in range(40)]}, FEATURES, layout="", shards=3)
    return path


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 8, 14, -1])
def test_names_a_damaged_record_of_a_dataset(folder: Path, place: int) -> None:
    shard = sorted(folder.glob("*.tfrecord"))[1]
    dataset = open_dataset(str(folder))
    first, second = dataset.index(dataset.manifest.split("train").shards[1]).offsets[6:8].tolist()
    flip(shard, first + place if place >= 0 else second + place)
    error = find_file_error(failing(str(shard), name_of_split(str(folder), "train")))
    assert isinstance(error, CorruptionError)
    assert (error.path, error.offset) == (str(shard), first)


def test_names_the_last_record_of_a_truncated_file(folder: Path) -> None:
    shard = sorted(folder.glob("*.tfrecord"))[2]
    offsets = open_dataset(str(folder)).index(open_dataset(str(folder)).manifest.split("train").shards[2]).offsets
    shard.write_bytes(shard.read_bytes()[: int(offsets[4]) + 15])
    error = find_file_error(failing(str(shard), name_of_split(str(folder), "train")))
    assert isinstance(error, CorruptionError)
    assert (error.path, error.offset) == (str(shard), int(offsets[4]))


@pytest.mark.parametrize("message", [INDEX_MISMATCH, "A file has fewer records than its index says: it has changed"])
def test_names_a_shard_that_was_replaced(folder: Path, message: str) -> None:
    shards = sorted(folder.glob("*.tfrecord"))
    name = name_of_split(str(folder), "train")
    text = f"{message} [Op:IteratorGetNext] passed to {name} transformation"
    error = find_file_error(text)
    assert type(error) is TpudataError
    assert str(error).startswith(f"{folder}: ")
    size = shards[1].stat().st_size
    shards[1].write_bytes(shards[2].read_bytes())
    error = find_file_error(text)
    assert isinstance(error, CorruptionError)
    assert error.path == str(shards[1])
    assert f"the file has {shards[2].stat().st_size} bytes, the manifest says {size}" in str(error)


def test_names_a_damaged_record_of_files(folder: Path) -> None:
    paths = sorted(map(str, folder.glob("*.tfrecord")))
    flip(Path(paths[1]), 14)
    error = find_file_error(failing(paths[1], name_of_files(paths)))
    assert isinstance(error, CorruptionError)
    assert (error.path, error.offset) == (paths[1], 0)


def test_names_no_file_if_there_are_too_many_for_a_name(folder: Path) -> None:
    paths = sorted(map(str, folder.glob("*.tfrecord")))
    flip(Path(paths[1]), 14)
    error = find_file_error(failing(paths[1], name_of_files(paths * 100)))
    assert type(error) is TpudataError
    assert str(error).startswith("a file: a record at byte 12 of one of its files is damaged or cut")


def test_names_a_missing_file(folder: Path) -> None:
    shard = min(folder.glob("*.tfrecord"))
    shard.unlink()
    error = find_file_error(failing(str(shard), name_of_split(str(folder), "train")))
    assert isinstance(error, StorageError)
    assert str(error).startswith(f"{shard} could not be read: No such file")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        # Its first bytes are in no page, so reading them fails as a broken disk does.
        (
            "/proc/self/mem",
            "Input/output error. The disk or the connection to it fails: see the system's log (`dmesg`).",
        ),
        ("/proc/self", "Is a directory. It is a folder: pass a file."),
    ],
)
def test_names_a_failing_disk_with_its_reason(folder: Path, target: str, reason: str) -> None:
    shard = min(folder.glob("*.tfrecord"))
    shard.unlink()
    shard.symlink_to(target)
    error = find_file_error(failing(str(shard), name_of_split(str(folder), "train")))
    assert isinstance(error, StorageError)
    assert str(error) == f"{shard} could not be read: {reason}"


def test_reports_a_block_that_does_not_unpack(tmp_path: Path) -> None:
    path = write_dataset(
        str(tmp_path), {"train": [{"x": b"abc"}] * 9}, FEATURES, layout="", shards=1, compression="gzip"
    )
    (shard,) = tmp_path.glob("*.tfrecord")
    flip(shard, 20)
    error = find_file_error(failing(str(shard), name_of_split(path, "train"), "GZIP"))
    assert type(error) is TpudataError
    assert str(error).startswith(f"{path}: a compressed block does not unpack. Run `tpudata verify DIR` to list")


def test_ignores_errors_of_other_datasets(folder: Path) -> None:
    shard = min(folder.glob("*.tfrecord"))
    flip(shard, 14)
    assert find_file_error(failing(str(shard), "another")) is None
    assert find_file_error("a record is damaged") is None


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF"])
def test_an_image_that_tensorflow_cannot_decode(name: str) -> None:
    data = encode(picture(24, 40), name)
    dataset = tf.data.Dataset.from_tensors(data[: len(data) // 4]).map(tf.io.decode_image)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    found = translate_reader_error(caught.value)
    assert isinstance(found, DatasetError)
    assert f"an encoded image does not decode: Invalid {name} data" in str(found)
    assert "`tpudata verify DIR --decode` names the file and the offset" in str(found)
    assert "read_records" not in str(found)
    assert len(str(found).splitlines()) == 1
    either = str(translate_reader_error(caught.value, may_be_plain=True))
    assert either.startswith(str(found))
    assert "For files without a manifest, tpudata.format.read_records(FILE) yields (offset, record)" in either


def test_an_image_of_no_format_is_told_with_one_full_stop() -> None:
    dataset = tf.data.Dataset.from_tensors(b"no image").map(tf.io.decode_image)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    assert re.search(
        r"does not decode: Unknown image file format\..*[^.]\. TensorFlow", str(translate_reader_error(caught.value))
    )


@pytest.mark.parametrize("record", [b"\x0a\x08some line", b"\x0a\xc3(some line \xff", b"Invalid PNG data"])
def test_a_record_that_tensorflow_cannot_take_apart(record: bytes) -> None:
    spec = {"label": tf.io.FixedLenFeature((), tf.int64)}
    dataset = tf.data.Dataset.from_tensors([record]).map(lambda records: tf.io.parse_example(records, spec))
    # It puts the record into its message, and Python's binding takes that for text.
    with pytest.raises((tf.errors.InvalidArgumentError, UnicodeDecodeError)) as caught:
        list(dataset)
    found = translate_reader_error(caught.value, may_be_plain=True)
    assert isinstance(found, DatasetError)
    assert str(found).startswith(
        "a record is not a tf.train.Example. TensorFlow does not say which: `tpudata verify DIR`"
    )
    assert str(found).endswith("one by one.")


def test_an_integer_that_no_tpu_takes() -> None:
    dataset = tf.data.Dataset.from_tensors(np.array([1, 2**40])).map(
        lambda values: cast_to_int32("some]/label", values)
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    found = translate_reader_error(caught.value)
    assert isinstance(found, FeatureError)
    assert str(found) == (
        "Feature some]/label: a value does not fit int32, which is what a TPU takes. Omit the feature, or store smaller"
        " numbers."
    )


def test_the_reader_s_own_errors_come_first() -> None:
    found = translate_reader_error(RuntimeError("tpudata.errors.UsageError: Invalid PNG data"))
    assert str(found) == "Invalid PNG data"
    assert translate_reader_error(RuntimeError("something else")) is None
    assert translate_reader_error(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")) is None

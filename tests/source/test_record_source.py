"""RecordSource: any record by number, the same from every thread and process, and damage with its place."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.fake_gcs import FakeGcs, Fault
from tests.helpers.datasets import LABEL, Written, write_dataset, write_images
from tpudata import CorruptionError, DatasetError, FeatureError, RecordSource, StorageError, UsageError, open_dataset
from tpudata.cli import main
from tpudata.format import Feature, decode_example, read_records


def serialized(folder: str) -> list[bytes]:
    """Return all records of the split train by the reader that goes from start to end."""
    dataset = open_dataset(folder)
    shards = dataset.manifest.split("train").shards
    return [
        data for shard in shards for _, data in read_records(dataset.shard_path(shard), dataset.manifest.compression)
    ]


def test_reads_every_record_by_number(pictures: Written) -> None:
    source = RecordSource(pictures.path, "train")
    assert len(source) == 150
    for number in (0, 1, 49, 50, 77, 149, -1, -150, np.int64(3)):
        record = source[number]
        assert set(record) == {"image", "image/class/label"}
        np.testing.assert_array_equal(record["image"], pictures.images["train"][int(number)])
        assert record["image/class/label"] == pictures.labels["train"][int(number)]
    assert [int(record["image/class/label"]) for record in source] == pictures.labels["train"]


def test_bytes_equal_the_sequential_reader(pictures: Written) -> None:
    source = RecordSource(pictures.path, "train", decode=None)
    assert list(source) == serialized(pictures.path)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=st.lists(st.integers(-150, 149), max_size=40))
def test_reads_several_records_as_one_by_one(pictures: Written, numbers: list[int]) -> None:
    source = RecordSource(pictures.path, "train", decode=None)
    assert source.__getitems__(numbers) == [source[number] for number in numbers]


def test_decodes_with_a_given_function(pictures: Written) -> None:
    source = RecordSource(pictures.path, "train", decode=decode_example)
    assert source[3]["image/class/label"] == [3]
    assert repr(source) == repr(RecordSource(pictures.path, "train", decode=decode_example))


def test_selects_features_by_either_name(pictures: Written) -> None:
    source = RecordSource(pictures.path, "train", features=["image/class/label", "image/filename"])
    assert source[7] == {"image/class/label": 7, "image/filename": "train/7.png"}
    with pytest.raises(FeatureError, match="image/height"):
        RecordSource(pictures.path, "train", features=["image/height"])


def test_threads_share_a_source(pictures: Written) -> None:
    source, wanted = RecordSource(pictures.path, "train", decode=None), serialized(pictures.path)
    numbers = [number * 37 % 150 for number in range(600)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(source.__getitem__, numbers)) == [wanted[number] for number in numbers]


def _labels(source: RecordSource, numbers: list[int]) -> list[int]:
    return [int(record["image/class/label"]) for record in source.__getitems__(numbers)]


# Python 3.12 warns of any fork next to threads, which other tests of this process have left.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_a_source(pictures: Written, method: str) -> None:
    source = RecordSource(pictures.path, "train")
    source[0]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(_labels, (source, [149, 0, 75])) == [9, 0, 5]


def test_a_pickle_is_small_and_reads_the_same(pictures: Written) -> None:
    source = RecordSource(pictures.path, "train")
    list(source)
    data = pickle.dumps(source)
    assert len(data) < 10_000
    assert pickle.loads(data)[5]["image/class/label"] == 5


def test_rejects_wrong_arguments(pictures: Written, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"decode": "torch"},
        {"decode": None, "features": ["image"]},
        {"features": "image"},
        {"split": None},
        {"data": 7},
        {"data": ""},
    ]
    for arguments in wrong:
        with pytest.raises(UsageError):
            RecordSource(**{"data": pictures.path, "split": "train", **arguments})
    with pytest.raises(DatasetError, match="train"):
        RecordSource(pictures.path, "test")
    with pytest.raises(DatasetError, match=r"manifest\.json"):
        RecordSource(tmp_path, "train")
    source = RecordSource(pictures.path, "train")
    for number in (150, -151):
        with pytest.raises(IndexError, match=str(number)):
            source[number]
    for wrong_number in (1.0, "1", slice(3), True):
        with pytest.raises(TypeError):
            source[wrong_number]  # type: ignore[index]


def test_names_file_and_offset_of_damage(pictures: Written, tmp_path: Path) -> None:
    folder = shutil.copytree(pictures.path, tmp_path / "damaged")
    dataset = open_dataset(str(folder))
    shard = dataset.manifest.split("train").shards[1]
    index = dataset.index(shard)
    path = folder / shard.name
    data = bytearray(path.read_bytes())
    # In record 10 of the shard; of a compressed one, in its first block.
    place = int(index.offsets[10]) + 20 if index.compression is None else int(index.file_range(0)[1]) // 2
    data[place] ^= 0x40
    path.write_bytes(data)
    source = RecordSource(folder, "train")
    assert source[0]["image/class/label"] == 0
    found = []
    for number in range(50, 100):
        try:
            source[number]
        except CorruptionError as error:
            found.append((error.path, error.offset))
    # Beyond a flipped bit the rest of a compressed block may be lost; a plain shard loses one record.
    assert set(found) <= {(str(path), int(offset)) for offset in index.offsets[:-1]}
    assert found == [(str(path), int(index.offsets[10]))] if index.compression is None else found
    path.write_bytes(data[:100])
    source = RecordSource(folder, "train")
    with pytest.raises(CorruptionError, match=shard.name):
        source[99]
    path.unlink()
    with pytest.raises(StorageError, match=shard.name):
        source[70]


def test_records_in_quarantine_have_no_numbers(pictures: Written, tmp_path: Path) -> None:
    folder = shutil.copytree(pictures.path, tmp_path / "damaged")
    dataset = open_dataset(str(folder))
    path = folder / dataset.manifest.split("train").shards[1].name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    offsets = dataset.index(dataset.manifest.split("train").shards[1]).offsets
    first = 50 + int(np.searchsorted(offsets, len(data) // 2, "right")) - 1
    # A compressed block, here the whole shard, is damaged as one.
    gone = [first] if dataset.manifest.compression is None else range(50, 100)
    assert main(["verify", str(folder), "--quarantine"]) == 0
    source = RecordSource(folder, "train", decode=None)
    expected = [record for number, record in enumerate(serialized(pictures.path)) if number not in gone]
    assert [source[number] for number in range(len(source))] == list(source) == expected


def test_names_file_and_offset_of_an_image_that_does_not_decode(tmp_path: Path) -> None:
    features = [Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"), LABEL]
    records = [{"image/encoded": b"no image", "image/class/label": 1}]
    source = RecordSource(
        write_dataset(str(tmp_path), {"train": records}, features, layout="imagenet", shards=1), "train"
    )
    with pytest.raises(CorruptionError, match="does not decode") as caught:
        source[0]
    assert (caught.value.path, caught.value.offset) == (str(tmp_path / "train-00000-of-00001.tfrecord"), 0)


def put_numbers(store: FakeGcs, folder: Path, compression: str | None = None) -> None:
    """Put 60 images in three shards into gs://data/digits, each of one value: its number."""
    images = [np.full((2, 2, 1), number, np.uint8) for number in range(60)]
    options: Any = {"shape": (2, 2, 1), "layout": "raw", "compression": compression}
    write_images(str(folder), {"train": images}, {"train": [1] * 60}, **options)
    for file in folder.rglob("*"):
        if file.is_file():
            store.put("data", f"digits/{file.relative_to(folder)}", file.read_bytes())


def test_names_file_and_offset_of_a_text_that_is_not_utf_8(tmp_path: Path) -> None:
    records = [{"text": text} for text in (b"gr\xc3\xbcn", b"gr\xfcn")]
    folder = write_dataset(
        str(tmp_path), {"train": records}, [Feature("text", "bytes", "string", (), "utf8")], layout="text", shards=1
    )
    source = RecordSource(folder, "train")
    assert source[0] == {"text": "grün"}
    (_, (offset, _)) = read_records(f"{folder}/train-00000-of-00001.tfrecord")
    message = f"train-00000-of-00001.tfrecord at byte {offset}: feature 'text': the text is not UTF-8"
    with pytest.raises(CorruptionError, match=message):
        source[1]


def test_returns_paths_that_are_not_utf_8_as_python_names_files(tmp_path: Path) -> None:
    path = b"cats/gr\xfcn.jpg"
    feature = Feature("image/filename", "bytes", "string", (), "utf8")
    folder = write_dataset(str(tmp_path), {"train": [{"image/filename": path}]}, [feature], layout="imagenet", shards=1)
    (record,) = RecordSource(folder, "train", features=["image/filename"])
    assert os.fsencode(record["image/filename"]) == path


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_reads_again_after_a_bit_changed_in_transit(store: FakeGcs, tmp_path: Path, compression: str | None) -> None:
    put_numbers(store, tmp_path, compression)
    source = RecordSource("gs://data/digits", "train")
    source[0]
    store.faults.add(Fault("unhashed", "read", "data/digits/train-*"))
    assert (source[30]["image"] == 30).all()
    assert store.faults.met == 1


def test_reads_neighbours_on_gs_in_one_request(store: FakeGcs, tmp_path: Path) -> None:
    put_numbers(store, tmp_path)
    source = RecordSource("gs://data/digits", "train")
    source.__getitems__([0, 30, 50])
    store.requests.clear()
    batch = source.__getitems__([3, 1, 2, 59, 45])
    assert [int(record["image"][0, 0, 0]) for record in batch] == [3, 1, 2, 59, 45]
    # Neighbours of a shard are one request: records 1 to 3, and 45 and 59.
    assert store.requests == {"read": 2}


def test_import_loads_no_tensorflow() -> None:
    program = "import sys, tpudata; tpudata.RecordSource; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)

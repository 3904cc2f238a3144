"""An opened dataset: its records, indexes and labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.datasets import Written, write_images
from tpudata.errors import CorruptionError, DatasetError
from tpudata.format import open_dataset, read_records


@pytest.fixture
def written(tmp_path: Path) -> Written:
    images = [np.full((2, 2, 1), i, np.uint8) for i in range(10)]
    return write_images(str(tmp_path), {"train": images}, {"train": list(range(10))}, shape=(2, 2, 1), layout="raw")


def test_reads_examples_in_order(written: Written) -> None:
    dataset = open_dataset(written.path)
    examples = list(dataset.examples("train"))
    assert [example["label"] for example in examples] == [[i] for i in range(10)]
    assert [example["image_raw"] for example in examples] == [[bytes([i]) * 4] for i in range(10)]


def test_index_has_the_offsets_of_each_shard(written: Written) -> None:
    dataset = open_dataset(written.path)
    for shard in dataset.manifest.split("train").shards:
        offsets = [offset for offset, _ in read_records(dataset.shard_path(shard))]
        assert [int(offset) for offset in dataset.index(shard).offsets[:-1]] == offsets


def test_rejects_an_index_of_another_shard(written: Written) -> None:
    dataset = open_dataset(written.path)
    first, _, third = dataset.manifest.split("train").shards
    folder = Path(written.path, "index")
    indexes = [folder / shard.name.replace(".tfrecord", ".index") for shard in (first, third)]
    indexes[0].write_bytes(indexes[1].read_bytes())
    with pytest.raises(DatasetError, match="describes another shard"):
        dataset.index(first)


def test_rejects_a_labels_file_with_another_number_of_names(written: Written) -> None:
    dataset = open_dataset(written.path)
    assert dataset.labels() == tuple(f"class {i}" for i in range(10))
    Path(written.path, "labels.txt").write_text("one\ntwo\n")
    with pytest.raises(DatasetError, match="has 2 names, the manifest counts 10"):
        dataset.labels()


def test_rejects_class_names_that_were_changed(written: Written) -> None:
    path = Path(written.path, "labels.txt")
    path.write_text("".join(f"class {i}\n" for i in reversed(range(10))))
    with pytest.raises(CorruptionError, match=rf"^{path} at byte 0: the class names do not match the checksum"):
        open_dataset(written.path).labels()


def test_names_the_byte_of_labels_that_are_not_utf8(written: Written) -> None:
    path = Path(written.path, "labels.txt")
    path.write_bytes(b"one\n\xff\xfe\n")
    with pytest.raises(CorruptionError, match="not UTF-8") as caught:
        open_dataset(written.path).labels()
    assert (caught.value.path, caught.value.offset) == (str(path), 4)


def test_rejects_a_manifest_that_names_a_file_elsewhere(written: Written) -> None:
    victim = Path(written.path).parent / "victim.txt"
    victim.write_text("mine")
    path = Path(written.path, "manifest.json")
    path.write_text(path.read_text().replace("train-00001-of-00003.tfrecord", "../victim.txt"))
    with pytest.raises(DatasetError, match=r"manifest\.json: Shard '\.\./victim\.txt'"):
        open_dataset(written.path)


def test_names_file_and_offset_of_a_damaged_record(written: Written) -> None:
    dataset = open_dataset(written.path)
    shard = dataset.manifest.split("train").shards[1]
    path = Path(dataset.shard_path(shard))
    offset = int(dataset.index(shard).offsets[2])
    data = bytearray(path.read_bytes())
    data[offset + 14] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        list(dataset.examples("train"))
    assert (caught.value.path, caught.value.offset) == (str(path), offset)


def test_rejects_a_folder_without_a_manifest(written: Written, tmp_path: Path) -> None:
    Path(written.path, "manifest.json").unlink()
    for folder in (written.path, str(tmp_path / "nowhere")):
        with pytest.raises(DatasetError, match="not a complete dataset"):
            open_dataset(folder)


def test_names_the_path_of_a_damaged_manifest(written: Written) -> None:
    path = Path(written.path, "manifest.json")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DatasetError, match=f"^{path}: not a manifest"):
        open_dataset(written.path)

"""tensorflow_datasets reads what is written next to the shards."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.helpers.datasets import write_dataset, write_images
from tests.helpers.label_maps import png_of
from tpudata.format import Feature, open_dataset, verify, write_metadata
from tpudata.format.tfds import encode_dataset_info, encode_features, find_tfds_name

# tensorflow_datasets 4.9 asks protobuf for a field's label, which protobuf 5 deprecates.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")


def test_reads_images_with_counts_features_and_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = {
        split: [rng.integers(0, 256, (4 + i, 6, 3), dtype=np.uint8) for i in range(count)]
        for split, count in (("train", 11), ("test", 5))
    }
    labels = {"train": [i % 10 for i in range(11)], "test": [9, 8, 7, 6, 5]}
    write_images(str(tmp_path), images, labels, shape=(None, 6, 3))
    builder = tfds.builder_from_directory(str(tmp_path))
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {"train": 11, "test": 5}
    assert builder.info.splits["train"].shard_lengths == [4, 3, 4]
    assert builder.info.features["image/class/label"].num_classes == 10
    assert builder.info.features["image/encoded"].shape == (None, 6, 3)
    for split in ("train", "test"):
        # The order across shards is TFDS's affair; the file name says which picture it is.
        for example in tfds.as_numpy(builder.as_dataset(split=split)):
            number = int(example["image/filename"].decode().removeprefix(f"{split}/").removesuffix(".png"))
            np.testing.assert_array_equal(example["image/encoded"], images[split][number])
            assert example["image/class/label"] == labels[split][number]


def test_reads_other_kinds_of_features(tmp_path: Path) -> None:
    features = [
        Feature("ids", "int64", "int64", (3,)),
        Feature("count", "int64", "int64"),
        Feature("score", "float", "float32"),
        Feature("text", "bytes", "string", encoding="utf8"),
        Feature("image_raw", "bytes", "uint8", (2, 2, 1), "raw"),
        Feature("label", "int64", "int64", num_classes=2, label_offset=1),
    ]
    record: dict[str, Any] = {
        "ids": [1, -2, 3],
        "count": 5,
        "score": 0.5,
        "text": "ä",
        "image_raw": b"abcd",
        "label": 2,
    }
    write_dataset(str(tmp_path), {"train": [record]}, features, layout="raw", shards=1, classes=2)
    (example,) = tfds.as_numpy(tfds.builder_from_directory(str(tmp_path)).as_dataset(split="train"))
    assert example["ids"].tolist() == [1, -2, 3]
    assert example["count"] == 5
    assert example["score"] == 0.5
    assert example["text"].decode() == "ä"
    assert example["image_raw"].tobytes() == b"abcd"
    assert example["image_raw"].shape == (2, 2, 1)
    assert example["label"] == 2


@pytest.mark.parametrize(
    ("feature", "value"),
    [
        (Feature("x", "int64", "int64", (2, 3), num_classes=7), [[0, 1, 2], [3, 4, 5]]),
        (Feature("x", "int64", "int64", (None, 3), num_classes=7), [[0, 1, 2], [3, 4, 5]]),
        (Feature("x", "int64", "int64", (3,), num_classes=7), [0, 1, 2]),
        (Feature("x", "int64", "int64", (None,), num_classes=7), [0, 1, 2]),
        (Feature("x", "float", "float32", num_classes=7), 2.0),
        (Feature("x", "bytes", "string", (2,), num_classes=7), [b"cat", b"dog"]),
        (Feature("x", "bytes", "uint8", (2,), "raw", num_classes=7), [5, 6]),
    ],
)
def test_features_with_classes_keep_their_shape_and_type(feature: Feature, value: Any, tmp_path: Path) -> None:
    array = np.array(value)
    record = {"x": bytes(value) if feature.encoding == "raw" else array}
    write_dataset(str(tmp_path), {"train": [record]}, [feature], layout="own", shards=1)
    (example,) = tfds.as_numpy(tfds.builder_from_directory(str(tmp_path)).as_dataset(split="train"))
    assert example["x"].tolist() == value
    assert list(verify(str(tmp_path))) == []


def test_reads_label_maps_as_classes(tmp_path: Path) -> None:
    classes = np.random.default_rng(2).integers(0, 256, (3, 4, 5))
    features = [
        Feature("a", "bytes", "uint8", (None, None, 1), "label_map"),
        Feature("b", "bytes", "uint16", (4, 5, 1), "label_map"),
    ]
    records = [{"a": png_of(found), "b": png_of(found * 257, 16)} for found in classes]
    write_dataset(str(tmp_path), {"train": records}, features, layout="examples", shards=1)
    builder = tfds.builder_from_directory(str(tmp_path))
    assert builder.info.features["a"].shape == (None, None, 1)
    for found, example in zip(classes, tfds.as_numpy(builder.as_dataset(split="train")), strict=True):
        assert (example["a"].dtype, example["b"].dtype) == (np.uint8, np.uint16)
        np.testing.assert_array_equal(example["a"][..., 0], found)
        np.testing.assert_array_equal(example["b"][..., 0], found * 257)


def write_rows(folder: Path, label: Feature, names: list[str], shape: tuple[int, ...] = (2, 2, 3)) -> str:
    """Write a raw picture for each class, whose pixels are the number of the class."""
    pixels = Feature("image_raw", "bytes", "uint8", shape, "raw")
    size = int(np.prod(shape))
    records = [
        {"image_raw": bytes([number] * size), label.name: number + label.label_offset} for number in range(len(names))
    ]
    write_dataset(str(folder), {"train": records}, [pixels, label], layout="raw", shards=1, classes=len(names))
    write_metadata(str(folder), open_dataset(str(folder)).manifest, names)
    return str(folder)


@pytest.mark.parametrize("name", ["label", "image/class/label"])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_reads_class_names_and_supervised_keys(tmp_path: Path, name: str, offset: int) -> None:
    names = ["cat", "grüne Ente", "background"]
    label = Feature(name, "int64", "int64", num_classes=3, label_offset=offset)
    builder = tfds.builder_from_directory(write_rows(tmp_path, label, names))
    found = builder.info.features[name]
    assert [found.int2str(number + offset) for number in range(3)] == names
    assert [found.str2int(each) for each in names] == [offset, offset + 1, offset + 2]
    assert found.num_classes == 3 + offset
    assert len({*found.names}) == 3 + offset
    assert builder.info.supervised_keys == ("image_raw", name)
    pairs = list(builder.as_dataset(split="train", as_supervised=True).as_numpy_iterator())
    assert sorted((int(pixels[0, 0, 0]), int(number)) for pixels, number in pairs) == [
        (0, offset),
        (1, offset + 1),
        (2, offset + 2),
    ]
    assert list(verify(str(tmp_path))) == []


@pytest.mark.parametrize("names", [[" cat", "cat"], ["  ", "cat"]])
def test_omits_class_names_that_tfds_cannot_hold(tmp_path: Path, names: list[str]) -> None:
    label = Feature("label", "int64", "int64", num_classes=2)
    builder = tfds.builder_from_directory(write_rows(tmp_path, label, names))
    assert not (tmp_path / "label.labels.txt").exists()
    assert builder.info.features["label"].int2str(1) == "1"
    assert list(verify(str(tmp_path))) == []


def test_load_finds_a_dataset_by_name_and_version(tmp_path: Path) -> None:
    label = Feature("label", "int64", "int64", num_classes=2)
    write_rows(tmp_path / "pets" / "1.10.0", label, ["cat", "dog"])
    write_rows(tmp_path / "pets" / "1.2.0", label, ["cat", "dog", "eel"])
    dataset, info = tfds.load("pets", data_dir=str(tmp_path), split="train", as_supervised=True, with_info=True)
    assert len(list(dataset)) == 2
    assert (info.name, str(info.version), info.full_name) == ("pets", "1.10.0", "pets/1.10.0")
    assert tfds.builder("pets:1.2.0", data_dir=str(tmp_path)).info.splits["train"].num_examples == 3


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("data/pets/1.0.0", "pets:1.0.0"),
        ("/data/pets/2.10.3/", "pets:2.10.3"),
        ("gs://bucket/pets/1.0.0", "pets:1.0.0"),
        ("data/pets", "tpudata:1.0.0"),
        ("data/my-pets/1.0.0", "tpudata:1.0.0"),
        ("data/pets/1.0", "tpudata:1.0.0"),
        ("data/pets/01.0.0", "tpudata:1.0.0"),
    ],
)
def test_takes_name_and_version_from_the_folder(folder: str, name: str) -> None:
    assert find_tfds_name(folder) == name


def test_a_dataset_without_labels_has_no_supervised_keys(tmp_path: Path) -> None:
    text = Feature("text", "bytes", "string", encoding="utf8")
    write_dataset(str(tmp_path), {"train": [{"text": "ä"}]}, [text], layout="text", shards=1)
    assert tfds.builder_from_directory(str(tmp_path)).info.supervised_keys is None


def test_verify_accepts_metadata_of_earlier_versions(tmp_path: Path) -> None:
    write_rows(tmp_path, Feature("label", "int64", "int64", num_classes=2), ["cat", "dog"])
    manifest = dataclasses.replace(open_dataset(str(tmp_path)).manifest, tfds=None)
    value = json.loads(manifest.to_bytes())
    assert value.pop("tfds") is None
    (tmp_path / "label.labels.txt").unlink()
    (tmp_path / "dataset_info.json").write_bytes(encode_dataset_info(manifest))
    (tmp_path / "manifest.json").write_bytes(manifest.to_bytes())
    assert b"supervised" not in encode_dataset_info(manifest)
    assert (tmp_path / "features.json").read_bytes() == encode_features(manifest)
    assert list(verify(str(tmp_path))) == []


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_verify_names_damaged_class_names(tmp_path: Path, damage: str) -> None:
    write_rows(tmp_path, Feature("label", "int64", "int64", num_classes=2), ["cat", "dog"])
    path = tmp_path / "label.labels.txt"
    path.unlink() if damage == "missing" else path.write_text("dog\ncat\n")
    assert [defect.path for defect in verify(str(tmp_path))] == [str(path)]

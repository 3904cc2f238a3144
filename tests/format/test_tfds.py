"""tensorflow_datasets reads what is written beside the shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.datasets import write_dataset, write_images
from tpudata import open_dataset
from tpudata.format import Feature, verify, write_metadata

# tensorflow_datasets 4.9 asks protobuf for a field's label, which protobuf 5 deprecates.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")


def test_images_with_their_counts_features_and_labels(tmp_path: Path) -> None:
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


def test_class_names_and_supervised_keys(tmp_path: Path) -> None:
    images = {"train": [np.full((2, 2, 1), number, np.uint8) for number in range(10)]}
    for layout, label in (("imagenet", "image/class/label"), ("raw", "label")):
        folder = tmp_path / layout / "1.0.0"
        write_images(str(folder), images, {"train": list(range(10))}, shape=(2, 2, 1), layout=layout)
        builder = tfds.builder_from_directory(str(folder))
        feature = builder.info.features[label]
        assert feature.names == [f"class {number}" for number in range(10)]
        assert feature.int2str(3) == "class 3"
        # `--output DATA_DIR/NAME/1.0.0` is the layout of a dataset by name.
        loaded = tfds.load(layout, data_dir=str(tmp_path), split="train", as_supervised=True)
        seen = [(int(image[0, 0, 0]), int(number)) for image, number in tfds.as_numpy(loaded)]
        assert sorted(seen) == [(number, number) for number in range(10)]
        assert list(verify(str(folder))) == []


def test_class_names_that_tfds_does_not_take(tmp_path: Path) -> None:
    features = [Feature("x", "int64", "int64"), Feature("label", "int64", "int64", num_classes=2, label_offset=1)]
    folder = write_dataset(
        str(tmp_path), {"train": [{"x": 1, "label": 1}]}, features, layout="other", shards=1, classes=2
    )
    assert tfds.builder_from_directory(folder).info.features["label"].names == ["unused 0", "class 0", "class 1"]
    dataset = open_dataset(folder)
    for names in (["cat", "cat "], ["unused 0", "cat"]):
        (tmp_path / "label.labels.txt").unlink(missing_ok=True)
        write_metadata(folder, dataset.manifest, names)
        assert not (tmp_path / "label.labels.txt").exists()
        assert tfds.builder_from_directory(folder).info.features["label"].num_classes == 3
        assert list(verify(folder)) == []


def test_a_dataset_of_an_earlier_version_verifies(tmp_path: Path) -> None:
    images = {"train": [np.zeros((2, 2, 1), np.uint8)] * 3}
    write_images(str(tmp_path), images, {"train": [0, 1, 2]}, shape=(2, 2, 1), layout="raw")
    info = tmp_path / "dataset_info.json"
    content = json.loads(info.read_text())
    assert content.pop("supervisedKeys") == {"input": "image_raw", "output": "label"}
    info.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    (tmp_path / "label.labels.txt").unlink()
    assert list(verify(str(tmp_path))) == []
    (tmp_path / "label.labels.txt").write_text("other\n")
    assert [defect.path for defect in verify(str(tmp_path))] == [str(tmp_path / "label.labels.txt")]


def test_other_kinds_of_features(tmp_path: Path) -> None:
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

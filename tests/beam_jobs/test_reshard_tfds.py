"""Folders that TensorFlow Datasets wrote keep names, nested features, labels and class names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from beam_jobs.reshard import run
from tests.helpers.pictures import digests
from tpudata import make_input_fn
from tpudata.cli import main
from tpudata.errors import SourceError
from tpudata.format import open_dataset, verify

FEATURES = {
    "image": tfds.features.Image(shape=(4, 5, 3), encoding_format="png"),
    "label": tfds.features.ClassLabel(names=["cat", "dog", "eel"]),
    "objects": tfds.features.Sequence(
        {"bbox": tfds.features.BBoxFeature(), "label": tfds.features.ClassLabel(names=["a", "b"])}
    ),
    "nested": {"x": np.float32, "words": tfds.features.Text()},
    "small": tfds.features.Tensor(shape=(2, 2), dtype=np.uint8, encoding="bytes"),
    "map": tfds.features.LabeledImage(labels=7, shape=(4, 5, 1)),
}


def element(number: int) -> dict[str, Any]:
    return {
        "image": np.full((4, 5, 3), number, np.uint8),
        "label": np.int64(number % 3),
        "objects": {
            "bbox": np.array([[0, 0, 0.5, 0.5]] * (number % 3), np.float32).reshape(-1, 4),
            "label": np.array([1] * (number % 3), np.int64),
        },
        "nested": {"x": np.float32(number / 2), "words": f"é {number}".encode()},
        "small": np.full((2, 2), number, np.uint8),
        "map": np.full((4, 5, 1), number % 7, np.uint8),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset as the package writes it."""
    folder = tmp_path_factory.mktemp("tfds")
    identity = tfds.core.DatasetIdentity(
        name="things", version=tfds.core.Version("1.2.3"), data_dir=str(folder), module_name="things"
    )
    features = tfds.features.FeaturesDict(FEATURES)
    info = tfds.core.DatasetInfo(builder=identity, features=features, supervised_keys=("image", "label"))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=5)
    writer.initialize_splits(["train", "test"])
    writer.add_examples({"train": list(map(element, range(7))), "test": list(map(element, range(7, 9)))})
    writer.close_all()
    return folder


def test_keeps_names_labels_and_class_names(folder: Path, tmp_path: Path) -> None:
    assert run([str(folder), "--output", str(tmp_path / "out")]) == 0
    assert not list(verify(str(tmp_path / "out")))
    assert (tmp_path / "out" / "labels.txt").read_text() == "cat\ndog\neel\n"
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert {name: split.records for name, split in manifest.splits.items()} == {"train": 7, "test": 2}
    features = {feature.name: feature for feature in manifest.features}
    assert set(features) == {
        "image",
        "label",
        "objects/bbox",
        "objects/label",
        "nested/x",
        "nested/words",
        "small",
        "map",
    }
    assert (features["label"].num_classes, features["small"].shape, features["small"].dtype) == (3, (2, 2), "uint8")
    assert features["map"].is_label_map
    assert features["image"].encoding == "image"


@pytest.mark.filterwarnings("ignore:label\\(\\) is deprecated")
def test_tfds_reads_the_resharded_dataset(folder: Path, tmp_path: Path) -> None:
    run([str(folder), "--output", str(tmp_path / "out")])
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    assert builder.info.features["label"].names == ["cat", "dog", "eel"]
    found = {int(one["label"]): one for one in tfds.as_numpy(builder.as_dataset(split="test"))}
    for number in (7, 8):
        one, wanted = found[number % 3], element(number)
        np.testing.assert_array_equal(one["image"], wanted["image"])
        np.testing.assert_array_equal(one["small"], wanted["small"])
        np.testing.assert_array_equal(one["map"], wanted["map"])
        np.testing.assert_array_equal(np.reshape(one["objects/bbox"], (-1, 4)), wanted["objects"]["bbox"])
        assert one["nested/words"] == wanted["nested"]["words"]


def test_make_input_fn_reads_the_resharded_dataset(folder: Path, tmp_path: Path) -> None:
    run([str(folder), "--output", str(tmp_path / "out")])
    input_fn = make_input_fn(
        str(tmp_path / "out"), "test", training=False, pad={"objects/label": 3, "objects/bbox": 12}, label="label"
    )
    features, labels = next(iter(input_fn({"batch_size": 2})))
    assert labels.numpy().tolist() == [1, 2]
    assert features["objects/bbox"].shape == (2, 12)


def test_takes_a_nested_class_as_the_label_if_it_is_the_only_one(tmp_path: Path) -> None:
    identity = tfds.core.DatasetIdentity(
        name="t", version=tfds.core.Version("1.0.0"), data_dir=str(tmp_path / "in"), module_name="t"
    )
    (tmp_path / "in").mkdir()
    features = tfds.features.FeaturesDict({"a": {"kind": tfds.features.ClassLabel(names=["x", "y"])}})
    writer = tfds.core.SequentialWriter(tfds.core.DatasetInfo(builder=identity, features=features), 5)
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"a": {"kind": 1}}]})
    writer.close_all()
    run([str(tmp_path / "in"), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out" / "labels.txt").read_text() == "x\ny\n"
    (label,) = open_dataset(str(tmp_path / "out")).manifest.features
    assert (label.name, label.num_classes) == ("a/kind", 2)


def test_labels_flag_overrides_the_metadata(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    run([str(folder), "--output", str(tmp_path / "out"), "--labels", str(tmp_path / "names.txt")])
    assert (tmp_path / "out" / "labels.txt").read_text() == "x\ny\nz\n"


def test_import_is_an_alias_of_reshard(folder: Path, tmp_path: Path) -> None:
    run([str(folder), "--output", str(tmp_path / "one")])
    assert main(["import", str(folder), "--output", str(tmp_path / "two")]) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_rejects_damaged_metadata(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "in")
    (copy / "features.json").write_text('{"featuresDict": {"features": {"label": {"classLabel": 3}}}}')
    with pytest.raises(SourceError, match=r"features\.json: not as TensorFlow Datasets writes it"):
        run([str(copy), "--output", str(tmp_path / "out")])
    (copy / "features.json").write_text("{")
    with pytest.raises(SourceError, match=r"features\.json: not JSON"):
        run([str(copy), "--output", str(tmp_path / "out")])
    content = json.loads((folder / "features.json").read_text())
    label = content["featuresDict"]["features"]["label"]["classLabel"]
    # json writes it as Infinity, which is not JSON.
    (copy / "features.json").write_text(json.dumps(content).replace(json.dumps(label), '{"numClasses": 1e999}'))
    with pytest.raises(SourceError, match=r"features\.json: not as TensorFlow Datasets writes it: OverflowError"):
        run([str(copy), "--output", str(tmp_path / "out")])
    label["numClasses"] = "9"
    (copy / "features.json").write_text(json.dumps(content))
    with pytest.raises(SourceError, match=r"label\.labels\.txt has 3 names of classes \(expected 9"):
        run([str(copy), "--output", str(tmp_path / "out")])
    (copy / "label.labels.txt").write_bytes(b"\xef\xbb\xbfcaf\xe9\n")
    with pytest.raises(SourceError, match=r"label\.labels\.txt: not UTF-8 \(.* at byte 6\)"):
        run([str(copy), "--output", str(tmp_path / "out")])
    del content["featuresDict"]["features"]["label"]["pythonClassName"]
    (copy / "features.json").write_text(json.dumps(content))
    with pytest.raises(SourceError, match=r"features\.json: not as TensorFlow Datasets writes it: KeyError"):
        run([str(copy), "--output", str(tmp_path / "out")])

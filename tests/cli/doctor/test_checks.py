"""Checks of `tpudata doctor` on a dataset and a model folder.

Tests call the checks directly: the command also starts programs that load TensorFlow for seconds.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.datasets import write_dataset
from tpudata.cli import main
from tpudata.cli.doctor.checks import check_files, check_labels, check_model_dir, check_shapes
from tpudata.format import Feature, Split, index_name, open_dataset, write_metadata

LABEL = Feature("label", "int64", "int64", num_classes=3)
X = Feature("x", "float", "float32", (2,))


def written(folder: Path, labels: list[int], label: Feature = LABEL, classes: int | None = 3) -> str:
    records = [{"x": [0.0, 1.0], "label": number} for number in labels]
    return write_dataset(str(folder), {"train": records}, [X, label], layout="", shards=2, classes=classes)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return written(tmp_path / "d", [0, 1, 2, 1])


def test_leaves_the_model_folder_unchanged(tmp_path: Path) -> None:
    state, text = check_model_dir(str(tmp_path / "new"))[1:]
    assert (state, text) == ("ok", f"{tmp_path}/new: a file was written, read and deleted")
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    assert check_model_dir(str(tmp_path / "runs" / "a" / "b")).state == "ok"
    assert check_model_dir(str(tmp_path / "runs")).state == "ok"
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_reports_a_folder_without_write_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    finding = check_model_dir(str(tmp_path / "model"))
    tmp_path.chmod(0o700)
    assert finding.state == "problem"


def test_reports_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    name, state, text = check_model_dir(str(tmp_path / "model"))
    assert (name, state) == ("model dir", "problem")
    assert text.startswith(f"no file can be written in {tmp_path}/model: ")
    assert text.endswith("Grant the permission, or pass another folder.")


def test_accepts_intact_files(folder: str) -> None:
    assert check_files(open_dataset(folder)).state == "ok"


def test_accepts_a_split_without_records(folder: str) -> None:
    manifest = open_dataset(folder).manifest
    splits = {"empty": Split(()), **manifest.splits}
    write_metadata(folder, dataclasses.replace(manifest, splits=splits), ["a", "b", "c"])
    dataset = open_dataset(folder)
    assert check_files(dataset).state == "ok"
    labels = check_labels(dataset, None, {})
    assert labels is not None
    assert labels.state == "ok"


@pytest.mark.parametrize("damage", ["shard missing", "shard cut", "index missing", "index damaged"])
def test_names_missing_and_damaged_files(folder: str, damage: str) -> None:
    dataset = open_dataset(folder)
    shard = dataset.manifest.splits["train"].shards[0]
    path = Path(folder, index_name(shard.name) if damage.startswith("index") else shard.name)
    if damage.endswith("missing"):
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    _, state, text = check_files(dataset)
    assert state == "problem"
    assert str(path) in text
    assert ("Copy the dataset again" in text) == (damage != "index damaged")


def test_warns_of_a_missing_shard_in_quarantine(folder: str) -> None:
    Path(folder, open_dataset(folder).manifest.splits["train"].shards[0].name).unlink()
    assert main(["verify", folder, "--quarantine"]) == 0
    assert check_files(open_dataset(folder)).state == "warning"


def test_warns_of_records_in_quarantine(folder: str) -> None:
    shard = sorted(Path(folder).glob("train-*"))[0]
    data = bytearray(shard.read_bytes())
    data[14] ^= 1
    shard.write_bytes(data)
    assert main(["verify", folder, "--quarantine"]) == 0
    assert check_files(open_dataset(folder))[1:] == (
        "warning",
        "1 record in quarantine, which readers skip. Restore the shards to get them back.",
    )


def test_names_the_flag_for_varying_shapes(tmp_path: Path, folder: str) -> None:
    assert check_shapes(open_dataset(folder), {}).state == "ok"
    image = Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image")
    pictures = write_dataset(
        str(tmp_path / "p"), {"train": [{"image/encoded": b""}]}, [image], layout="imagenet", shards=1
    )
    assert "--image-size HxW or --crop SIZE" in check_shapes(open_dataset(pictures), {}).text
    assert check_shapes(open_dataset(pictures), {"crop": "224"}).state == "ok"
    ids = Feature("input_ids", "bytes", "int32", (None,), "raw")
    tokens = write_dataset(str(tmp_path / "t"), {"train": [{"input_ids": b""}]}, [ids], layout="tokens", shards=1)
    assert "--sequence-length N" in check_shapes(open_dataset(tokens), {}).text
    assert check_shapes(open_dataset(tokens), {"sequence-length": "8"}).state == "ok"
    floats = Feature("y", "float", "float32", (None,))
    lists = write_dataset(str(tmp_path / "l"), {"train": [{"y": [1.0]}]}, [floats], layout="", shards=1)
    assert check_shapes(open_dataset(lists), {})[1:] == (
        "problem",
        "y: shape (None,) varies between records. Convert the data to one shape.",
    )


def test_checks_labels_against_the_models_outputs(folder: str, tmp_path: Path) -> None:
    dataset = open_dataset(folder)
    assert check_labels(dataset, None, {})[1:] == ("ok", "labels 0 to 2 in 4 records; 3 classes")  # type: ignore[index]
    ok = check_labels(dataset, "mnist_cnn", {})
    assert ok is not None
    assert ok[1:] == ("ok", "labels 0 to 2 in 4 records; mnist_cnn has 3 outputs from 0")
    few = check_labels(dataset, "mnist_cnn", {"num_classes": 2})
    assert few is not None
    assert few[1:] == (
        "problem",
        "labels 0 to 2 in 4 records, and mnist_cnn has outputs for 0 to 1. Pass --param num_classes=3.",
    )
    late = check_labels(dataset, "resnet", {"label_offset": 1, "num_classes": 2})
    assert late is not None
    assert late[1:] == (
        "problem",
        "labels 0 to 2 in 4 records, and resnet has outputs for 1 to 2. Pass --param label_offset=0 --param num_classes=3.",
    )
    unlabelled = [{"label": [0]}, {"label": [-1]}]
    negative_data = write_dataset(
        str(tmp_path / "n"), {"train": unlabelled}, [Feature("label", "int64", "int64", (None,))], layout="", shards=1
    )
    negative = check_labels(open_dataset(negative_data), "mnist_cnn", {})
    assert negative is not None
    assert negative.text.endswith("No output can have a negative label. Convert the data again.")
    wrong = open_dataset(written(tmp_path / "wrong", [0, 3]))
    beyond = check_labels(wrong, None, {})
    assert beyond is not None
    assert beyond[1:] == (
        "problem",
        "labels 0 to 3 in 2 records (expected 0 to 2, by the manifest). Convert the data again.",
    )
    lists: list[dict[str, Any]] = [{"label": [0, 2, 1]}, {"label": [1]}, {"label": []}]
    several = write_dataset(
        str(tmp_path / "s"), {"train": lists}, [Feature("label", "int64", "int64", (None,))], layout="", shards=1
    )
    line = check_labels(open_dataset(several), None, {})
    assert line is not None
    assert line.text == "labels 0 to 2 in 2 records; no number of classes in the manifest"
    offset = Feature("label", "int64", "int64", num_classes=3, label_offset=1)
    shifted = open_dataset(written(tmp_path / "shifted", [1, 3], offset))
    resnet = check_labels(shifted, "resnet", {})
    assert resnet is not None
    assert resnet.state == "ok"


def test_skips_the_label_check_without_labels(tmp_path: Path) -> None:
    path = write_dataset(str(tmp_path / "d"), {"train": [{"x": [0.0, 1.0]}]}, [X], layout="", shards=1)
    assert check_labels(open_dataset(path), "tiny_lm", {}) is None

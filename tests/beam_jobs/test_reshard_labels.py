"""Classes of datasets that are merged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.beam_jobs.resharding import NUMBER, assert_whole, manifest, numbered, records_of, reshard
from tests.helpers.datasets import write_dataset
from tpudata.errors import BadRecordError, DatasetError, FeatureError, UsageError
from tpudata.format import Feature, open_dataset, write_metadata


def labelled(folder: Path, names: list[str], labels: list[int], offset: int = 0) -> Path:
    """Write a dataset of records with classes."""
    label = Feature("label", "int64", "int64", num_classes=len(names), label_offset=offset)
    records = [{"n": number, "label": label_ + offset} for number, label_ in enumerate(labels)]
    write_dataset(str(folder), {"train": records}, [NUMBER, label], layout="examples", shards=1, classes=len(names))
    dataset = open_dataset(str(folder))
    write_metadata(str(folder), dataset.manifest, names)
    return folder


def classes(folder: Path) -> list[tuple[int, str]]:
    """Return number and class name of each record."""
    dataset = open_dataset(str(folder))
    names = dataset.labels()
    assert names is not None
    offset = dataset.manifest.feature("label").label_offset
    found = [(example["n"][0], example["label"][0]) for example in dataset.examples("train")]
    return [(int(n), names[int(label) - offset]) for n, label in found]


@pytest.mark.parametrize("offset", [0, 1])
def test_merges_labels_by_name(tmp_path: Path, offset: int) -> None:
    one = labelled(tmp_path / "one", ["ant", "bee"], [0, 1, 1], offset)
    two = labelled(tmp_path / "two", ["bee", "cat", "ant"], [0, 1, 2, 1], offset)
    with pytest.raises(UsageError, match=r"got 'bee' for class 0, expected 'ant'.*--merge-labels"):
        reshard(one, two, "--output", tmp_path / "out")
    assert reshard(one, two, "--output", tmp_path / "out", "--merge-labels") == 0
    assert open_dataset(str(tmp_path / "out")).labels() == ("ant", "bee", "cat")
    assert classes(tmp_path / "out") == classes(one) + classes(two)
    assert manifest(tmp_path / "out").feature("label").num_classes == 3
    assert records_of(tmp_path / "out")[:3] == records_of(one)
    assert_whole(tmp_path / "out")


def test_more_classes_after_the_same_ones_change_no_record(tmp_path: Path) -> None:
    one = labelled(tmp_path / "one", ["ant", "bee"], [0, 1])
    two = labelled(tmp_path / "two", ["ant", "bee", "cat"], [2, 1])
    assert reshard(one, two, "--output", tmp_path / "out") == 0
    assert records_of(tmp_path / "out") == records_of(one) + records_of(two)
    assert open_dataset(str(tmp_path / "out")).labels() == ("ant", "bee", "cat")
    assert_whole(tmp_path / "out")


def unnamed(folder: Path, labels: list[int], **classes: int | None) -> Path:
    """Write a dataset whose features hold classes without names: each record has its label in all of them."""
    features = [Feature(name, "int64", "int64", num_classes=number) for name, number in classes.items()]
    records = [dict.fromkeys(classes, label) for label in labels]
    write_dataset(str(folder), {"train": records}, features, layout="examples", shards=1)
    return folder


def test_labels_without_names_keep_their_range(tmp_path: Path) -> None:
    one = unnamed(tmp_path / "one", [0, 9], label=10, colour=12)
    two = unnamed(tmp_path / "two", [0, 10], label=11, colour=None)
    with pytest.raises(AssertionError):  # The check sees labels out of range.
        assert_whole(unnamed(tmp_path / "wrong", [0, 9], label=9))
    assert reshard(one, "--output", tmp_path / "alone") == 0
    assert manifest(tmp_path / "alone").features == manifest(one).features
    assert manifest(tmp_path / "alone").labels is None
    assert reshard(one, two, "--output", tmp_path / "both") == 0
    assert [feature.num_classes for feature in manifest(tmp_path / "both").features] == [11, None]
    for name in ("alone", "both"):
        assert_whole(tmp_path / name)


def test_a_second_feature_of_classes_keeps_its_range(tmp_path: Path) -> None:
    features = [Feature("label", "int64", "int64", num_classes=2), Feature("colour", "int64", "int64", num_classes=7)]
    records = [{"label": number % 2, "colour": number} for number in range(7)]
    write_dataset(str(tmp_path / "in"), {"train": records}, features, layout="examples", shards=1, classes=2)
    assert reshard(tmp_path / "in", "--output", tmp_path / "out") == 0
    assert manifest(tmp_path / "out").features == manifest(tmp_path / "in").features
    assert_whole(tmp_path / "out")


def test_rejects_merging_number_labels_with_names(tmp_path: Path) -> None:
    one, two = labelled(tmp_path / "one", ["0", "1"], [0, 1]), labelled(tmp_path / "two", ["ant", "bee"], [0, 1])
    with pytest.raises(DatasetError, match="nothing says which are the same classes"):
        reshard(one, two, "--output", tmp_path / "out", "--merge-labels")


def test_names_the_difference_of_datasets_that_do_not_merge(tmp_path: Path) -> None:
    one = labelled(tmp_path / "one", ["ant", "bee"], [0, 1])
    with pytest.raises(FeatureError, match=r"Feature 'blob': .*/two has it, .*/one does not"):
        reshard(one, numbered(tmp_path / "two", {"train": 4}), "--output", tmp_path / "out")
    with pytest.raises(FeatureError, match=r"Feature 'label': int64 int64 shape \(\) labels from 1 in .*/three"):
        reshard(one, labelled(tmp_path / "three", ["ant", "bee"], [0], 1), "--output", tmp_path / "out")
    plain = write_dataset(
        str(tmp_path / "four"), {"train": [{"n": 1, "label": 1}]}, [NUMBER, Feature("label", "int64", "int64")],
        layout="examples", shards=1,
    )  # fmt: skip
    with pytest.raises(DatasetError, match="/four has no classes, and other inputs have"):
        reshard(one, plain, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("label", [float("inf"), 7.0])
def test_rejects_a_stored_label_without_class(tmp_path: Path, label: float) -> None:
    one = labelled(tmp_path / "one", ["ant", "bee"], [0, 1])
    two = labelled(tmp_path / "two", ["bee", "ant"], [0, 1])
    # The manifest says int64, and the records have a float.
    records = [{"n": 0, "label": label}]
    stored = [NUMBER, Feature("label", "float", "float32")]
    write_dataset(str(tmp_path / "floats"), {"train": records}, stored, layout="examples", shards=1, classes=2)
    floats = open_dataset(str(tmp_path / "floats")).manifest
    declared = dataclasses.replace(floats, features=open_dataset(str(two)).manifest.features)
    write_metadata(str(tmp_path / "floats"), declared, ["bee", "ant"])
    with pytest.raises(BadRecordError, match=r"unknown label: .*; its dataset has 2 classes"):
        reshard(one, tmp_path / "floats", "--output", tmp_path / "out", "--merge-labels")

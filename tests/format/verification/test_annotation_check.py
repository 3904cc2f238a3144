"""Annotations that do not fit: what `verify` reports, and where."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.format.verification.damage import places, reasons, record_starts
from tests.helpers.datasets import write_dataset
from tests.helpers.objects import FEATURES, LABEL, record_of
from tpudata.format import Feature, verify

WHOLE = record_of([(0, 0, 1, 1), (0.25, 0.5, 0.75, 0.625)], [0, 1])
SHARD = "train-00000-of-00001.tfrecord"
BOUNDS = "(expected edges from 0 to 1, ymin below ymax, xmin below xmax)"


def write(folder: Path, *records: dict[str, Any], features: Any = FEATURES, classes: int | None = 2) -> None:
    write_dataset(str(folder), {"train": records}, features, layout="imagenet", shards=1, classes=classes)


def kinds(folder: Path) -> list[str]:
    return [defect.kind for defect in verify(str(folder))]


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        (
            {"ymin": [-0.5, 0.25]},
            "boxes",
            f"box 0 of 'image/object/bbox' is ymin -0.5, xmin 0, ymax 1, xmax 1 {BOUNDS}",
        ),
        (
            {"xmax": [1.5, 0.25]},
            "boxes",
            f"box 0 of 'image/object/bbox' is ymin 0, xmin 0, ymax 1, xmax 1.5, and 1 more box {BOUNDS}",
        ),
        (
            {"ymax": [1.0, 0.25]},
            "boxes",
            f"box 1 of 'image/object/bbox' is ymin 0.25, xmin 0.5, ymax 0.25, xmax 0.625 {BOUNDS}",
        ),
        (
            {"xmin": [float("nan"), 0.5]},
            "boxes",
            f"box 0 of 'image/object/bbox' is ymin 0, xmin nan, ymax 1, xmax 1 {BOUNDS}",
        ),
        (
            {"ymin": [0.0]},
            "lists",
            "lists of 'image/object' that belong together differ in length: 'image/object/bbox/ymin' has 1,"
            " 'image/object/bbox/xmin' has 2",
        ),
        (
            {"text": ["class 0"]},
            "lists",
            "lists of 'image/object' that belong together differ in length: 'image/object/bbox/ymin' has 2,"
            " 'image/object/class/text' has 1",
        ),
        (
            {"x": [0.5] * 9},
            "lists",
            "lists of 'image/object' that belong together differ in length: 'image/object/bbox/ymin' has 2,"
            " 'image/object/keypoint/x' has 3",
        ),
        ({"label": [0, 2]}, "classes", "feature 'image/object/class/label' is 2; the manifest's labels go from 0 to 1"),
        ({"caption": []}, None, None),
    ],
)
def test_names_annotations_that_do_not_fit(
    tmp_path: Path, changes: dict[str, Any], kind: str | None, reason: str | None
) -> None:
    other = record_of([(0, 0, 1, 1), (0.25, 0.5, 0.75, 0.625)], [0, 1], **changes)
    write(tmp_path, WHOLE, other, record_of([], []))
    assert places(tmp_path) == ([(SHARD, record_starts(tmp_path / SHARD)[1])] if reason else [])
    assert reasons(tmp_path) == ([reason] if reason else [])
    assert kinds(tmp_path) == ([kind] if kind else [])


def test_reports_each_problem_of_a_record(tmp_path: Path) -> None:
    write(tmp_path, record_of([(0.5, 0, 0.25, 1)], [7]))
    assert kinds(tmp_path) == ["classes", "boxes"]


def test_checks_boxes_of_tfds_and_the_lists_next_to_them(tmp_path: Path) -> None:
    features = [
        Feature("objects/bbox", "float", "float32", (None, 4)),
        Feature("objects/label", "int64", "int64", (None,)),
        Feature("ages", "int64", "int64", (None,)),
    ]
    box = [0.0, 0.5, 1.0, 0.75]
    records: list[dict[str, Any]] = [
        {"objects/bbox": box * 2, "objects/label": [1, 2], "ages": [1]},
        {"objects/bbox": [*box, 0.0, 0.0, 2.0, 1.0], "objects/label": [1, 2], "ages": []},
        {"objects/bbox": box, "objects/label": [1, 2]},
        {"objects/bbox": [], "ages": [4]},
    ]
    write(tmp_path, *records, features=features, classes=None)
    starts = record_starts(tmp_path / SHARD)
    assert [(offset, kind) for (_, offset), kind in zip(places(tmp_path), kinds(tmp_path), strict=True)] == [
        (starts[1], "boxes"),
        (starts[2], "lists"),
    ]
    assert reasons(tmp_path)[0].startswith("box 1 of 'objects/bbox' is ymin 0, xmin 0, ymax 2, xmax 1")


def test_accepts_one_list_of_points_for_all_objects(tmp_path: Path) -> None:
    plain = [feature for feature in FEATURES if not feature.name.endswith("keypoint/x")]
    write(tmp_path, WHOLE, features=[*plain, Feature("image/object/keypoint/x", "float", "float32", (None,))])
    assert places(tmp_path) == []


def test_accepts_lists_of_a_picture_that_differ_from_its_boxes(tmp_path: Path) -> None:
    renamed = {feature.name: feature.name.replace("/object/bbox/", "/bbox/") for feature in FEATURES}
    features = [dataclasses.replace(feature, name=renamed[feature.name]) for feature in FEATURES]
    kept = [feature for feature in features if "/object/" not in feature.name]
    record = {renamed[name]: value for name, value in record_of([(0, 0, 1, 1)], [0]).items()}
    names = {feature.name for feature in kept}
    # Two captions, and one box.
    write(tmp_path, {name: value for name, value in record.items() if name in names}, features=kept)
    assert places(tmp_path) == []


@pytest.mark.parametrize("further", [(), (Feature("scene", "int64", "int64", num_classes=9),)])
def test_checks_object_classes_if_no_other_feature_has_classes(tmp_path: Path, further: tuple[Feature, ...]) -> None:
    plain = [dataclasses.replace(f, num_classes=None) if f.name == LABEL else f for f in FEATURES]
    record = record_of([(0, 0, 1, 1)], [2])
    write(tmp_path, {**record, **{feature.name: 8 for feature in further}}, features=[*plain, *further])
    assert kinds(tmp_path) == ([] if further else ["classes"])


def test_reports_classes_with_fewer_names_than_numbers(tmp_path: Path) -> None:
    features = [
        Feature("image/class/label", "int64", "int64", (None,)),
        Feature("image/class/text", "bytes", "string", (None,), "utf8"),
    ]
    names = [f"class {number}" for number in range(2)]
    records = [{"image/class/label": [0, 1], "image/class/text": names[:count]} for count in (2, 1)]
    write(tmp_path, *records, features=features)
    assert kinds(tmp_path) == ["lists"]

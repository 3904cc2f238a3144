"""Parquet files of pictures with a column `objects`, as Hugging Face's datasets of detection have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

import tpudata
from tests.beam_jobs.images import encode, picture
from tests.beam_jobs.outcomes import SKIP, read_rejects
from tpudata.errors import SourceError
from tpudata.format import open_dataset

NAMES = ["cat", "dog", "eel"]
HEIGHT, WIDTH = 20, 40
JPEG = encode(picture(HEIGHT, WIDTH), "JPEG")
OBJECTS: list[dict[str, Any]] = [
    {
        "bbox": [[4.0, 2.0, 8.0, 10.0], [0.0, 0.0, 40.0, 20.0]],
        "category": [2, 0],
        "area": [80.0, 5.5],
        "iscrowd": [0, 1],
    },
    {"bbox": [], "category": [], "area": [], "iscrowd": []},
    {"bbox": [[1.5, 1.5, 3.0, 3.0]], "category": [1], "area": [9.0], "iscrowd": [0]},
]


def write(path: Path, objects: list[Any], names: list[str] | None = NAMES, **columns: list[Any]) -> Path:
    category = {"feature": {"names": names, "_type": "ClassLabel"}} if names else {"feature": {"dtype": "int64"}}
    features = {"image": {"_type": "Image"}, "objects": {"bbox": {}, "category": category}}
    rows = {"image": [{"bytes": JPEG, "path": "a.jpg"}] * len(objects), "objects": objects, **columns}
    table = pa.table(rows).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=2)
    return path


def records(path: Path) -> list[dict[str, Any]]:
    found = [
        example
        for split in open_dataset(str(path)).manifest.splits
        for example in open_dataset(str(path)).examples(split)
    ]
    return sorted(found, key=lambda one: str(one["image/filename"]))


@pytest.mark.parametrize("form", ["dict of lists", "list of dicts"])
def test_stores_the_boxes_that_a_plain_loop_computes(tmp_path: Path, form: str) -> None:
    objects: list[Any] = OBJECTS
    if form == "list of dicts":
        objects = [[dict(zip(one, row, strict=True)) for row in zip(*one.values(), strict=True)] for one in OBJECTS]
    write(tmp_path / "in.parquet", objects, width=[40] * 3)
    options: dict[str, Any] = {"column_types": {"width": "int"}, "shuffle": False}
    tpudata.convert_images(tmp_path / "in.parquet", tmp_path / "out", **options)
    assert open_dataset(str(tmp_path / "out")).labels() == tuple(NAMES)
    found = records(tmp_path / "out")
    assert len(found) == 3
    for record, one in zip(found, OBJECTS, strict=True):
        boxes = np.array(one["bbox"]).reshape(-1, 4)
        edges = {
            "xmin": boxes[:, 0],
            "ymin": boxes[:, 1],
            "xmax": boxes[:, 0] + boxes[:, 2],
            "ymax": boxes[:, 1] + boxes[:, 3],
        }
        for edge, values in edges.items():
            side = WIDTH if edge.startswith("x") else HEIGHT
            np.testing.assert_allclose(record[f"image/object/bbox/{edge}"], values / side, rtol=1e-6)
        assert list(record["image/object/class/label"]) == one["category"]
        assert list(record["image/object/class/text"]) == [NAMES[number].encode() for number in one["category"]]
        assert list(record["image/object/area"]) == one["area"]
        assert list(record["image/object/is_crowd"]) == one["iscrowd"]
        assert list(record["width"]) == [40]


def test_a_picture_without_objects_has_empty_lists(tmp_path: Path) -> None:
    write(tmp_path / "in.parquet", [None, *OBJECTS])
    tpudata.convert_images(str(tmp_path / "in.parquet"), str(tmp_path / "out"), shuffle=False)
    assert [len(one["image/object/area"]) for one in records(tmp_path / "out")] == [0, 2, 0, 1]


def test_rejects_unnamed_picture_classes_next_to_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", OBJECTS, label=["b", "a", "b"])
    with pytest.raises(SourceError, match=r"labels without names in the file's metadata\. Pass unlabelled=True"):
        tpudata.convert_images(str(path), str(tmp_path / "out"))
    tpudata.convert_images(str(path), str(tmp_path / "out"), unlabelled=True)
    assert open_dataset(str(tmp_path / "out")).labels() == tuple(NAMES)


def test_takes_class_names_from_a_labels_file(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", OBJECTS, names=None)
    with pytest.raises(SourceError, match="classes of its objects have no names in the file's metadata"):
        tpudata.convert_images(str(path), str(tmp_path / "out"))
    (tmp_path / "names.txt").write_text("ant\nbee\ncow\n")
    tpudata.convert_images(str(path), str(tmp_path / "out"), labels_file=tmp_path / "names.txt", shuffle=False)
    assert list(records(tmp_path / "out")[0]["image/object/class/text"]) == [b"cow", b"ant"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bbox": [[1.0, 1.0, 3.0]]}, "'bbox' of objects is not a list of [x, y, width, height]"),
        ({"category": [7]}, "unknown class 7; numbers of classes go from 0 to 2"),
        ({"category": [1, 2]}, "'category' of objects is not a list of 1, one for each box"),
        ({"bbox": [[35.0, 1.0, 30.0, 3.0]]}, "outside"),
        ({"bbox": [[float("nan"), 1.0, 3.0, 3.0]]}, "a box without area"),
    ],
)
def test_rejects_damaged_objects(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    write(tmp_path / "in.parquet", [*OBJECTS, {**OBJECTS[2], **change}])
    tpudata.convert_images(tmp_path / "in.parquet", tmp_path / "out", **SKIP)
    ((source, said),) = read_rejects(tmp_path / "out", tmp_path).items()
    assert source == "in.parquet row 3"
    assert reason in said
    assert len(records(tmp_path / "out")) == 3


def test_appends_new_pictures(tmp_path: Path) -> None:
    write(tmp_path / "one" / "a.parquet", OBJECTS)
    tpudata.convert_images(str(tmp_path / "one"), str(tmp_path / "out"))
    write(tmp_path / "one" / "b.parquet", OBJECTS[2:])
    tpudata.convert_images(str(tmp_path / "one"), str(tmp_path / "out"), append=True)
    assert len(records(tmp_path / "out")) == 4

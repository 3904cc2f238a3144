from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.datasets import write_dataset
from tests.helpers.digits import write_digits
from tests.helpers.objects import CAPTION, record_of
from tests.helpers.objects import FEATURES as OBJECTS
from tpudata.cli import main
from tpudata.format import Feature, Manifest, Source, Split, encode_example, open_dataset, write_metadata, write_shard
from tpudata.storage import LocalStorage


def _json(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    assert main(["inspect", str(folder), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_agrees_with_the_files_on_disk(digits_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _json(digits_dataset, capsys)
    shards = sorted(digits_dataset.glob("*.tfrecord"))
    assert shown["records"] == 290
    assert shown["bytes"] == sum(shard.stat().st_size for shard in shards)
    assert {name: split["records"] for name, split in shown["splits"].items()} == {"train": 200, "validation": 90}
    listed = [shard for split in shown["splits"].values() for shard in split["shards"]]
    assert {shard["name"]: shard["bytes"] for shard in listed} == {shard.name: shard.stat().st_size for shard in shards}
    manifest = json.loads((digits_dataset / "manifest.json").read_bytes())
    for key in ("layout", "format_version", "created_by", "features", "rejected", "options", "source"):
        assert shown[key] == manifest[key], key
    assert shown["labels"] == [str(digit) for digit in range(10)]
    assert shown["rejects"] == []


def test_json_shows_the_first_records(digits_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits = _json(digits_dataset, capsys, "--records=3")["splits"]
    assert [example["image/filename"] for example in splits["train"]["examples"]] == [
        "0000.png",
        "0001.png",
        "0002.png",
    ]
    assert [example["image/class/label"] for example in splits["train"]["examples"]] == [0, 1, 2]
    assert splits["validation"]["examples"][0]["image/filename"] == "0200.png"
    image = splits["train"]["examples"][0]["image/encoded"]
    assert image["first"] == "89 50 4e 47 0d 0a 1a 0a"  # how every PNG file begins
    assert 60 < image["bytes"] < 300


def test_shows_no_records_for_0_and_rejects_negative_counts(
    digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _json(digits_dataset, capsys, "--records", "0")["splits"]["train"]["examples"] == []
    assert main(["inspect", str(digits_dataset), "--records=-1"]) == 2
    assert "'-1' is not a whole number of 0 or more" in capsys.readouterr().err


def test_text_lists_splits_features_and_rejects(digits_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(digits_dataset), "--records=1"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].startswith(f"{digits_dataset}: 290 records in ")
    assert [line.split()[:3] for line in lines if line.startswith(("train", "validation"))] == [
        ["train", "200", "2"],
        ["validation", "90", "2"],
    ]
    assert "image/encoded      bytes (image)  uint8       8x8x1" in shown
    assert "10 classes, labels 0 to 9" in shown
    assert "10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in shown
    assert "made from digits: 290 inputs, 18.6 kB, 1 file ignored" in shown
    assert '{"seed": 0}' in shown
    assert "       2  not an image" in shown
    assert 'image/filename     "0200.png"' in shown
    assert all(line == line.rstrip() for line in lines)


def test_shortens_long_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = encode_example(
        {
            "text": "ü" * 500,
            "short": "grüße",
            "ids": np.arange(1000),
            "pair": [0.5, 2.0],
            "raw": b"\xff\x00",
            "none": [],
        }
    )
    shard = write_shard(str(tmp_path), "train-00000-of-00001.tfrecord", [record])
    kinds = {"text": "bytes", "short": "bytes", "ids": "int64", "pair": "float", "raw": "bytes", "none": "int64"}
    dtypes = {"bytes": "string", "int64": "int64", "float": "float32"}
    features = tuple(Feature(name, kind, dtypes[kind], (None,)) for name, kind in kinds.items())
    source = Source("words.txt", 1, 10, "f")
    write_metadata(str(tmp_path), Manifest("text", {"train": Split((shard,))}, features, source, "0.1.0"))
    shown = _json(tmp_path, capsys)
    assert shown["labels"] is None
    assert shown["splits"]["train"]["examples"] == [
        {
            "ids": {"values": 1000, "first": [0, 1, 2, 3, 4, 5, 6, 7]},
            "none": [],
            "pair": [0.5, 2.0],
            "raw": {"bytes": 2, "first": "ff 00"},
            "short": "grüße",
            "text": {"characters": 500, "first": "ü" * 60},
        }
    ]
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "rejected: none" in text
    assert '"grüße"' in text


def test_names_the_files_that_list_rejects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_digits(tmp_path, {"train": 5})
    rejects = tmp_path / "rejects" / "00000.jsonl"
    rejects.parent.mkdir()
    rejects.write_text("{}\n")
    assert _json(tmp_path, capsys)["rejects"] == [str(rejects)]
    assert main(["inspect", str(tmp_path)]) == 0
    assert f"listed in {rejects}" in capsys.readouterr().out


def test_names_a_missing_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_digits(tmp_path, {"train": 150, "validation": 5}, shards=2)
    (tmp_path / "train-00001-of-00002.tfrecord").unlink()
    assert main(["inspect", str(tmp_path)]) == 1
    assert "train-00001-of-00002.tfrecord: the shard is missing" in capsys.readouterr().err


@pytest.mark.parametrize("whole_folder", [False, True])
def test_names_a_missing_index(tmp_path: Path, whole_folder: bool, capsys: pytest.CaptureFixture[str]) -> None:
    write_digits(tmp_path, {"train": 150, "validation": 5}, shards=2)
    index = tmp_path / "index" / "train-00000-of-00002.index"
    index.unlink()
    if whole_folder:
        shutil.rmtree(index.parent)
    assert main(["inspect", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"tpudata: error: {index} is missing, the index of a shard.")


def test_shows_all_records_if_asked_for_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_digits(tmp_path, {"train": 5})
    for count in ("9" * 23, "9" * 5000):  # Python converts at most 4,300 digits to an int.
        assert len(_json(tmp_path, capsys, f"--records={count}")["splits"]["train"]["examples"]) == 5


def test_names_damaged_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_digits(tmp_path, {"train": 5})
    (tmp_path / "labels.txt").write_bytes(b"\xff\n")
    assert main(["inspect", str(tmp_path)]) == 1
    assert f"{tmp_path / 'labels.txt'} at byte 0: the class names are not UTF-8" in capsys.readouterr().err
    manifest = tmp_path / "manifest.json"
    value = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**value, "rejected": 7}))
    assert main(["inspect", str(tmp_path)]) == 1
    assert f"{manifest}: not a manifest: rejected is 7, not an object" in capsys.readouterr().err


def test_names_the_writer_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_digits(tmp_path, {"train": 5})
    manifest = dataclasses.replace(open_dataset(str(tmp_path)).manifest, created_by="tpudata 0.1.0")
    write_metadata(str(tmp_path), manifest, [str(digit) for digit in range(10)])
    assert main(["inspect", str(tmp_path)]) == 0
    assert (
        capsys.readouterr().out.splitlines()[0].endswith("(layout imagenet, format version 1, made by tpudata 0.1.0)")
    )


def test_names_a_truncated_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_digits(tmp_path, {"train": 5})
    shard = tmp_path / "train-00000-of-00001.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-1])
    size = shard.stat().st_size
    assert main(["inspect", str(tmp_path)]) == 1
    assert f"the file has {size} bytes, the manifest says {size + 1}" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_shows_a_dataset_whose_damaged_shard_is_in_quarantine(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(
        str(tmp_path),
        {"train": [{"x": value} for value in range(6)]},
        [Feature("x", "int64", "int64")],
        layout="",
        shards=2,
    )
    shard = tmp_path / "train-00000-of-00002.tfrecord"
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-1])
    else:
        shard.unlink()
    assert main(["verify", str(tmp_path), "--quarantine"]) == 0
    capsys.readouterr()
    kept = {"truncated": [0, 1, 3, 4, 5], "missing": [3, 4, 5]}[damage]
    examples = _json(tmp_path, capsys, "--records=9")["splits"]["train"]["examples"]
    assert [example["x"] for example in examples] == kept


def test_names_a_damaged_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_digits(tmp_path, {"train": 5})
    shard = tmp_path / "train-00000-of-00001.tfrecord"
    data = bytearray(shard.read_bytes())
    data[40] ^= 1
    shard.write_bytes(data)
    assert main(["inspect", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{shard} at byte 0: the checksum" in shown.err


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file of this system always fails")
def test_reports_a_failing_disk_in_one_line(
    digits_dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = LocalStorage.open
    # Reading its first page fails with EIO.
    monkeypatch.setattr(LocalStorage, "open", lambda self, _: opened(self, "/proc/self/mem"))
    assert main(["inspect", str(digits_dataset)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tpudata: error: /proc/self/mem could not be read: Input/output error")


def test_lists_and_counts_annotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box = (0.0, 0.0, 0.5, 0.5)
    records = [record_of([box] * count, [1] * (count - 1) + [0] * (count > 0)) for count in (3, 0, 2)]
    records[1][CAPTION] = ["one"] * 7
    # Only the first 100 records of a split are counted.
    splits = {"train": records, "test": [record_of([box], [1])] * 101}
    path = write_dataset(str(tmp_path), splits, OBJECTS, layout="imagenet", shards=1, classes=2)
    shown = _json(Path(path), capsys)
    assert shown["annotations"] == {
        "image/object": ["boxes", "classes", "masks", "3 keypoints"],
        "image/caption": ["captions"],
        "image/segmentation/class/encoded": ["label map"],
    }
    assert shown["splits"]["train"]["annotations"] == {
        "records": 3,
        "objects": 5,
        "most_objects": 3,
        "without_objects": 1,
        "classes": {"class 1": 3, "class 0": 2},
        "captions": 11,
        "most_captions": 7,
    }
    assert shown["splits"]["test"]["annotations"]["objects"] == 100
    assert main(["inspect", path, "--records=0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("annotations:")
    assert [line.split(maxsplit=1) for line in lines[first + 1 : first + 4]] == [
        ["image/object", "boxes, classes, masks, 3 keypoints"],
        ["image/caption", "captions"],
        ["image/segmentation/class/encoded", "label map"],
    ]
    assert lines[first + 4 : first + 6] == [
        "  test, first 100 of 101 records: 100 objects, 1.0 a record, at most 1; 0 without objects; classes: class 1 100;"
        " 200 captions, 2.0 a record, at most 2",
        "  train, all 3 records: 5 objects, 1.7 a record, at most 3; 1 without objects; classes: class 1 3, class 0 2;"
        " 11 captions, 3.7 a record, at most 7",
    ]


def test_shows_numbers_for_unnamed_object_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = [
        Feature("objects/bbox", "float", "float32", (None, 4)),
        Feature("objects/label", "int64", "int64", (None,)),
    ]
    record = {"objects/bbox": [0.0, 0.0, 1.0, 1.0], "objects/label": [3]}
    path = write_dataset(str(tmp_path), {"train": [record]}, features, layout="examples", shards=1)
    shown = _json(Path(path), capsys)
    assert shown["annotations"] == {"objects": ["boxes", "classes"]}
    assert shown["splits"]["train"]["annotations"]["classes"] == {"3": 1}


def test_shows_no_annotations_if_there_are_none(digits_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _json(digits_dataset, capsys)
    assert shown["annotations"] == {}
    assert "annotations" not in shown["splits"]["train"]
    assert main(["inspect", str(digits_dataset)]) == 0
    assert "annotations" not in capsys.readouterr().out

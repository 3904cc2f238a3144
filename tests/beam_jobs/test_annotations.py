"""Conversions of pictures with annotations, in the layouts in which datasets come."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.images import run
from tests.beam_jobs.images import encode, exif, picture
from tests.beam_jobs.miniatures import (
    BOX,
    FRACTIONS,
    NAMES,
    coco,
    coco_captions,
    open_images_rows,
    voc_text,
    write_pictures,
    yolo_text,
)
from tests.helpers.pictures import digests
from tpudata import Images, as_numpy, make_input_fn
from tpudata.cli import main
from tpudata.errors import BadRecordError, OutputError, SourceError, TpudataError, UsageError
from tpudata.format import open_dataset, verify

EDGES = [f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax")]


def make_coco(root: Path) -> list[str]:
    write_pictures(root / "images")
    (root / "instances.json").write_text(json.dumps(coco()))
    return ["--input", str(root / "images"), "--annotations", str(root / "instances.json")]


def make_captions(root: Path) -> list[str]:
    write_pictures(root / "images")
    (root / "captions.json").write_text(json.dumps(coco_captions()))
    return ["--input", str(root / "images"), "--annotations", str(root / "captions.json")]


def make_voc(root: Path) -> list[str]:
    write_pictures(root / "JPEGImages")
    (root / "Annotations").mkdir()
    for name in NAMES:
        (root / "Annotations" / f"{name}.xml").write_text(voc_text(name))
    return ["--input", str(root / "JPEGImages"), "--annotations", str(root / "Annotations")]


def make_yolo(root: Path) -> list[str]:
    write_pictures(root / "images")
    (root / "labels").mkdir()
    for name in NAMES:
        (root / "labels" / f"{name}.txt").write_text(yolo_text())
    (root / "labels" / "classes.txt").write_text("dog\ncat\n")
    return ["--input", str(root / "images"), "--annotations", str(root / "labels")]


def make_image_folder(root: Path) -> list[str]:
    write_pictures(root)
    ymin, xmin, ymax, xmax = BOX
    with (root / "metadata.jsonl").open("w") as file:
        for name in NAMES:
            objects = {"bbox": [[xmin, ymin, xmax - xmin, ymax - ymin]], "categories": ["cat"]}
            file.write(json.dumps({"file_name": f"{name}.jpg", "objects": objects}) + "\n")
    return ["--input", str(root), "--annotations", str(root / "metadata.jsonl")]


def make_open_images(root: Path) -> list[str]:
    write_pictures(root / "images")
    with (root / "boxes.csv").open("w", newline="") as file:
        csv.writer(file).writerows(open_images_rows())
    return ["--input", str(root / "images"), "--annotations", str(root / "boxes.csv")]


BOXES: dict[str, Callable[[Path], list[str]]] = {
    "coco": make_coco,
    "voc": make_voc,
    "yolo": make_yolo,
    "image folder": make_image_folder,
    "open images": make_open_images,
}


def records(dataset: Path) -> dict[str, dict[str, Any]]:
    """The decoded records of a dataset by the names of their files."""
    found = open_dataset(str(dataset)).examples("train")
    return {bytes(record["image/filename"][0]).decode(): record for record in found}  # type: ignore[arg-type]


@pytest.mark.parametrize("form", BOXES)
def test_stores_boxes_as_fractions_of_the_sides(tmp_path: Path, form: str) -> None:
    flags = BOXES[form](tmp_path / "in")
    assert run([*flags, "--output", str(tmp_path / "out")]) == 0
    found = records(tmp_path / "out")
    assert sorted(found) == [f"{name}.jpg" for name in NAMES]
    for number, name in enumerate(NAMES):
        record = found[f"{name}.jpg"]
        has_box = form != "coco" or number % 2 == 0
        np.testing.assert_allclose([record[edge] for edge in EDGES], [[value] * has_box for value in FRACTIONS], 1e-6)
        names = [text.decode() for text in record["image/object/class/text"]]
        assert names == ([("dog", "cat")[number // 2 % 2]] if form == "coco" else ["cat"])[: int(has_box)]
    manifest = open_dataset(str(tmp_path / "out")).manifest
    classes = Path(tmp_path, "out", "labels.txt").read_text().split()
    # In the order of the ids of COCO's categories, and of YOLO's list.
    assert classes == {"coco": ["cat", "dog"], "yolo": ["dog", "cat"]}.get(form, ["cat"])
    assert manifest.feature("image/object/class/label").num_classes == len(classes)
    assert main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("below", ["", "images/"])
def test_takes_splits_from_folders_inside_images(tmp_path: Path, below: str) -> None:
    for split, name in (("train", "a"), ("val", "b")):
        write_pictures(tmp_path / "in" / "images" / split, [name])
        (tmp_path / "in" / "labels" / split).mkdir(parents=True)
        (tmp_path / "in" / "labels" / split / f"{name}.txt").write_text(yolo_text())
    (tmp_path / "in" / "data.yaml").write_text("names: [dog, cat]\n")
    annotations = ["--annotations", str(tmp_path / "in" / "labels")]
    folder = str(tmp_path / "in" / below)
    assert run(["--input", folder, *annotations, "--output", str(tmp_path / "out")]) == 0
    before = "" if below else "images/"
    assert keys_by_split(tmp_path / "out") == {"train": [f"{before}train/a.jpg"], "validation": [f"{before}val/b.jpg"]}


def test_rejects_a_table_without_rows(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", ["a"])
    (tmp_path / "boxes.csv").write_text("filename,class,xmin,ymin,xmax,ymax\n")
    with pytest.raises(SourceError, match="no annotation of a picture"):
        run(
            [
                "--input",
                str(tmp_path / "in"),
                "--annotations",
                str(tmp_path / "boxes.csv"),
                "--output",
                str(tmp_path / "o"),
            ]
        )


def write_lists(root: Path, **lists: list[str]) -> None:
    folder = root / "ImageSets" / "Main"
    folder.mkdir(parents=True, exist_ok=True)
    for name, names in lists.items():
        (folder / f"{name}.txt").write_text("".join(f"{one}\n" for one in names))


def keys_by_split(dataset: Path) -> dict[str, list[str]]:
    opened = open_dataset(str(dataset))
    return {
        split: sorted(bytes(row["image/filename"][0]).decode() for row in opened.examples(split))  # type: ignore[arg-type]
        for split in opened.manifest.splits
    }


def test_voc_takes_splits_from_its_lists(tmp_path: Path) -> None:
    make_voc(tmp_path / "in")
    write_lists(tmp_path / "in", train=NAMES[:4], val=NAMES[4:6], trainval=NAMES[:6], cat_train=NAMES[6:])
    (tmp_path / "in" / "SegmentationClass").mkdir()
    (tmp_path / "in" / "SegmentationClass" / "p00.png").write_bytes(encode(picture(), "PNG"))
    # In no list, with a class that no listed picture has, or without annotation.
    odd = tmp_path / "in" / "Annotations" / "p11.xml"
    odd.write_text(odd.read_text().replace(">cat<", ">person<"))
    write_pictures(tmp_path / "in" / "JPEGImages", ["more"])
    expected = {"train": [f"{name}.jpg" for name in NAMES[:4]], "validation": ["p04.jpg", "p05.jpg"]}
    for number, pictures in enumerate(("in/JPEGImages", "in")):
        flags = ["--input", str(tmp_path / pictures), "--annotations", str(tmp_path / "in")]
        assert run([*flags, "--output", str(tmp_path / f"out{number}")]) == 0
        found = keys_by_split(tmp_path / f"out{number}")
        assert {split: [key.rpartition("/")[2] for key in keys] for split, keys in found.items()} == expected
        assert Path(tmp_path, f"out{number}", "labels.txt").read_text().split() == ["cat"]
        assert open_dataset(str(tmp_path / f"out{number}")).manifest.source.ignored_files == 7
    with pytest.raises(UsageError, match=r"--split: .*in has lists of splits already \(train, validation\)"):
        run([*flags, "--output", str(tmp_path / "out"), "--split=train=0.5,test=0.5"])
    # The folder of annotations alone has none.
    flags = ["--input", str(tmp_path / "in" / "JPEGImages"), "--annotations", str(tmp_path / "in" / "Annotations")]
    assert run([*flags, "--output", str(tmp_path / "all"), "--unannotated=skip"]) == 0
    assert {split: len(keys) for split, keys in keys_by_split(tmp_path / "all").items()} == {"train": 12}


def test_voc_without_a_train_list_takes_trainval(tmp_path: Path) -> None:
    make_voc(tmp_path / "in")
    write_lists(tmp_path / "in", trainval=NAMES[:8], test=NAMES[8:])
    flags = ["--input", str(tmp_path / "in" / "JPEGImages"), "--annotations", str(tmp_path / "in")]
    assert run([*flags, "--output", str(tmp_path / "out")]) == 0
    assert {split: len(keys) for split, keys in keys_by_split(tmp_path / "out").items()} == {"test": 4, "train": 8}
    write_lists(tmp_path / "in", test=NAMES[7:])
    with pytest.raises(SourceError, match=r"test\.txt line 1: 'p07' is in .*trainval\.txt, too"):
        run([*flags, "--output", str(tmp_path / "twice")])


def test_stores_captions_and_masks(tmp_path: Path) -> None:
    assert run([*make_captions(tmp_path / "a"), "--output", str(tmp_path / "captions")]) == 0
    record = records(tmp_path / "captions")["p03.jpg"]
    assert record["image/caption"] == [b"p03 0", b"p03 1"]
    assert not Path(tmp_path, "captions", "labels.txt").exists()
    assert run([*make_coco(tmp_path / "b"), "--output", str(tmp_path / "boxes")]) == 0
    (mask,) = records(tmp_path / "boxes")["p04.jpg"]["image/object/mask"]
    expected = np.zeros((24, 40, 1), np.uint8)
    expected[6:18, 10:30] = 1
    np.testing.assert_array_equal(tf.io.decode_png(mask).numpy(), expected)


def test_input_fn_feeds_keypoints_next_to_boxes(tmp_path: Path) -> None:
    flags = make_coco(tmp_path / "in")
    file = coco()
    for row in file["annotations"]:
        row |= {"keypoints": [10, 6, 2, 30, 18, 1, 0, 0, 0], "num_keypoints": 2}
        del row["segmentation"]
    (tmp_path / "in" / "instances.json").write_text(json.dumps(file))
    assert run([*flags, "--output", str(tmp_path / "out")]) == 0
    input_fn = make_input_fn(
        str(tmp_path / "out"),
        "train",
        training=False,
        images=Images(size=(24, 40)),
        pad={"image/object/*": 4},
        extra_features=("image/filename",),
    )
    (batch,) = as_numpy(input_fn, 12)
    row = batch["image/filename"].tolist().index(b"p02.jpg")
    assert batch["image/object/count"][row] == 1
    np.testing.assert_allclose(batch["image/object/keypoint/x"][row, 0], [10 / 40, 30 / 40, 0])
    np.testing.assert_allclose(batch["image/object/keypoint/y"][row, 0], [6 / 24, 18 / 24, 0])
    assert batch["image/object/keypoint/visibility"][row].tolist() == [[2, 1, 0], *[[0, 0, 0]] * 3]


def test_stores_label_maps_unchanged(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images")
    (tmp_path / "maps").mkdir()
    maps = {name: np.full((24, 40), number, np.uint8) for number, name in enumerate(NAMES)}
    for name, pixels in maps.items():
        (tmp_path / "maps" / f"{name}.png").write_bytes(encode(pixels, "PNG"))
    flags = ["--input", str(tmp_path / "images"), "--masks", str(tmp_path / "maps")]
    assert run([*flags, "--output", str(tmp_path / "out")]) == 0
    for name, record in records(tmp_path / "out").items():
        (stored,) = record["image/segmentation/class/encoded"]
        assert stored == (tmp_path / "maps" / name.replace("jpg", "png")).read_bytes()
    feature = open_dataset(str(tmp_path / "out")).manifest.feature("image/segmentation/class/encoded")
    assert feature.is_label_map


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_label_maps_keep_the_bit_depth_of_their_files(tmp_path: Path, dtype: type[np.unsignedinteger[Any]]) -> None:
    write_pictures(tmp_path / "images", NAMES[:2])
    (tmp_path / "maps").mkdir()
    for name, value in zip(NAMES, (np.iinfo(dtype).max, 5), strict=False):
        (tmp_path / "maps" / f"{name}.png").write_bytes(encode(np.full((24, 40), value, dtype), "PNG"))
    flags = ["--input", str(tmp_path / "images"), "--masks", str(tmp_path / "maps")]
    assert run([*flags, "--output", str(tmp_path / "out")]) == 0
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert manifest.feature("image/segmentation/class/encoded").dtype == np.dtype(dtype).name
    assert not list(verify(str(tmp_path / "out")))


def test_does_not_list_label_maps_in_the_input_as_pictures(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pets" / "images", ["Cat_1"])
    trimaps = tmp_path / "pets" / "annotations" / "trimaps"
    trimaps.mkdir(parents=True)
    (trimaps / "Cat_1.png").write_bytes(encode(np.ones((24, 40), np.uint8), "PNG"))
    (trimaps.parent / "list.txt").write_text("Cat_1 1 1 1\n")
    for number, place in enumerate((trimaps.parent, trimaps.parent / "list.txt", tmp_path / "pets")):
        flags = ["--input", str(tmp_path / "pets"), "--annotations", str(place)]
        assert run([*flags, "--output", str(tmp_path / f"pets{number}")]) == 0
        assert open_dataset(str(tmp_path / f"pets{number}")).manifest.records == 1
    write_pictures(tmp_path / "coco" / "val", ["a"])
    (tmp_path / "coco" / "panoptic").mkdir()
    (tmp_path / "coco" / "panoptic" / "a.png").write_bytes(encode(np.full((24, 40, 3), 1, np.uint8), "PNG"))
    segment = {"id": 0x10101, "category_id": 1, "bbox": [0, 0, 40, 24]}
    row = {"image_id": 1, "file_name": "a.png", "segments_info": [segment]}
    file = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [row], "categories": [{"id": 1, "name": "x"}]}
    (tmp_path / "coco" / "panoptic.json").write_text(json.dumps(file))
    flags = ["--input", str(tmp_path / "coco"), "--annotations", str(tmp_path / "coco" / "panoptic.json")]
    assert run([*flags, "--output", str(tmp_path / "coco out")]) == 0
    assert open_dataset(str(tmp_path / "coco out")).manifest.records == 1


def test_prefers_a_picture_whose_whole_path_matches(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", ["a", "b"])
    write_pictures(tmp_path / "in" / "more", ["a"])
    (tmp_path / "in" / "b.jpg").rename(tmp_path / "in" / "b.JPG")
    rows = [{"file_name": name, "text": name} for name in ("a.jpg", "more/a.jpg", "b.jpg")]
    (tmp_path / "in" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flags = ["--input", str(tmp_path / "in"), "--annotations", str(tmp_path / "in" / "metadata.jsonl")]
    assert run([*flags, "--output", str(tmp_path / "out"), "--no-shuffle"]) == 0
    texts = [record["image/caption"] for record in open_dataset(str(tmp_path / "out")).examples("train")]
    assert texts == [[b"a.jpg"], [b"more/a.jpg"], [b"b.jpg"]]


def test_boxes_turn_and_shrink_with_their_picture(tmp_path: Path) -> None:
    flags = make_coco(tmp_path / "in")
    turned = tmp_path / "in" / "images" / "p00.jpg"
    # Viewers turn it by a quarter, clockwise.
    turned.write_bytes(encode(picture(), "JPEG", exif=exif(6)))
    assert run([*flags, "--output", str(tmp_path / "out"), "--resize-shorter=12"]) == 0
    record = records(tmp_path / "out")["p00.jpg"]
    assert (record["image/height"], record["image/width"]) == ([20], [12])
    ymin, xmin, ymax, xmax = FRACTIONS
    np.testing.assert_allclose([record[edge][0] for edge in EDGES], [xmin, 1 - ymax, xmax, 1 - ymin], 1e-6)


# tests/beam_jobs/contract/test_forms.py resumes other forms, and test_images.py has two workers.
@pytest.mark.matrix
def test_writes_the_same_bytes_with_two_workers_and_after_a_resume(tmp_path: Path) -> None:
    flags = [*make_coco(tmp_path / "in"), "--shard-size=5kB", "--split=train=0.7,test=0.3"]
    assert run([*flags, "--output", str(tmp_path / "one")]) == 0
    assert run([*flags, "--output", str(tmp_path / "two"), "--workers=2"]) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    shutil.copytree(tmp_path / "one", tmp_path / "resumed")
    (tmp_path / "resumed" / "manifest.json").unlink()
    next((tmp_path / "resumed").glob("train-00001-*")).unlink()
    assert run([*flags, "--output", str(tmp_path / "resumed"), "--resume"]) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "resumed")


def test_append_keeps_the_class_numbers_of_the_dataset(tmp_path: Path) -> None:
    flags = make_coco(tmp_path / "in")
    output = ["--output", str(tmp_path / "out")]
    assert run([*flags, *output]) == 0
    more = [*NAMES, "q00", "q01", "q02"]
    write_pictures(tmp_path / "in" / "images", more)
    (tmp_path / "in" / "instances.json").write_text(json.dumps(coco(more)))
    assert run([*flags, *output, "--append"]) == 0
    found = records(tmp_path / "out")
    assert len(found) == 15
    assert found["q00.jpg"]["image/object/class/label"] == found["p00.jpg"]["image/object/class/label"]
    (tmp_path / "in" / "instances.json").write_text(json.dumps(coco(more)).replace('"area": 200.0', '"area": 201.0'))
    with pytest.raises(SourceError, match=r"has a record of 'p00\.jpg' already"):
        run([*flags, *output, "--append"])


def make_metadata(root: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Pictures p00.jpg and so on, each with a row of Hugging Face's metadata.jsonl."""
    write_pictures(root, NAMES[: len(rows)])
    lines = [json.dumps({"file_name": f"{name}.jpg"} | row) for name, row in zip(NAMES, rows, strict=False)]
    (root / "metadata.jsonl").write_text("\n".join(lines))
    return ["--input", str(root), "--annotations", str(root)]


def one_box(category: Any) -> dict[str, Any]:
    ymin, xmin, ymax, xmax = BOX
    return {"bbox": [[xmin, ymin, xmax - xmin, ymax - ymin]], "categories": [category]}


def test_append_rejects_object_classes_that_would_renumber_others(tmp_path: Path) -> None:
    rows = [{"label": "x", "objects": one_box("n")}, {"label": "y", "objects": one_box("p")}]
    output = ["--output", str(tmp_path / "out")]
    assert run([*make_metadata(tmp_path / "in", rows), *output]) == 0
    flags = make_metadata(tmp_path / "in", [*rows, {"label": "aa", "objects": one_box("aa")}])
    with pytest.raises(OutputError, match=r"labels\.txt lists only those of pictures"):
        run([*flags, *output, "--append"])
    assert len(records(tmp_path / "out")) == 2


def test_labels_file_numbers_the_classes(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("dog\nbird\ncat\n")
    flags = ["--labels", str(tmp_path / "names.txt")]
    for name, categories in (("names", ["cat", "dog"]), ("numbers", [2, 0])):
        rows = [{"objects": one_box(category)} for category in categories]
        assert run([*make_metadata(tmp_path / name, rows), *flags, "--output", str(tmp_path / f"{name} out")]) == 0
        found = records(tmp_path / f"{name} out")
        assert [found[f"{key}.jpg"]["image/object/class/label"] for key in NAMES[:2]] == [[2], [0]]
        assert [found[f"{key}.jpg"]["image/object/class/text"] for key in NAMES[:2]] == [[b"cat"], [b"dog"]]
    other = make_metadata(tmp_path / "other", [{"objects": one_box("horse")}])
    with pytest.raises(BadRecordError, match="unknown label: 'horse'"):
        run([*other, *flags, "--output", str(tmp_path / "no")])


def test_rejects_a_large_class_number_without_a_labels_file(tmp_path: Path) -> None:
    rows = [{"objects": one_box(0)}, {"objects": one_box(20_240_131)}]
    flags = [*make_metadata(tmp_path / "in", rows), "--output", str(tmp_path / "out")]
    with pytest.raises(SourceError, match=r"Correct it, or pass --labels FILE"):
        run(flags)
    assert run([*make_metadata(tmp_path / "long", [{"objects": one_box("1" * 5000)}]), *flags[4:]]) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"categories": []}, "category"),
        ({"images": [*coco()["images"], {"id": 1, "file_name": "a.jpg"}]}, "'a.jpg': no such picture in the input"),
        ({"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": []}, "no annotation of a picture in"),
    ],
)
def test_rejects_damaged_annotations(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    flags = make_coco(tmp_path / "in")
    (tmp_path / "in" / "instances.json").write_text(json.dumps(coco() | changed))
    with pytest.raises(TpudataError, match=message):
        run([*flags, "--output", str(tmp_path / "out")])


def test_rejects_a_box_outside_of_its_picture(tmp_path: Path) -> None:
    flags = make_coco(tmp_path / "in")
    file = tmp_path / "in" / "instances.json"
    file.write_text(file.read_text().replace("[10.0, 6.0, 20.0, 12.0]", "[10.0, 6.0, 90.0, 12.0]", 1))
    with pytest.raises(BadRecordError, match=r"'p00\.jpg'"):
        run([*flags, "--output", str(tmp_path / "out")])
    skip = ["--on-bad-record=skip", "--max-bad-records=1"]
    assert run([*flags, "--output", str(tmp_path / "skipped"), *skip]) == 0
    assert len(records(tmp_path / "skipped")) == 11


def test_unannotated_flag_decides_about_pictures_without_annotations(tmp_path: Path) -> None:
    flags = make_coco(tmp_path / "in")
    write_pictures(tmp_path / "in" / "images", ["more"])
    with pytest.raises(BadRecordError, match=r"no annotation; pass --unannotated=empty"):
        run([*flags, "--output", str(tmp_path / "fail")])
    assert run([*flags, "--output", str(tmp_path / "empty"), "--unannotated=empty"]) == 0
    assert records(tmp_path / "empty")["more.jpg"]["image/object/bbox/xmin"] == []
    assert run([*flags, "--output", str(tmp_path / "skip"), "--unannotated=skip"]) == 0
    assert len(records(tmp_path / "skip")) == 12
    assert open_dataset(str(tmp_path / "skip")).manifest.source.ignored_files == 1


@pytest.mark.parametrize("form", ["coco", "voc", "yolo", "open images", "image folder"])
def test_rejects_a_picture_with_a_bad_annotation_once(tmp_path: Path, form: str) -> None:
    flags = BOXES[form](tmp_path / "in")
    annotations = Path(flags[-1])
    damaged, old, new = {
        "coco": (annotations, '"category_id": 9', '"category_id": 77'),
        "voc": (annotations / "p00.xml", "</annotation>", ""),
        "yolo": (annotations / "p00.txt", "1 ", "7 "),
        "open images": (annotations, "p00,x,cat,1,0.25", "p00,x,cat,1,left"),
        "image folder": (annotations, "[[10.0,", "[[null,"),
    }[form]
    text = damaged.read_text()
    assert old in text
    damaged.write_text(text.replace(old, new, 1))
    more = ["--unannotated=empty", "--on-bad-record=skip", "--max-bad-records=1"]
    assert run([*flags, "--output", str(tmp_path / "out"), *more]) == 0
    assert sorted(records(tmp_path / "out")) == [f"{name}.jpg" for name in NAMES[1:]]
    assert open_dataset(str(tmp_path / "out")).manifest.rejected == {"bad annotation": 1}
    assert not list(verify(str(tmp_path / "out")))


def test_rejects_pictures_with_an_ambiguous_annotation(tmp_path: Path) -> None:
    flags = make_coco(tmp_path / "in")
    for folder in ("a", "b"):
        write_pictures(tmp_path / "in" / "images" / folder, ["more"])
    (tmp_path / "in" / "instances.json").write_text(json.dumps(coco([*NAMES, "more"])))
    with pytest.raises(BadRecordError, match=r"its name matches several pictures, a/more\.jpg and b/more\.jpg"):
        run([*flags, "--output", str(tmp_path / "fail")])
    more = ["--unannotated=empty", "--on-bad-record=skip", "--max-bad-records=1"]
    assert run([*flags, "--output", str(tmp_path / "out"), *more]) == 0
    assert sorted(records(tmp_path / "out")) == [f"{name}.jpg" for name in NAMES]


def test_rejects_two_annotations_for_one_picture(tmp_path: Path) -> None:
    flags = make_voc(tmp_path / "in")
    shutil.copyfile(tmp_path / "in" / "Annotations" / "p03.xml", tmp_path / "in" / "Annotations" / "zz.xml")
    with pytest.raises(SourceError, match=r"p03\.xml and .*zz\.xml: two annotations for the picture 'p03\.jpg'"):
        run([*flags, "--output", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--masks=maps"], "--annotations and --masks: choose one"),
        (["--unlabelled"], "--annotations and --unlabelled"),
        (["--layout=raw"], "--layout raw has no place for annotations"),
        (["--label-column=x"], "--annotations and --label-column"),
    ],
)
def test_rejects_flags_that_do_not_fit_annotations(tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run([*make_coco(tmp_path / "in"), "--output", str(tmp_path / "out"), *flags])


def test_rejects_the_unannotated_flag_without_annotations(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in" / "cat")
    with pytest.raises(UsageError, match="--unannotated requires --annotations, --masks or --targets"):
        run(["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--unannotated=skip"])


# TFDS 4.9 reads protobuf descriptors in a way that protobuf 6 warns of.
@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
def test_tfds_reads_boxes_and_the_names_of_their_classes(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    assert run([*make_coco(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 0
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    assert builder.info.features["image/object/class/label"].feature.names == ["cat", "dog"]
    read = {row["image/filename"].decode(): row for row in builder.as_dataset(split="train").as_numpy_iterator()}
    np.testing.assert_allclose([read["p02.jpg"][edge] for edge in EDGES], [[value] for value in FRACTIONS], 1e-6)
    assert read["p02.jpg"]["image/object/class/label"].tolist() == [0]
    assert read["p01.jpg"]["image/object/class/label"].tolist() == []

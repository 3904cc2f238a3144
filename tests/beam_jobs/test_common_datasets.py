"""Every command of docs/convert/datasets.md, as it stands there, on a few pictures in the layout of the dataset."""

from __future__ import annotations

import csv
import fnmatch
import gzip
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from beam_jobs.images import run
from tests.beam_jobs.arrays import write_cifar10, write_cifar100, write_keras_mnist, write_medmnist, write_svhn
from tests.beam_jobs.images import encode, picture
from tests.beam_jobs.miniatures import (
    BOX,
    coco,
    coco_captions,
    open_images_rows,
    voc_text,
    write_pictures,
    yolo_text,
)
from tests.beam_jobs.sources.inputs import tar_bytes
from tests.beam_jobs.sources.test_idx import idx_bytes
from tests.helpers.markdown import ROOT
from tests.helpers.stores import serve_gs
from tpudata.format import open_dataset, verify

PAGE = "docs/convert/datasets.md"
JPEG, MAP = encode(picture(), "JPEG"), encode(np.ones((24, 40), np.uint8), "PNG")
COCO_NAMES = [f"{number:012d}" for number in (9, 25, 30, 139)]
# Features of every record, and those of classes, which the page calls classes.
PLAIN = {f"image/{name}" for name in ("encoded", "format", "height", "width", "colorspace", "channels", "filename")}
CLASSES = {"image/class/label", "image/class/text"}


class Miniature(NamedTuple):
    """A dataset.

    Attributes:
        write: writes it into a folder.
        splits: number of records by split.
        classes: lines of labels.txt, or how they begin.
        rejected: bad records.
    """

    write: Callable[[Path], object]
    splits: dict[str, int]
    classes: tuple[str, ...] = ()
    rejected: int = 0


def write(path: Path, data: bytes | str | dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
    )


def write_csv(path: Path, rows: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def coco_file(name: str, content: dict[str, Any], split: str = "train2017") -> Callable[[Path], None]:
    def make(root: Path) -> None:
        write_pictures(root / "coco" / split, COCO_NAMES)
        write(root / "coco" / "annotations" / f"{name}_{split}.json", content)

    return make


def with_keypoints() -> dict[str, Any]:
    file = coco(COCO_NAMES)
    for row in file["annotations"]:
        row |= {"keypoints": [10, 6, 2, 30, 18, 1, 0, 0, 0], "num_keypoints": 2}
    return file


def panoptic(root: Path) -> None:
    names = ["000000000009", "000000000025"]
    write_pictures(root / "coco" / "train2017", names)
    rows = []
    for number, name in enumerate(names):
        segment = {"id": 0x10101, "category_id": 1, "bbox": [0, 0, 40, 24], "area": 960, "iscrowd": 0}
        rows.append({"image_id": number, "file_name": f"{name}.png", "segments_info": [segment]})
        png = encode(np.full((24, 40, 3), 1, np.uint8), "PNG")
        write(root / "coco" / "annotations" / "panoptic_train2017" / f"{name}.png", png)
    images = [{"id": number, "file_name": f"{name}.jpg"} for number, name in enumerate(names)]
    file = {"images": images, "annotations": rows, "categories": [{"id": 1, "name": "sky"}]}
    write(root / "coco" / "annotations" / "panoptic_train2017.json", file)


def voc(root: Path) -> None:
    folder = root / "VOCdevkit" / "VOC2012"
    names = [f"2007_{number:06d}" for number in (27, 32, 33, 39, 42, 61)]
    write_pictures(folder / "JPEGImages", names)
    for name in names:
        write(folder / "Annotations" / f"{name}.xml", voc_text(name))
    for split, part in (("train", names[:3]), ("val", names[3:5]), ("trainval", names[:5])):
        write(folder / "ImageSets" / "Main" / f"{split}.txt", "\n".join(part))
    write(folder / "ImageSets" / "Main" / "cat_train.txt", "".join(f"{name}  1\n" for name in names[:3]))
    for name in names[:2]:
        write(folder / "SegmentationClass" / f"{name}.png", MAP)


def open_images(root: Path) -> None:
    names = ["000002b66c9c498e", "000002b97e5471a0"]
    write_pictures(root / "openimages" / "train", names)
    write_csv(root / "openimages" / "oidv6-train-annotations-bbox.csv", open_images_rows(names, "/m/01yrx"))
    write_csv(root / "openimages" / "class-descriptions-boxable.csv", [["/m/01yrx", "Cat"], ["/m/0bt9lr", "Dog"]])


def yolo(root: Path) -> None:
    for split, name in (("train", "0001"), ("valid", "0002"), ("train", "0003")):
        write(root / "yolo" / split / "images" / f"{name}.jpg", JPEG)
        if name != "0003":
            write(root / "yolo" / split / "labels" / f"{name}.txt", yolo_text())
    write(root / "yolo" / "data.yaml", "names: [dog, cat]\nnc: 2\n")


POINTS = [f"{point}_{axis}" for point in ("lefteye", "righteye", "nose", "leftmouth", "rightmouth") for axis in "xy"]
ATTRIBUTES = ["5_o_Clock_Shadow", "Smiling", "Young"]


def celeba(root: Path) -> None:
    write_pictures(root / "celeba" / "img_align_celeba", ["000001", "000002"])
    rows = {"attr": (ATTRIBUTES, [-1, 1, 1]), "landmarks_align": (POINTS, [12, 8, 28, 8, 20, 12, 14, 18, 26, 18])}
    for name, (columns, values) in rows.items():
        lines = [f"{number:06d}.jpg  {' '.join(map(str, values))}" for number in (1, 2)]
        write(root / "celeba" / "Anno" / f"list_{name}_celeba.txt", "\n".join(["2", " ".join(columns), *lines]) + "\n")
    write(root / "celeba" / "Eval" / "list_eval_partition.txt", "000001.jpg 0\n000002.jpg 2\n")


def celeba_csv(root: Path) -> None:
    folder = root / "celeba-dataset"
    write_pictures(folder / "img_align_celeba" / "img_align_celeba", ["000001", "000002"])
    rows = {"attr": (ATTRIBUTES, [-1, 1, 1]), "landmarks_align": (POINTS, [12, 8, 28, 8, 20, 12, 14, 18, 26, 18])}
    for name, (columns, values) in rows.items():
        write_csv(
            folder / f"list_{name}_celeba.csv",
            [["image_id", *columns], *([f"{number:06d}.jpg", *values] for number in (1, 2))],
        )
    write_csv(
        folder / "list_bbox_celeba.csv", [["image_id", "x_1", "y_1", "width", "height"], ["000001.jpg", 1, 1, 900, 900]]
    )
    write_csv(folder / "list_eval_partition.csv", [["image_id", "partition"], ["000001.jpg", 0], ["000002.jpg", 1]])


def flickr8k(root: Path) -> None:
    names = ["1000268201_693b08cb0e", "1001773457_577c3a7d70"]
    write_pictures(root / "Flicker8k_Dataset", names)
    lines = [f"{name}.jpg#{number}\tA child , number {number} ." for name in names for number in range(5)]
    write(root / "Flickr8k.token.txt", "\n".join(lines))


def flickr30k(root: Path) -> None:
    names = ["1000092795", "10002456"]
    write_pictures(root / "flickr30k_images", names)
    lines = [f"{name}.jpg| {number}| Two men , number {number} ." for name in names for number in range(5)]
    write(root / "results.csv", "\n".join(["image_name| comment_number| comment", *lines]))


def image_folder(root: Path) -> None:
    folder = root / "imagefolder" / "train"
    write_pictures(folder, ["0001", "0002"], ".png")
    ymin, xmin, ymax, xmax = BOX
    objects = {"bbox": [[xmin, ymin, xmax - xmin, ymax - ymin]], "categories": ["cat"]}
    rows = [{"file_name": f"{name}.png", "text": "a roof", "objects": objects} for name in ("0001", "0002")]
    write(folder / "metadata.jsonl", "\n".join(map(json.dumps, rows)))


def csv_image_folder(root: Path) -> None:
    folder = root / "imagefolder" / "train"
    write_pictures(folder, ["0001", "0002"], ".png")
    rows = [[f"{name}.png", "a roof, red", "CC0"] for name in ("0001", "0002")]
    write_csv(folder / "metadata.csv", [["file_name", "text", "licence"], *rows])


def oxford(root: Path) -> None:
    names = ["Abyssinian_1", "beagle_1"]
    write_pictures(root / "oxford" / "images", names)
    write(root / "oxford" / "images" / "Abyssinian_100.mat", b"MATLAB")
    folder = root / "oxford" / "annotations"
    for name in names:
        write(folder / "trimaps" / f"{name}.png", MAP)
    rows = "#Image CLASS-ID SPECIES BREED ID\nAbyssinian_1 1 1 1\nbeagle_1 5 2 2\n"
    write(folder / "list.txt", rows)
    write(folder / "trainval.txt", "Abyssinian_1 1 1 1\n")
    write(folder / "test.txt", "beagle_1 5 2 2\n")
    write(folder / "xmls" / "Abyssinian_1.xml", voc_text("Abyssinian_1"))


def ade20k(root: Path) -> None:
    folder = root / "ADEChallengeData2016"
    for split, name in (("training", "ADE_train_00000001"), ("validation", "ADE_val_00000001")):
        write(folder / "images" / split / f"{name}.jpg", JPEG)
        write(folder / "annotations" / split / f"{name}.png", MAP)
    write(folder / "objectInfo150.txt", "Idx\tRatio\tTrain\tVal\tStuff\tName\n")


def cityscapes(root: Path) -> None:
    for split, city in (("train", "aachen"), ("val", "munster")):
        name = f"{split}/{city}/{city}_000000_000019"
        write(root / "cityscapes" / "leftImg8bit" / f"{name}_leftImg8bit.png", encode(picture(), "PNG"))
        write(root / "cityscapes" / "gtFine" / f"{name}_gtFine_labelIds.png", MAP)
        write(root / "cityscapes" / "gtFine" / f"{name}_gtFine_color.png", encode(picture(), "PNG"))
        write(root / "cityscapes" / "gtFine" / f"{name}_gtFine_polygons.json", "{}")


def tiny_imagenet(root: Path) -> None:
    for synset in ("n01443537", "n01629819"):
        write(root / "tiny-imagenet-200" / "train" / synset / "images" / f"{synset}_0.JPEG", JPEG)
        write(
            root / "tiny-imagenet-200" / "train" / synset / f"{synset}_boxes.txt", f"{synset}_0.JPEG\t0\t10\t30\t20\n"
        )


def tiny_imagenet_validation(root: Path) -> None:
    folder = root / "tiny-imagenet-200" / "val"
    write_pictures(folder / "images", ["val_0", "val_1"], ".JPEG")
    rows = ["val_0.JPEG\tn03444034\t0\t2\t34\t20", "val_1.JPEG\tn01443537\t0\t0\t39\t23"]
    write(folder / "val_annotations.txt", "\n".join(rows))


def mnist(root: Path) -> None:
    for prefix, count in (("train", 4), ("t10k", 2)):
        pixels, labels = np.zeros((count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8)
        write(root / "mnist" / f"{prefix}-images-idx3-ubyte.gz", gzip.compress(idx_bytes(pixels)))
        write(root / "mnist" / f"{prefix}-labels-idx1-ubyte.gz", gzip.compress(idx_bytes(labels)))


def cats_and_dogs(root: Path) -> None:
    for name in ("cat.0", "cat.1", "dog.0"):
        write(root / "dogs-vs-cats" / "train" / f"{name}.jpg", JPEG)


def utkface(root: Path) -> None:
    # The last one lacks a number.
    for name in ("25_0_2_20170104020210475", "100_1_0_20170112213500903", "61_1_20170109142408075"):
        write(root / "UTKFace" / f"{name}.jpg.chip.jpg", JPEG)


def parquet(root: Path) -> None:
    (root / "data").mkdir()
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    info = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
    for split in ("train", "test"):
        rows = {"image": [{"bytes": JPEG, "path": "a.jpg"}] * 2, "label": [1, 0]}
        table = pa.table(rows).replace_schema_metadata({"huggingface": json.dumps(info)})
        pq.write_table(table, root / "data" / f"{split}-00000-of-00001.parquet")


def parquet_with_objects(root: Path) -> None:
    (root / "cppe").mkdir()
    category = {"feature": {"names": ["Coverall", "Mask"], "_type": "ClassLabel"}, "_type": "List"}
    info = {"info": {"features": {"image": {"_type": "Image"}, "objects": {"category": category, "bbox": {}}}}}
    objects = {"id": [7, 8], "area": [4, 6], "bbox": [[1.0, 1.0, 2.0, 2.0], [0.0, 0.0, 3.0, 2.0]], "category": [1, 0]}
    for split in ("train", "test"):
        image = {"bytes": JPEG, "path": "a.jpg"}
        rows = {"image_id": [1], "image": [image], "width": [8], "height": [6], "objects": [objects]}
        table = pa.table(rows).replace_schema_metadata({"huggingface": json.dumps(info)})
        pq.write_table(table, root / "cppe" / f"{split}-00000-of-00001.parquet")


def webdataset(root: Path) -> None:
    members = [(f"{number:04d}.{end}", JPEG if end == "jpg" else b"3") for number in range(4) for end in ("jpg", "cls")]
    for split in ("train", "val"):
        write(root / "shards" / f"{split}-000.tar", tar_bytes(members))


def captioned_webdataset(root: Path) -> None:
    ends = {"jpg": JPEG, "txt": b"a roof", "json": b'{"url": "http://a/b", "original_width": 640, "exif": {"a": 1}}'}
    members = [(f"{number:09d}.{end}", data) for number in range(3) for end, data in ends.items()]
    write(root / "pairs" / "00000.tar", tar_bytes(members))


def segmented_webdataset(root: Path) -> None:
    ends = {"jpg": JPEG, "seg.png": MAP}
    members = [(f"{number:04d}.{end}", data) for number in range(3) for end, data in ends.items()]
    write(root / "scenes" / "train-000.tar", tar_bytes(members))


def pix2pix(root: Path) -> None:
    for split in ("train", "val"):
        write(root / "facades" / split / "1.jpg", JPEG)


def two_folders(root: Path) -> None:
    for folder in "AB":
        write(root / "pairs" / folder / "train" / "1.jpg", JPEG)


DIGITS = tuple("0123456789")
# By heading of the page.
MINIATURES = {
    "COCO instances": Miniature(coco_file("instances", coco(COCO_NAMES)), {"train": 4}, ("cat", "dog")),
    "COCO keypoints": Miniature(coco_file("person_keypoints", with_keypoints()), {"train": 4}, ("cat", "dog")),
    "COCO captions": Miniature(coco_file("captions", coco_captions(COCO_NAMES), "val2017"), {"validation": 4}),
    "COCO panoptic": Miniature(panoptic, {"train": 2}, ("sky",)),
    "Pascal VOC": Miniature(voc, {"train": 3, "validation": 2}, ("cat",)),
    "Open Images": Miniature(open_images, {"train": 2}, ("Cat", "Dog")),
    "YOLO": Miniature(yolo, {"train": 2, "validation": 1}, ("dog", "cat")),
    "CelebA": Miniature(celeba, {"train": 1, "test": 1}, tuple(ATTRIBUTES)),
    "CelebA as CSV": Miniature(celeba_csv, {"train": 1, "validation": 1}, tuple(ATTRIBUTES)),
    "Flickr8k": Miniature(flickr8k, {"train": 2}),
    "Flickr30k": Miniature(flickr30k, {"train": 2}),
    "Hugging Face image folder": Miniature(image_folder, {"train": 2}, ("cat",)),
    "Hugging Face image folder with CSV": Miniature(csv_image_folder, {"train": 2}),
    "VOC segmentation": Miniature(voc, {"train": 2}),
    "Oxford Pets": Miniature(oxford, {"train": 1, "test": 1}, ("Abyssinian", "beagle")),
    "ADE20K": Miniature(ade20k, {"train": 1, "validation": 1}),
    "Cityscapes": Miniature(cityscapes, {"train": 1, "validation": 1}),
    "Tiny ImageNet": Miniature(tiny_imagenet, {"train": 2}, ("n01443537", "n01629819")),
    "Tiny ImageNet validation": Miniature(tiny_imagenet_validation, {"validation": 2}, ("n01443537", "n03444034")),
    "CIFAR-10": Miniature(
        lambda root: write_cifar10(root / "cifar-10-batches-py"),
        {"train": 8, "test": 4},
        tuple(f"class {number}" for number in range(10)),
    ),
    "CIFAR-100": Miniature(
        lambda root: write_cifar100(root / "cifar-100-python"),
        {"train": 4, "test": 4},
        tuple(f"fine {number}" for number in range(100)),
    ),
    "SVHN": Miniature(lambda root: write_svhn(root / "svhn"), {"train": 4, "test": 4}, DIGITS),
    "MNIST": Miniature(mnist, {"train": 4, "test": 2}, DIGITS[:4]),
    "MNIST of Keras": Miniature(write_keras_mnist, {"train": 4, "test": 4}, DIGITS[:8]),
    "MedMNIST": Miniature(write_medmnist, {"train": 4, "validation": 4, "test": 4}, DIGITS[:4]),
    "Cats and dogs": Miniature(cats_and_dogs, {"train": 3}, ("cat", "dog")),
    "UTKFace": Miniature(utkface, {"train": 2}, ("0", "1"), rejected=1),
    "Hugging Face Parquet": Miniature(parquet, {"train": 2, "test": 2}, ("cat", "dog")),
    "Hugging Face Parquet with objects": Miniature(parquet_with_objects, {"train": 1, "test": 1}, ("Coverall", "Mask")),
    "WebDataset": Miniature(webdataset, {"train": 4, "validation": 4}, DIGITS[:4]),
    "WebDataset with captions": Miniature(captioned_webdataset, {"train": 3}),
    "WebDataset with label maps": Miniature(segmented_webdataset, {"train": 3}),
    "pix2pix": Miniature(pix2pix, {"train": 1, "validation": 1}),
    "Two folders": Miniature(two_folders, {"train": 1}),
}


def sections() -> dict[str, str]:
    """The texts of the page's datasets by heading."""
    parts = re.split(r"^### (.*)$", (ROOT / PAGE).read_text(), flags=re.MULTILINE)
    return {
        heading: re.split(r"^## ", text, flags=re.MULTILINE)[0]
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def command_of(heading: str) -> list[str]:
    """The arguments of the one command of a dataset."""
    (command,) = re.findall(r"^    tpudata convert images (.*)$", sections()[heading], flags=re.MULTILINE)
    return shlex.split(command)


def test_every_dataset_of_the_page_has_a_miniature() -> None:
    assert sections().keys() == MINIATURES.keys()


@pytest.mark.parametrize("heading", MINIATURES)
def test_a_command_of_the_page_converts_its_dataset(
    tmp_path: Path, heading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, miniature = sections()[heading], MINIATURES[heading]
    miniature.write(tmp_path)
    command = command_of(heading)
    layout = text[: text.index("    tpudata convert")]
    for name in re.findall(r"[\w-]+/[\w./-]*\w", layout.replace(":", " ")):
        assert (tmp_path / name).exists()
    monkeypatch.chdir(tmp_path)
    assert run(command) == 0
    dataset = open_dataset("out")
    manifest = dataset.manifest
    assert {split: len(list(dataset.examples(split))) for split in manifest.splits} == miniature.splits
    labels = tmp_path / "out" / "labels.txt"
    assert (tuple(labels.read_text().splitlines()) if labels.exists() else ()) == miniature.classes
    assert sum(manifest.rejected.values()) == miniature.rejected
    assert not list(verify("out"))
    # The page names every feature, and no other one.
    said = set(re.findall(r"`([a-z_]+(?:/[a-z_*]+)*)`", text.replace("\n", " ")))
    names = {feature.name for feature in manifest.features} - PLAIN
    if "Classes" in text:
        assert names >= CLASSES
        names -= CLASSES
    unsaid = {name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in said)}
    assert not unsaid
    assert not {one for one in said if "image/" in one and not fnmatch.filter(names, one)}


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "heading",
    [
        *("COCO panoptic", "Pascal VOC", "YOLO", "CIFAR-100", "SVHN", "MNIST of Keras", "Cats and dogs"),
        *("WebDataset with captions", "WebDataset with label maps", "Two folders"),
    ],
)
def test_a_dataset_on_gs_gives_the_same_records(tmp_path: Path, heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MINIATURES[heading].write(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = command_of(heading)
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert run(command) == 0
    with serve_gs(page=20) as store:
        for file in files:
            store.put("b", str(file), (tmp_path / file).read_bytes())
        placed = [f"gs://b/{part}" if (tmp_path / part).exists() and part != "out" else part for part in command]
        placed[placed.index("out")] = "remote"
        assert run(placed) == 0
    shards = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.tfrecord")}
    assert shards
    assert {path.name: path.read_bytes() for path in (tmp_path / "remote").glob("*.tfrecord")} == shards

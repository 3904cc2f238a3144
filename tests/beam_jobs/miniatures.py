"""Datasets in the layouts in which they come, with a few pictures of 40 x 24 pixels and one box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.beam_jobs.images import encode, picture

# Of every picture: ymin, xmin, ymax, xmax in pixels.
BOX = (6.0, 10.0, 18.0, 30.0)
FRACTIONS = [6 / 24, 10 / 40, 18 / 24, 30 / 40]
NAMES = [f"p{number:02d}" for number in range(12)]


def write_pictures(folder: Path, names: list[str] = NAMES, ending: str = ".jpg") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}{ending}").write_bytes(encode(picture(), "PNG" if ending == ".png" else "JPEG"))


def coco(names: list[str] = NAMES, **more: Any) -> dict[str, Any]:
    """A COCO file: a box in every second picture, the classes of which take turns."""
    ymin, xmin, ymax, xmax = BOX
    images = [
        {"id": 100 + number, "file_name": f"{name}.jpg", "width": 40, "height": 24} for number, name in enumerate(names)
    ]
    boxes = [
        {
            "id": number,
            "image_id": 100 + number,
            "category_id": (9, 4)[number // 2 % 2],
            "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
            "area": 200.0,
            "iscrowd": 0,
            "segmentation": [[xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]],
        }
        for number in range(0, len(names), 2)
    ]
    categories = [{"id": 9, "name": "dog"}, {"id": 4, "name": "cat"}]
    return {"images": images, "annotations": boxes, "categories": categories, **more}


def coco_captions(names: list[str] = NAMES) -> dict[str, Any]:
    """A COCO file with two captions of each picture."""
    rows = [
        {"id": 2 * n + m, "image_id": 100 + n, "caption": f"{name} {m}"} for n, name in enumerate(names) for m in (0, 1)
    ]
    return {"images": coco(names)["images"], "annotations": rows}


def voc_text(name: str) -> str:
    """An XML file of Pascal VOC."""
    ymin, xmin, ymax, xmax = BOX
    bounds = f"<xmin>{xmin + 1}</xmin><ymin>{ymin + 1}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax>"
    thing = f"<object><name>cat</name><difficult>1</difficult><bndbox>{bounds}</bndbox></object>"
    size = "<size><width>40</width><height>24</height><depth>3</depth></size>"
    return f"<annotation><filename>{name}.jpg</filename>{size}{thing}</annotation>"


def yolo_text() -> str:
    """A text file of YOLO with one object of class 1."""
    ymin, xmin, ymax, xmax = FRACTIONS
    return f"1 {(xmin + xmax) / 2} {(ymin + ymax) / 2} {xmax - xmin} {ymax - ymin}\n"


def open_images_rows(names: list[str] = NAMES, label: str = "cat") -> list[list[Any]]:
    """The rows of a CSV of Open Images, with that of the columns."""
    ymin, xmin, ymax, xmax = FRACTIONS
    columns = ["ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax", "IsGroupOf"]
    return [columns, *([name, "x", label, 1, xmin, xmax, ymin, ymax, 0] for name in names)]

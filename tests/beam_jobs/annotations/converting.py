"""Conversions of pictures with annotations, and of damaged rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tpudata
from tests.beam_jobs.annotations.reading import write_files
from tests.beam_jobs.images import encode
from tests.beam_jobs.outcomes import SKIP, read_rejects
from tpudata.format import open_dataset

HEIGHT, WIDTH = 40, 50
_EDGES = ("ymin", "xmin", "ymax", "xmax")


class AnnotatedOutcome(NamedTuple):
    """Records, rejects and class names of a conversion.

    Attributes:
        records: the features of each by its name, without `image/` in front.
        rejects: the reason for each rejected row, by its file and line.
        classes: the lines of labels.txt.
    """

    records: dict[str, dict[str, list[Any]]]
    rejects: dict[str, str]
    classes: list[str]

    def boxes(self, name: str) -> list[tuple[str, tuple[float, ...]]]:
        """Return the class and the edges, in fractions of the sides, of each object of a picture."""
        record = self.records[name]
        edges = zip(*(record[f"object/bbox/{edge}"] for edge in _EDGES), strict=True)
        names = [text.decode() for text in record["object/class/text"]]
        return [(one, tuple(round(edge, 6) for edge in box)) for one, box in zip(names, edges, strict=True)]

    def texts(self, name: str, feature: str) -> list[str]:
        """Return the texts of a feature of a picture."""
        return [text.decode() for text in self.records[name][feature]]


def convert_annotated(
    root: Path,
    files: Mapping[str, str | bytes],
    pictures: Iterable[str],
    annotations: str = ".",
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> AnnotatedOutcome:
    """Convert pictures in the folder `images` by annotations; what is bad is skipped.

    Args:
        root: where to write.
        files: annotation files by their names.
        pictures: names of the pictures.
        annotations: the file or the folder that is passed as annotations.
        size: height and width of the pictures, in pixels.
    """
    data = encode(np.zeros(size, np.uint8), "PNG")
    write_files(root, {**files, **{f"images/{name}": data for name in pictures}})
    options: dict[str, Any] = {**SKIP, "unannotated": "skip"}
    tpudata.convert_images(root / "images", root / "out", annotations=root / annotations, **options)
    dataset = open_dataset(str(root / "out"))
    records = {}
    for split in dataset.manifest.splits:
        for example in dataset.examples(split):
            record: dict[str, list[Any]] = {name.removeprefix("image/"): [*values] for name, values in example.items()}
            records[record["filename"][0].decode()] = record
    rejects = {
        name: reason.removeprefix("bad annotation: ") for name, reason in read_rejects(root / "out", root).items()
    }
    labels = root / "out" / "labels.txt"
    return AnnotatedOutcome(records, rejects, labels.read_text().splitlines() if labels.exists() else [])

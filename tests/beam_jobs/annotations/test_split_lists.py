"""Lists of the pictures of each split, here those of CelebA; tests/beam_jobs/test_annotations.py has those of VOC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tpudata
from tests.beam_jobs.annotations.reading import write_files
from tests.beam_jobs.images import encode, picture
from tpudata.errors import SourceError
from tpudata.format import open_dataset

ATTRIBUTES = "3\nSmiling Young\na.jpg  1 -1\nb.jpg -1 1\nc.jpg 1 1\n"
LIST = "Eval/list_eval_partition.txt"


def convert(folder: Path, files: dict[str, str], annotations: str = "", **options: Any) -> dict[str, set[str]]:
    """Convert three pictures, and return the names of those in each split."""
    write_files(folder / "pictures", {f"{name}.jpg": encode(picture(), "JPEG") for name in "abc"})
    write_files(folder / "celeba", {"Anno/list_attr_celeba.txt": ATTRIBUTES, **files})
    tpudata.convert_images(folder / "pictures", folder / "out", annotations=folder / "celeba" / annotations, **options)
    if options:
        return {}
    dataset = open_dataset(str(folder / "out"))
    return {
        split: {bytes(example["image/filename"][0]).decode()[0] for example in dataset.examples(split)}  # type: ignore[arg-type]
        for split in dataset.manifest.splits
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (LIST, "a.jpg 0\nb.jpg 1\nc.jpg 2\n"),
        ("list_eval_partition.txt", "a.jpg 0\r\n\nb.jpg 1\nc.jpg 2\n"),
        ("list_eval_partition.csv", "image_id,partition\na.jpg,0\nb.jpg,1\nc.jpg,2\n"),
    ],
)
def test_assigns_splits_by_partition_number(name: str, text: str, tmp_path: Path) -> None:
    assert convert(tmp_path, {name: text}) == {"train": {"a"}, "validation": {"b"}, "test": {"c"}}


def test_ignores_a_split_list_outside_the_annotations_folder(tmp_path: Path) -> None:
    assert convert(tmp_path, {LIST: "a.jpg 2\n"}, "Anno") == {"train": {"a", "b", "c"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg 0\nb.jpg 3\n", r"partition\.txt line 2: not a picture with its split, 0, 1 or 2: 'b\.jpg 3'"),
        ("a.jpg\n", r"partition\.txt line 1: not a picture with its split"),
        ("a.jpg 0\na.jpg 1\n", r"partition\.txt line 2: 'a' is in .*partition\.txt, too"),
    ],
)
def test_rejects_damaged_split_lists(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        convert(tmp_path, {LIST: text}, dry_run=True)

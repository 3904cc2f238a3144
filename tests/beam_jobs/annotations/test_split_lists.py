"""Lists of the pictures of each split.

Lists are read by themselves; conversions by the lists of VOC and CelebA are in tests/beam_jobs/test_annotations.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.annotations.find_form import find_form
from beam_jobs.annotations.split_lists import NO_LISTS, SplitLists
from tests.beam_jobs.annotations.reading import write_files, write_text
from tpudata.errors import SourceError

ATTRIBUTES = "1\nSmiling Young\na.jpg  1 -1\n"


def test_a_picture_is_in_the_split_of_its_list(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"train.txt": "a.v2\r\n\nb.jpg 1\n", "test.txt": "# NAME\nc\n"})
    lists = SplitLists.open([(str(root / f"{split}.txt"), split) for split in ("train", "test")])
    assert lists.splits == {"train", "test"}
    names = ("x/a.v2.jpg", "b.png", "c.jpg", "d.jpg")
    assert [lists.split_of(name) for name in names] == ["train", "train", "test", None]
    assert (NO_LISTS.split_of("a.jpg"), NO_LISTS.splits) == ("", frozenset())


def test_a_column_of_numbers_says_the_split(tmp_path: Path) -> None:
    for text in ("a.jpg 0\nb.jpg 1\nc.jpg 2\n", "image_id,partition\na.jpg,0\nb.jpg,1\nc.jpg,2\n"):
        lists = SplitLists.open([(str(write_text(tmp_path / "list.txt", text)), "")])
        assert [lists.split_of(f"{name}.jpg") for name in "abc"] == ["train", "validation", "test"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg 0\nb.jpg 3\n", r"list\.txt line 2: no picture and its split, 0, 1 or 2: 'b\.jpg 3'"),
        ("a.jpg\n", r"list\.txt line 1: no picture and its split"),
        ("a.jpg 0\na.jpg 1\n", r"list\.txt line 2: 'a' is in .*list\.txt, too"),
    ],
)
def test_a_list_that_does_not_fit_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        SplitLists.open([(str(write_text(tmp_path / "list.txt", text)), "")])


@pytest.mark.parametrize("name", ["Eval/list_eval_partition.txt", "list_eval_partition.txt"])
def test_partitions_of_celeba_are_found(tmp_path: Path, name: str) -> None:
    files = {"Anno/list_attr_celeba.txt": ATTRIBUTES, name: "a.jpg 2\n"}
    assert find_form(str(write_files(tmp_path, files))).split_lists.split_of("a.jpg") == "test"
    assert find_form(str(tmp_path / "Anno")).split_lists == NO_LISTS

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.references.labels import Labels
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import converted, ignored, jpeg, opened, summary, write_files
from tpudata.errors import SourceError, UsageError


def test_lists_files_by_class_and_ignores_hidden_ones(tmp_path: Path) -> None:
    write_files(tmp_path, {"cat/0.jpg": jpeg(0), "dog/a/1.jpg": jpeg(1), "cat/.x": b"", "cat/Thumbs.db": b""})
    (tmp_path / "ape").mkdir()
    source = opened(tmp_path)
    assert source.labels == Labels(("ape", "cat", "dog"))
    assert summary(source) == {"cat/0.jpg": ("train", ("cat",), jpeg(0)), "dog/a/1.jpg": ("train", ("dog",), jpeg(1))}
    assert ignored(source) == [f"{tmp_path}/cat/.x", f"{tmp_path}/cat/Thumbs.db"]


def test_folders_above_the_classes_are_splits(tmp_path: Path) -> None:
    write_files(tmp_path, {"train/cat/0.jpg": jpeg(0), "test/cat/0.jpg": jpeg(1)})
    assert summary(opened(tmp_path)) == {
        "train/cat/0.jpg": ("train", ("cat",), jpeg(0)),
        "test/cat/0.jpg": ("test", ("cat",), jpeg(1)),
    }
    with pytest.raises(UsageError, match=r"--split: .* has split folders already \(test, train\)"):
        opened(tmp_path, split="train=0.5,test=0.5")


def test_labels_file_sets_the_order_and_rejects_unknown_classes(tmp_path: Path) -> None:
    write_files(tmp_path, {"in/cat/0.jpg": jpeg(0), "in/dog/1.jpg": jpeg(1), "names.txt": b"dog\nape\ncat"})
    said = SourceOptions(labels_file=f"{tmp_path}/names.txt")
    assert opened(tmp_path / "in", said).labels == Labels(("dog", "ape", "cat"))
    write_files(tmp_path, {"in/apes/2.jpg": jpeg(2)})
    with pytest.raises(SourceError, match=r"in/apes: --labels .*names\.txt has no class 'apes'\. Did you mean 'ape'"):
        opened(tmp_path / "in", said)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\n\nb\n", "line 2 is empty"),
        (b"a\nb\na\n", "'a' is on line 1 and on line 3"),
        (b"\xff\n", "byte 0 is not UTF-8"),
    ],
)
def test_rejects_damaged_labels_files(tmp_path: Path, data: bytes, message: str) -> None:
    write_files(tmp_path, {"in/a/0.jpg": jpeg(0), "names.txt": data})
    with pytest.raises(SourceError, match=message):
        opened(tmp_path / "in", SourceOptions(labels_file=f"{tmp_path}/names.txt"))


def test_rejects_inputs_without_class_folders(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/0.jpg": jpeg(0), "empty.csv": b"", "binary": b"\x01\0\x02" * 9})
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("nowhere", "does not exist. Name a folder"),
        ("empty", "has no subfolders"),
        ("a", "has files, such as 0.jpg, and no folders of classes"),
        ("a/0.jpg", "is one image"),
        ("empty.csv", "is empty"),
        ("binary", "no known form"),
    ):
        with pytest.raises(SourceError, match=message):
            opened(tmp_path / name)


def test_converts_class_folders(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"cat/0.jpg": jpeg(0), "dog/1.jpg": jpeg(1)})
    assert converted(tmp_path / "in", tmp_path / "out") == {
        "train": {b"cat/0.jpg": (0, jpeg(0)), b"dog/1.jpg": (1, jpeg(1))}
    }


def test_label_type_int_takes_labels_from_numeric_folders(tmp_path: Path) -> None:
    names = ["0", "2", "10"]
    write_files(tmp_path / "in", {f"{name}/0.jpg": jpeg(number) for number, name in enumerate(names)})
    integers = SourceOptions(label_type="int")
    assert opened(tmp_path / "in").labels == Labels(("0", "10", "2"))
    assert opened(tmp_path / "in", integers).labels == Labels(tuple(map(str, range(11))))
    found = opened(f"{tmp_path}/in/*/*.jpg", integers)
    assert (found.integer_labels, {labels for _, labels, _ in summary(found).values()}) == (
        True,
        {("0",), ("2",), ("10",)},
    )
    write_files(tmp_path, {"names.txt": "\n".join("abcdefghijk").encode()})
    named = opened(tmp_path / "in", SourceOptions(label_type="int", labels_file=f"{tmp_path}/names.txt"))
    assert {labels for _, labels, _ in summary(named).values()} == {("a",), ("c",), ("k",)}
    for name, message in (
        ("cat", "is not a whole number"),
        ("01", "is not a whole number"),
        ("20190101", "more than 1,000,000"),
    ):
        write_files(tmp_path / name, {f"{name}/0.jpg": jpeg(0), "0/1.jpg": jpeg(1)})
        with pytest.raises(SourceError, match=rf"{name}/{name}: with --label-type int, .*{message}"):
            opened(tmp_path / name, integers)
    write_files(tmp_path / "years", {"2019/0.jpg": jpeg(0), "20190/1.jpg": jpeg(1)})
    with pytest.raises(SourceError, match=r"years/20190: label 20190 makes 20,191 classes"):
        opened(tmp_path / "years", integers)


def test_rejects_label_type_for_imagenet_folders(tmp_path: Path) -> None:
    write_files(tmp_path, {"train/n01440764/n01440764_1.JPEG": jpeg(0)})
    with pytest.raises(UsageError, match=r"--label-type is for .* and for folders of classes, and .* is none of these"):
        opened(tmp_path, SourceOptions(label_type="int"))

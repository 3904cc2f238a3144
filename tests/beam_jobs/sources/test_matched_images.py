from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.labels import Labels
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.matched_images import MatchedImages
from tests.beam_jobs.sources.inputs import (
    converted,
    ignored,
    jpeg,
    listed,
    listed_and_refused,
    opened,
    summary,
    write_files,
)
from tpudata.errors import SourceError, UsageError

FILES = {
    f"{split}/{name}/{i}.jpg": jpeg(i)
    for i, (split, name) in enumerate([("train", "cat"), ("train", "dog"), ("test", "cat")])
}
UNLABELLED = SourceOptions(unlabelled=True)


def test_the_folder_is_the_class_and_the_one_above_the_split(tmp_path: Path) -> None:
    write_files(tmp_path, {**FILES, "train/cat/.hidden.jpg": b"", "train/cat/notes.txt": b"not matched"})
    wanted = {key: (key.split("/")[0], (key.split("/")[1],), data) for key, data in FILES.items()}
    for pattern in ("*/*/*.jpg", "**/*.jpg", "**/cat/**/*.jpg"):
        source = opened(f"{tmp_path}/{pattern}")
        assert isinstance(source, MatchedImages)
        assert summary(source) == {key: value for key, value in wanted.items() if "cat" in key or "cat" not in pattern}
        with pytest.raises(UsageError, match=r"--split: .*split folders already \(test, train\)"):
            opened(f"{tmp_path}/{pattern}", split="train=0.5,test=0.5")


def test_a_fixed_folder_is_no_split(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    assert summary(opened(f"{tmp_path}/test/*/*")) == {"cat/2.jpg": ("train", ("cat",), jpeg(2))}
    assert summary(opened(f"{tmp_path}/test/cat/?.jpg")) == {"2.jpg": ("train", ("cat",), jpeg(2))}


def test_files_without_a_class(tmp_path: Path) -> None:
    write_files(tmp_path, {"train/0.jpg": jpeg(0)})
    with pytest.raises(SourceError, match=r"0\.jpg lies in no folder of its class"):
        listed(opened(f"{tmp_path}/*/*.jpg"))
    assert summary(opened(f"{tmp_path}/*/*.jpg", UNLABELLED)) == {"train/0.jpg": ("train", (), jpeg(0))}


def test_a_folder_of_unlabelled_images(tmp_path: Path) -> None:
    write_files(tmp_path, {"0.jpg": b"", "a/1.jpg": jpeg(1), "test/b/2.jpg": jpeg(2), "Thumbs.db": b"x"})
    with pytest.raises(SourceError, match="files beside its subfolders"):
        opened(tmp_path)
    source = opened(tmp_path, UNLABELLED)
    assert not source.has_classes
    assert summary(source) == {
        "0.jpg": ("train", (), b""),
        "a/1.jpg": ("train", (), jpeg(1)),
        "test/b/2.jpg": ("test", (), jpeg(2)),
    }
    assert ignored(source) == [f"{tmp_path}/Thumbs.db"]


def test_a_labels_file(tmp_path: Path) -> None:
    write_files(tmp_path, {"in/cat/0.jpg": jpeg(0), "in/dog/1.jpg": jpeg(1), "names.txt": b"dog\n"})
    source = opened(f"{tmp_path}/in/*/*", SourceOptions(labels_file=f"{tmp_path}/names.txt"))
    assert source.labels == Labels(("dog",))
    found, refused = listed_and_refused(source)
    assert [reference.key for reference in found] == ["dog/1.jpg"]
    assert [error.source for error in refused] == [f"{tmp_path}/in/cat/0.jpg"]


def test_patterns_that_match_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"cat/0.jpg": jpeg(0)})
    with pytest.raises(SourceError, match="matches no file"):
        opened(f"{tmp_path}/*")
    with pytest.raises(SourceError, match=r"there is no folder .*/nowhere"):
        opened(f"{tmp_path}/nowhere/*")
    with pytest.raises(UsageError, match="--label-column is for CSV and JSONL lists"):
        opened(f"{tmp_path}/*/*", SourceOptions(label_column="x"))


def test_a_folder_with_brackets_is_taken_as_it_is(tmp_path: Path) -> None:
    write_files(tmp_path / "a[1]*", {"cat/0.jpg": jpeg(0)})
    assert summary(opened(tmp_path / "a[1]*")) == {"cat/0.jpg": ("train", ("cat",), jpeg(0))}


def test_matched_images_are_converted(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    assert converted(f"{tmp_path}/in/**/*.jpg", tmp_path / "out") == {
        "train": {b"train/cat/0.jpg": (0, jpeg(0)), b"train/dog/1.jpg": (1, jpeg(1))},
        "test": {b"test/cat/2.jpg": (0, jpeg(2))},
    }

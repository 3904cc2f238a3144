"""The splits that the names of files stand for: one rule for tars, zips, Parquet, IDX files and text."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from beam_jobs import text
from tests.beam_jobs.sources.inputs import jpeg, listed, opened, tar_bytes
from tpudata.errors import SourceError, UsageError
from tpudata.format import open_dataset


def write(path: Path, form: str) -> None:
    """A file with one record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "txt":
        path.write_text(f"{path.stem}\n")
    elif form == "csv":
        (path.parent / f"{path.stem}.jpg").write_bytes(jpeg(0))
        path.write_text(f"path,label\n{path.stem}.jpg,cat\n")
    elif form == "parquet":
        parquet.write_table(pa.table({"image": [jpeg(0)], "label": [0]}), path)
    elif form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("cat/1.jpg", jpeg(0))
    else:
        path.write_bytes(tar_bytes([("1.jpg", jpeg(0)), ("1.cls", b"3")]))


def splits(folder: Path, form: str, split: str | None = None) -> list[str]:
    """The split of each record, in the order of the files' names."""
    found: list[Any]
    if form == "txt":
        output = folder.with_name("out")
        text.run([f"--input={folder}", f"--output={output}", *([f"--split={split}"] if split else [])])
        dataset = open_dataset(str(output))
        found = [(example["text"][0], name) for name in dataset.manifest.splits for example in dataset.examples(name)]
    else:
        source_path = f"{folder}/*.csv" if form == "csv" else folder
        found = [(reference.path, reference.split) for reference in listed(opened(source_path, split=split))]
    return [split for _, split in sorted(found)]


FORMS = ["tar", "zip", "parquet", "csv", "txt"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train-000", "train-001", "val-000"], ["train", "train", "validation"]),
        (["dev", "test"], ["validation", "test"]),
        (["imagenet-train-000", "imagenet-validation-000"], ["train", "validation"]),
        (["wiki.test.raw", "wiki.train.raw"], ["test", "train"]),
        (["train-000", "train-001"], ["train", "train"]),
        (["my-test-0", "my-test-1"], ["train", "train"]),
        (["a-train-0", "b"], ["train", "train"]),
    ],
)
def test_takes_splits_from_file_names(tmp_path: Path, form: str, names: list[str], expected: list[str]) -> None:
    for name in names:
        write(tmp_path / "in" / f"{name}.{form}", form)
    assert splits(tmp_path / "in", form) == expected


@pytest.mark.parametrize("form", FORMS)
def test_rejects_ambiguous_names_and_shares_of_named_splits(tmp_path: Path, form: str) -> None:
    for name in ("train-0", "val-0"):
        write(tmp_path / "in" / f"{name}.{form}", form)
    with pytest.raises(UsageError, match=r"--split: .* has splits already \(train, validation\)"):
        splits(tmp_path / "in", form, "train=0.5,test=0.5")
    write(tmp_path / "in" / f"other.{form}", form)
    with pytest.raises(SourceError, match=rf"which look like splits, next to other\.{form}"):
        splits(tmp_path / "in", form)


@pytest.mark.parametrize("form", ["tar", "zip"])
def test_folders_in_an_archive_set_the_split_unless_its_name_contradicts(tmp_path: Path, form: str) -> None:
    members = [("train/cat/1.jpg", jpeg(0)), ("val/cat/2.jpg", jpeg(1))]

    def pack(name: str, files: list[tuple[str, bytes]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if form == "tar":
            path.write_bytes(tar_bytes(files))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for member, data in files:
                    archive.writestr(member, data)
        return path

    # An archive of all that one trains with.
    assert [one.split for one in listed(opened(pack(f"train.{form}", members)))] == ["train", "validation"]
    assert [one.split for one in listed(opened(pack(f"val.{form}", members[1:])))] == ["validation"]
    assert [one.split for one in listed(opened(pack(f"val.{form}", [("cat/1.jpg", jpeg(0))])))] == ["validation"]
    with pytest.raises(SourceError, match="folder of the split train, and its archive is named after validation"):
        listed(opened(pack(f"val.{form}", members)))


def test_takes_the_split_of_idx_files_from_their_last_word(tmp_path: Path) -> None:
    for name in ("letters-training", "letters-val", "t10k"):
        head = struct.pack(">HBBIII", 0, 8, 3, 1, 2, 2), struct.pack(">HBBI", 0, 8, 1, 1)
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(head[0] + bytes(4))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(head[1] + bytes(1))
    assert {one.key.split("/")[0].split("-images")[0]: one.split for one in listed(opened(tmp_path))} == {
        "letters-training": "train",
        "letters-val": "validation",
        "t10k": "test",
    }


def test_split_column_overrides_the_names_of_lists(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write(tmp_path / "in" / f"{name}.csv", "csv")
        (tmp_path / "in" / f"{name}.csv").write_text(f"path,label,split\n{name}.jpg,cat,test\n")
    assert splits(tmp_path / "in", "csv") == ["test", "test"]

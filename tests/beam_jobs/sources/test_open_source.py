"""Inputs of unsupported forms, and the fix that the message names."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import jpeg, listed, opened, tar_bytes, write_files
from tpudata.errors import SourceError

ARRAY = io.BytesIO()
np.savez(ARRAY, x=np.zeros((2, 4, 4), np.uint8))
NPZ = ARRAY.getvalue()


@pytest.mark.parametrize(
    ("files", "pattern"),
    [
        ({"1.jpg": jpeg(0)}, "has files, such as 1.jpg, and no folders of classes.*--label-from.*--unlabelled"),
        ({"README.md": b"#", "1.jpg": jpeg(0)}, "and no folders of classes"),
        (
            {"train/1.jpg": jpeg(0), "test/2.jpg": jpeg(1)},
            "in/test has files, such as 2.jpg, and no folders of classes",
        ),
        ({"README.md": b"#", "a/1.jpg": jpeg(0)}, r"has README\.md next to its folders.*--input '.*/in/\*/\*'"),
        ({"README.md": b"#", "data/train.parquet": b""}, r"next to its folders.*--input '.*/in/\*/\*\.parquet'"),
        ({"a.bin": b"\0\1" * 9, "b.jpg": jpeg(0)}, r"a\.bin is of no known form"),
        ({"list.csv": b"path,label\n"}, r"list\.csv is a list\. Pass --input .*/in/list\.csv"),
        (
            {"LICENSE": b"MIT", "a.tar": tar_bytes([("cat/1.jpg", jpeg(0))])},
            r"a\.tar is a tar\. Pass --input '.*/in/\*\.tar'",
        ),
        ({"a.npz": NPZ}, r"a\.npz: a NumPy archive with x .*save the images as files"),
        ({"a.parquet": b"PARE" + bytes(20) + b"PARE"}, r"a\.parquet is an encrypted Parquet file\. Decrypt it"),
    ],
)
def test_rejects_a_folder_without_classes_and_says_what_it_holds(
    tmp_path: Path, files: dict[str, bytes], pattern: str
) -> None:
    with pytest.raises(SourceError, match=pattern):
        opened(write_files(tmp_path / "in", files))


@pytest.mark.parametrize("source", [None, "tar"])
def test_skips_a_readme_next_to_tars(tmp_path: Path, source: str | None) -> None:
    files = {"README.md": b"#", "train-0.tar": tar_bytes([("1.jpg", jpeg(1)), ("1.cls", b"cat")])}
    references = listed(opened(write_files(tmp_path / "in", files), SourceOptions(source=source)))
    assert [reference.labels for reference in references] == [("cat",)]


@pytest.mark.parametrize(
    ("name", "data", "pattern"),
    [
        ("a.npz", NPZ, "a NumPy archive with x"),
        ("a.npy", b"\x93NUMPY\x01\x00", r"is a NumPy array \(\.npy\)"),
        ("a.h5", b"\x89HDF\r\n\x1a\n", "is an HDF5 file"),
        ("a.parquet", b"PARE" + bytes(20) + b"PARE", "is an encrypted Parquet file"),
    ],
)
def test_rejects_files_of_other_programs_by_path_and_by_pattern(
    tmp_path: Path, name: str, data: bytes, pattern: str
) -> None:
    (tmp_path / name).write_bytes(data)
    for source in (tmp_path / name, f"{tmp_path}/*.{name.rpartition('.')[2]}"):
        with pytest.raises(SourceError, match=rf"{name}:? {pattern}"):
            opened(source)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (
            ["a.b.1.jpg", "a.b.1.cls"],
            r"a\.b\.1\.jpg and a\.b\.1\.cls are not a WebDataset sample, whose name ends at the first",
        ),
        (
            ["1.jpg", "2.jpg", "1.cls", "2.cls"],
            r"members 1\.jpg and 1\.cls are a WebDataset sample, and do not follow each",
        ),
        (["1.jpg", "2.jpg"], "lies in no folder of its class"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_explains_why_members_are_not_samples(tmp_path: Path, names: list[str], pattern: str, suffix: str) -> None:
    data = tar_bytes([(name, b"3" if name.endswith("cls") else jpeg(0)) for name in names])
    path = tmp_path / f"a.tar{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(SourceError, match=pattern):
        listed(opened(path))

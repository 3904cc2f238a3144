"""Classes and columns from paths, of every source that takes `--label-from`."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from beam_jobs.images import run
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import jpeg, listed, listed_and_rejected, opened, tar_bytes, write_files
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import open_dataset

CATS = {f"train/{name}.{number}.jpg": jpeg(number) for name in ("cat", "dog") for number in range(3)}
FACES = {f"{age}_{gender}_2_20170109.jpg.chip.jpg": jpeg(age) for age, gender in ((1, 0), (25, 1), (100, 0))}
FACE = r"(?P<age>\d+)_(?P<label>\d)_(?P<race>\d)_"


def make_zip(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def as_folder(root: Path, files: Mapping[str, bytes]) -> str:
    return str(write_files(root, files))


def as_pattern(root: Path, files: Mapping[str, bytes]) -> str:
    return f"{write_files(root, files)}/**/*.jpg"


def as_zip(root: Path, files: Mapping[str, bytes]) -> str:
    return str(write_files(root, {"a.zip": make_zip(files)}) / "a.zip")


def as_tar(root: Path, files: Mapping[str, bytes]) -> str:
    return str(write_files(root, {"a.tar": tar_bytes(list(files.items()))}) / "a.tar")


def as_tgz(root: Path, files: Mapping[str, bytes]) -> str:
    return str(write_files(root, {"a.tgz": gzip.compress(tar_bytes(list(files.items())))}) / "a.tgz")


EVERY_FORM = pytest.mark.parametrize("make", [as_folder, as_pattern, as_zip, as_tar, as_tgz])


@EVERY_FORM
def test_the_first_group_is_the_class(tmp_path: Path, make: Callable[[Path, Mapping[str, bytes]], str]) -> None:
    source = opened(make(tmp_path, CATS), SourceOptions(label_from=r"(\w+)\.\d+\.jpg"))
    found = {reference.key.rpartition("/")[2]: reference for reference in listed(source)}
    assert {name: reference.labels for name, reference in found.items()} == {
        name.rpartition("/")[2]: (name[6:9],) for name in CATS
    }
    assert {reference.split for reference in found.values()} == {"train"}
    assert (source.has_classes, source.folder_classes, source.features) == (True, False, ())


@EVERY_FORM
def test_named_groups_are_columns(tmp_path: Path, make: Callable[[Path, Mapping[str, bytes]], str]) -> None:
    source = opened(make(tmp_path, FACES), SourceOptions(label_from=FACE))
    found = sorted(
        (reference.features["age"], reference.labels, reference.features["race"]) for reference in listed(source)
    )
    assert found == [(1, ("0",), 2), (25, ("1",), 2), (100, ("0",), 2)]
    assert [(feature.name, feature.dtype) for feature in source.features] == [("age", "int64"), ("race", "int64")]
    assert source.integer_labels


def test_stores_classes_and_columns_and_appends(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FACES)
    flags = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--label-from", FACE]
    assert run(flags) == 0
    dataset = open_dataset(str(tmp_path / "out"))
    rows = sorted((row["age"][0], row["image/class/label"][0], row["race"][0]) for row in dataset.examples("train"))
    assert rows == [(1, 0, 2), (25, 1, 2), (100, 0, 2)]
    write_files(tmp_path / "in", {"7_1_3_20170109.jpg.chip.jpg": jpeg(7)})
    assert run([*flags[:4], "--append"]) == 0
    assert open_dataset(str(tmp_path / "out")).manifest.splits["train"].records == 4


def test_an_expression_with_only_named_groups_gives_no_class(tmp_path: Path) -> None:
    write_files(tmp_path, FACES)
    source = opened(tmp_path, SourceOptions(label_from=r"(?P<age>\d+)_(?P<gender>\d)_"))
    assert not source.has_classes
    assert {reference.labels for reference in listed(source)} == {()}


@pytest.mark.parametrize(
    ("types", "values", "dtype"),
    [
        ({}, ["007", "12", ""], "string"),
        ({"id": "int=-1"}, [7, 12, -1], "int64"),
        ({"id": "float=0"}, [7.0, 12.0, 0.0], "float32"),
        ({"id": "str=none"}, ["007", "12", "none"], "string"),
    ],
)
def test_columns_have_declared_kinds(tmp_path: Path, types: dict[str, str], values: list[object], dtype: str) -> None:
    write_files(tmp_path, {"cat_007.jpg": jpeg(0), "cat_12.jpg": jpeg(1), "cat_x.jpg": jpeg(2)})
    source = opened(tmp_path, SourceOptions(label_from=r"([a-z]+)_(?P<id>\d+)?", column_types=types))
    assert [reference.features["id"] for reference in listed(source)] == values
    assert source.features[0].dtype == dtype


def test_rejects_a_path_that_does_not_match(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {**CATS, "train/readme.jpg": jpeg(0)})
    said = SourceOptions(label_from=r"(cat|dog)\.\d+\.jpg")
    _, (error,) = listed_and_rejected(opened(tmp_path / "in", said))
    assert (error.key, error.source) == ("train/readme.jpg", f"{tmp_path}/in/train/readme.jpg")
    flags = ["--input", str(tmp_path / "in"), "--label-from", r"(cat|dog)\.\d+\.jpg"]
    with pytest.raises(BadRecordError, match="its path does not match --label-from"):
        run([*flags, "--output", str(tmp_path / "fail")])
    assert run([*flags, "--output", str(tmp_path / "skip"), "--on-bad-record=skip", "--max-bad-records=1"]) == 0
    assert open_dataset(str(tmp_path / "skip")).manifest.splits["train"].records == 6


def test_rejects_a_value_of_another_kind(tmp_path: Path) -> None:
    write_files(tmp_path, {"a_1.jpg": jpeg(0), "a_x.jpg": jpeg(1)})
    said = SourceOptions(label_from=r"(\w)_(?P<id>\w)", column_types={"id": "int"})
    found, (error,) = listed_and_rejected(opened(tmp_path, said))
    assert [reference.key for reference in found] == ["a_1.jpg"]
    assert "'id' in its path is not a whole number: 'x'" in error.reason


def test_labels_file_and_label_type_set_the_classes(tmp_path: Path) -> None:
    write_files(tmp_path, {"in/0_a.jpg": jpeg(0), "in/10_b.jpg": jpeg(1), "names.txt": b"0\n1\n10\n"})
    named = opened(tmp_path / "in", SourceOptions(label_from=r"(\d+)_", labels_file=f"{tmp_path}/names.txt"))
    assert [reference.labels for reference in listed(named)] == [("0",), ("10",)]
    assert named.labels is not None
    assert not opened(tmp_path / "in", SourceOptions(label_from=r"(\d+)_", label_type="str")).integer_labels
    assert opened(tmp_path / "in", SourceOptions(label_from=r"(\d+)_")).integer_labels


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"label_from": "("}, "not a regular expression"),
        ({"label_from": "cat"}, "no group"),
        ({"label_from": "(x)", "unlabelled": True}, "--label-from and --unlabelled: choose one"),
        ({"label_from": "(x)", "label_column": "x"}, "--label-from and --label-column: choose one"),
        ({"label_from": "(x)", "annotations": "x"}, "--label-from and --annotations: choose one"),
    ],
)
def test_rejects_invalid_and_conflicting_options(said: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SourceOptions(**said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (SourceOptions(label_from="(xyz)"), r"it matches no path, such as 'train/cat\.0\.jpg'"),
        (SourceOptions(label_from=r"(\w+)\.", column_types={"age": "int"}), "has no group 'age'"),
        (SourceOptions(label_from=r"(\w+)\.", source="list"), "--label-from is for the paths of pictures"),
    ],
)
def test_rejects_an_expression_that_does_not_fit_the_input(tmp_path: Path, said: SourceOptions, message: str) -> None:
    root = write_files(tmp_path / "in", CATS)
    lists = write_files(tmp_path, {"list.csv": b"path,label\nin/train/cat.0.jpg,cat\n"}) / "list.csv"
    with pytest.raises(UsageError, match=message):
        opened(lists if said.source else root, said)

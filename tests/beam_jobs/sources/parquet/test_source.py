"""Parquet files with images, as Hugging Face's datasets library writes them."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

import tpudata
from beam_jobs.images import run
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.outcomes import SKIP, outcome_of
from tests.beam_jobs.sources.inputs import converted, jpeg, listed, listed_and_rejected, opened, summary, units
from tpudata.errors import BadRecordError, CorruptionError, SourceError, UsageError
from tpudata.format import open_dataset, verify

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = ["cat", "dog", "eel"]


def hugging_face(path: Path, rows: list[tuple[Any, Any]], names: list[str] | None = NAMES, **options: Any) -> Path:
    """Write a file with the schema and the metadata of `datasets.Dataset.to_parquet`."""
    features = {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}
    if names is not None:
        features["label"] = {"names": names, "_type": "ClassLabel"}  # type: ignore[dict-item]
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema([("image", IMAGE), ("label", pa.int64())], metadata)
    images = [row if row is None or isinstance(row, dict) else {"bytes": row, "path": "x.jpg"} for row, _ in rows]
    table = pa.table({"image": pa.array(images, IMAGE), "label": [label for _, label in rows]}, schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, **options)
    return path


ROWS = [(jpeg(number), number % 3) for number in range(10)]


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_reads_images_and_class_names_of_hugging_face(tmp_path: Path, rows: int, compression: str) -> None:
    path = hugging_face(tmp_path / "a.parquet", ROWS, row_group_size=rows, compression=compression)
    source = opened(path)
    assert len(units(source)) == (4 if rows == 3 else 1)
    assert source.labels is not None
    assert source.labels.names == tuple(NAMES)
    assert summary(source) == {
        f"a.parquet:{number}": ("train", (NAMES[label],), data) for number, (data, label) in enumerate(ROWS)
    }


def test_stores_the_class_names_of_the_metadata(tmp_path: Path) -> None:
    hugging_face(tmp_path / "in" / "train-00000-of-00001-1a2b.parquet", ROWS[:7])
    hugging_face(tmp_path / "in" / "test-00000-of-00001-3c4d.parquet", ROWS[7:])
    (tmp_path / "in" / "README.md").write_text("---\n---\n")
    found = converted(tmp_path / "in", tmp_path / "out")
    assert open_dataset(str(tmp_path / "out")).labels() == tuple(NAMES)
    assert {split: len(records) for split, records in found.items()} == {"train": 7, "test": 3}
    assert {value for records in found.values() for value in records.values()} == {
        (label, data) for data, label in ROWS
    }


def test_folders_of_a_pattern_are_splits(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        hugging_face(tmp_path / split / "0000.parquet", ROWS[:2])
    found = summary(opened(f"{tmp_path}/**/*.parquet"))
    assert {key: split for key, (split, _, _) in found.items()} == {
        "train/0000.parquet:0": "train",
        "train/0000.parquet:1": "train",
        "validation/0000.parquet:0": "validation",
        "validation/0000.parquet:1": "validation",
    }
    with pytest.raises(UsageError, match="has splits already"):
        opened(f"{tmp_path}/**/*.parquet", split="train=0.5,test=0.5")
    assert {split for split, _, _ in summary(opened(f"{tmp_path}/train/*", split="a=0.5,b=0.5")).values()} <= {"a", "b"}


def test_reads_plain_columns_of_bytes(tmp_path: Path) -> None:
    table = pa.table({"jpg": [jpeg(0), jpeg(1)], "class": ["dog", "cat"], "id": [7, 8]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert {key: labels for key, (_, labels, _) in summary(opened(tmp_path / "a.parquet")).items()} == {
        "a.parquet:0": ("dog",),
        "a.parquet:1": ("cat",),
    }
    numbers = opened(tmp_path / "a.parquet", SourceOptions(label_column="id"))
    assert numbers.integer_labels
    assert [reference.labels for reference in listed(numbers)] == [("7",), ("8",)]
    assert not opened(tmp_path / "a.parquet", SourceOptions(unlabelled=True)).has_classes


def test_rejects_rows_without_image_or_class(tmp_path: Path) -> None:
    only_path = {"bytes": None, "path": "elsewhere/1.jpg"}
    path = hugging_face(
        tmp_path / "a.parquet", [(jpeg(0), 0), (only_path, 0), (None, 0), (jpeg(1), -1), (jpeg(2), None)]
    )
    found, rejected = listed_and_rejected(opened(path))
    assert [reference.key for reference in found] == ["a.parquet:0"]
    assert [(error.source, error.reason) for error in rejected] == [
        (f"{path} row 1", "no bytes, and only a path: elsewhere/1.jpg; store the images' bytes in the Parquet file"),
        (f"{path} row 2", "no image: a null"),
        (f"{path} row 3", "unknown label: -1; labels go from 0 to 2"),
        (f"{path} row 4", "unknown label: None; labels go from 0 to 2"),
    ]


def test_rejects_files_without_images(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": ["a"], "label": [0]}), tmp_path / "text.parquet")
    with pytest.raises(
        SourceError, match=r"no column of images; it has text \(string\), label \(int64\).*--path-column"
    ):
        opened(tmp_path / "text.parquet")
    parquet.write_table(pa.table({"image": [jpeg(0)], "what": [0]}), tmp_path / "other.parquet")
    with pytest.raises(SourceError, match=r"no column of labels.*--label-column, or pass --unlabelled"):
        opened(tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="--split-column is for lists"):
        opened(tmp_path / "other.parquet", SourceOptions(label_column="what", split_column="s"))
    hugging_face(tmp_path / "in" / "a.parquet", ROWS)
    hugging_face(tmp_path / "in" / "b.parquet", ROWS, ["cat", "eel", "dog"])
    with pytest.raises(
        SourceError, match=r"b\.parquet and the first file of .*in have different columns or class names"
    ):
        listed(opened(tmp_path / "in"))
    path = hugging_face(tmp_path / "cut.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptionError, match=r"cut\.parquet at byte 0: the Parquet file is cut or damaged"):
        opened(path)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_rejects_a_file_without_a_split_next_to_splits(tmp_path: Path, split: str) -> None:
    hugging_face(tmp_path / "in" / f"{split}-00000-of-00001.parquet", ROWS[:2])
    hugging_face(tmp_path / "in" / "more.parquet", ROWS[2:4])
    wrong = rf"has {split}-00000-of-00001\.parquet, which looks like a split, next to more\.parquet, which does not"
    with pytest.raises(SourceError, match=wrong):
        opened(tmp_path / "in")
    hugging_face(tmp_path / "in" / "train-00000-of-00001.parquet", ROWS[4:6])
    with pytest.raises(SourceError, match=r"which look like splits, next to more\.parquet, which does not"):
        opened(tmp_path / "in")


def test_files_without_a_split_join_train_next_to_train(tmp_path: Path) -> None:
    for name in ("more", "train-00000-of-00001"):
        hugging_face(tmp_path / "in" / f"{name}.parquet", ROWS[:2])
    assert {split for split, _, _ in summary(opened(tmp_path / "in")).values()} == {"train"}
    dealt = summary(opened(tmp_path / "in", split="a=0.5,b=0.5"))
    assert {split for split, _, _ in dealt.values()} <= {"a", "b"}


def test_opening_a_folder_reads_one_footer_and_holds_no_row_groups(tmp_path: Path) -> None:
    for number in range(40):
        hugging_face(tmp_path / "in" / f"train-{number:05}.parquet", ROWS, row_group_size=1)
    hugging_face(tmp_path / "in" / "train-99999.parquet", ROWS).write_bytes(b"damaged")
    source = opened(tmp_path / "in")
    assert len(pickle.dumps(source)) < 2000
    *whole, last = source.parts()
    assert len([unit for part in whole for unit in source.units(part, [])]) == 400
    with pytest.raises(CorruptionError, match=r"train-99999\.parquet"):
        list(source.units(last, []))


def test_skips_damaged_row_groups_and_files(tmp_path: Path) -> None:
    path = hugging_face(tmp_path / "a.parquet", ROWS, row_group_size=3, write_page_checksum=True, compression="none")
    data = path.read_bytes()
    place = data.index(ROWS[4][0]) + 300
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    whole = hugging_face(tmp_path / "b.parquet", ROWS[:1])
    (tmp_path / "c.parquet").write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(CorruptionError, match=r"column 'image'.*CRC"):
        listed(opened(path))
    tpudata.convert_images(f"{tmp_path}/*.parquet", tmp_path / "out", **SKIP)
    outcome = outcome_of(tmp_path / "out", tmp_path)
    assert outcome.records.keys() == {f"a.parquet:{n}" for n in (0, 1, 2, 6, 7, 8, 9)} | {"b.parquet:0"}
    assert outcome.rejects.keys() == {"a.parquet", "c.parquet"}
    assert outcome.rejects["a.parquet"].endswith("row group 1 of 3 rows is not stored")


def test_rejects_a_file_that_can_be_read_only_after_it_was_listed(tmp_path: Path) -> None:
    hugging_face(tmp_path / "a.parquet", ROWS)
    path = hugging_face(tmp_path / "b.parquet", ROWS)
    whole = path.read_bytes()
    source: Any = opened(tmp_path)
    source = dataclasses.replace(source, options=dataclasses.replace(source.options, on_bad_record="skip"))
    path.write_bytes(whole[:-4] + b"CUT!")
    listed_units = units(source)
    path.write_bytes(whole)
    rejected: list[BadRecordError] = []
    found = [reference for unit in listed_units for reference in source.references(unit, [], rejected.append)]
    assert {reference.path for reference in found} == {f"{tmp_path}/a.parquet"}
    assert "changed during the run: it could not be read before" in str(rejected[0])


def test_rejects_invalid_utf8_and_repeated_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    labels = pa.array([b"cat", b"\xff"]).view(pa.string())
    parquet.write_table(pa.table({"image": [jpeg(0), jpeg(1)], "label": labels}), path)
    found, (error,) = listed_and_rejected(opened(path))
    assert [reference.labels for reference in found] == [("cat",)]
    assert error.reason == "its label cannot be read: not UTF-8, byte 0xff (byte 0 of the value)"
    for column in ("image", "label"):
        names = ["image", "label", column]
        columns = {"image": pa.array([jpeg(0)]), "label": pa.array(["cat"])}
        parquet.write_table(pa.Table.from_arrays([columns[name] for name in names], names=names), path)
        with pytest.raises(SourceError, match=f"column '{column}' appears twice"):
            opened(path)
    path.write_bytes(path.read_bytes().replace(b"label", b"l\xffbel"))
    with pytest.raises(SourceError, match=r"a\.parquet: the name of a column is not UTF-8"):
        opened(path)


def further(path: Path, **columns: Any) -> Path:
    """A file of images with further columns, three rows."""
    images = pa.array([{"bytes": jpeg(number), "path": "x.jpg"} for number in range(3)], IMAGE)
    parquet.write_table(pa.table({"image": images, "label": [0, 1, 0], **columns}), path)
    return path


def test_stores_declared_columns_as_features(tmp_path: Path) -> None:
    types = {
        "age": "int=-1",
        "score": "float",
        "name": "str",
        "box": "floats",
        "ids": "ints",
        "tags": "strings",
        "day": "str",
    }
    path = further(
        tmp_path / "a.parquet",
        age=pa.array([7, None, 9], pa.int8()),
        score=pa.array([0.5, None, 2.0]),
        name=pa.array(["é", None, ""]).dictionary_encode(),
        box=pa.array([[0.25, 1], [], None], pa.list_(pa.float64())),
        ids=pa.array([[1, 2], [3], []], pa.list_(pa.int64())),
        tags=pa.array([["a"], [], ["", "b"]]),
        day=pa.array([0, 1, None], pa.date32()),
        other=[1, 2, 3],
    )
    flag = "--column-types=" + ",".join(f"{name}={kind}" for name, kind in types.items())
    assert run(["--input", str(path), "--output", str(tmp_path / "out"), "--no-shuffle", flag]) == 0
    dataset = open_dataset(str(tmp_path / "out"))
    assert not list(verify(str(tmp_path / "out")))
    assert "other" in dataset.manifest.warnings["image_columns"]
    found = list(dataset.examples("train"))
    assert [record["age"] for record in found] == [[7], [-1], [9]]
    assert [record["name"] for record in found] == [["é".encode()], [b""], [b""]]
    assert [record["box"] for record in found] == [[0.25, 1], [], []]
    assert [record["ids"] for record in found] == [[1, 2], [3], []]
    assert [record["tags"] for record in found] == [[b"a"], [], [b"", b"b"]]
    assert [record["day"] for record in found] == [[b"1970-01-01"], [b"1970-01-02"], [b""]]
    assert [record["score"][0] == record["score"][0] for record in found] == [True, False, True]


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"agee": "int"}, r"no column 'agee'.* Did you mean 'age'\?"),
        ({"name": "int"}, "column 'name' is string, which cannot be read as int"),
        ({"name": "float"}, "column 'name' is string, which cannot be read as float"),
        ({"age": "ints"}, "column 'age' is int64, which cannot be read as ints"),
        ({"box": "ints"}, r"column 'box' is list<.*double>, which cannot be read as ints"),
        ({"box": "str"}, r"column 'box' is list<.*double>, which cannot be read as str"),
    ],
)
def test_rejects_columns_of_other_types(tmp_path: Path, types: dict[str, str], message: str) -> None:
    path = further(tmp_path / "a.parquet", age=[1, 2, 3], name=["a", "b", "c"], box=[[0.5], [1.0], []])
    with pytest.raises(SourceError, match=message):
        opened(path, SourceOptions(column_types=types))


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([1, None, 3], "int", "column 'x' has no value; pass NAME=int=0"),
        ([1, 2**24 + 1, 3], "float", "column 'x' is 16777217, which would become 16777216 in float32"),
        ([[1], [2, None], []], "ints", "column 'x' has a list whose item 1 is null"),
    ],
)
def test_rejects_values_that_do_not_fit_their_column(
    tmp_path: Path, values: list[Any], kind: str, message: str
) -> None:
    path = further(tmp_path / "a.parquet", x=values)
    kept, rejected = listed_and_rejected(opened(path, SourceOptions(column_types={"x": kind})))
    assert (len(kept), len(rejected)) == (2, 1)
    assert message in rejected[0].reason

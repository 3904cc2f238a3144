"""Lists of numbers and strings in rows of text, through the whole job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.beam_jobs.texts import convert, list_kinds, records
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import open_dataset

ROWS: list[dict[str, Any]] = [
    {"text": "x", "ids": [3, -4], "v": [0.5], "words": ["a", "é"]},
    {"text": "y", "ids": [], "v": [], "words": []},
]
FIELDS = ["--field=ids:ints", "--field=v:floats", "--field=words:strings"]
EXPECTED: list[dict[str, Any]] = [
    {"ids": [3, -4], "v": [0.5], "words": [b"a", "é".encode()]},
    {"ids": [], "v": [], "words": []},
]


def write_rows(folder: Path, form: str) -> Path:
    path = folder / f"a.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif form == "csv":
        path.write_text("ids,v,words\n3 -4,0.5,a é\n,,\n")
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_stores_lists_of_any_length(tmp_path: Path, form: str) -> None:
    assert convert(write_rows(tmp_path, form), tmp_path / "out", *FIELDS, "--no-shuffle") == 0
    assert [{name: list(row[name]) for name in row} for row in records(tmp_path / "out")] == EXPECTED
    assert {one.name: one.shape for one in open_dataset(str(tmp_path / "out")).manifest.features} == {
        "ids": (None,),
        "v": (None,),
        "words": (None,),
    }


def test_stores_lists_next_to_tokens(tmp_path: Path) -> None:
    flags = ["--field=text", *FIELDS, "--tokenizer=bytes", "--no-shuffle"]
    assert convert(write_rows(tmp_path, "jsonl"), tmp_path / "out", *flags) == 0
    found = [{name: list(row[name]) for name in row} for row in records(tmp_path / "out")]
    assert found == [{"input_ids": [120], **EXPECTED[0]}, {"input_ids": [121], **EXPECTED[1]}]


@pytest.mark.parametrize("flags", [[], ["--field=text", "--tokenizer=bytes"]])
def test_empty_lists_have_the_kind_of_their_field(tmp_path: Path, flags: list[str]) -> None:
    assert convert(write_rows(tmp_path, "jsonl"), tmp_path / "out", *FIELDS, *flags) == 0
    found = {name: list_kinds(tmp_path / "out", name) for name in ("ids", "v", "words")}
    assert found == {"ids": {"int64_list"}, "v": {"float_list"}, "words": {"bytes_list"}}


def test_a_field_of_input_ids_makes_the_layout_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    assert convert(tmp_path / "a.jsonl", tmp_path / "out", "--field=input_ids:ints") == 0
    assert open_dataset(str(tmp_path / "out")).manifest.layout == "tokens"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[1, null]", "hole: item 1"),
        ("[1, [2]]", "whole number"),
        ("[1.5]", "whole number"),
        ("7", "is not a list"),
        ("null", "no value"),
    ],
)
def test_rejects_lists_with_nulls_or_other_types(tmp_path: Path, value: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"ids": {value}}}\n')
    with pytest.raises(BadRecordError, match=reason):
        convert(tmp_path / "a.jsonl", tmp_path / "out", "--field=ids:ints")


def test_rejects_a_list_of_parquet_for_a_field_of_one_value(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="unsupported type"):
        convert(write_rows(tmp_path, "parquet"), tmp_path / "out", "--field=text", "--field=ids:int")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--field=ids:ints", "--tokenizer=bytes"], "none of ids is text"),
        (["--field=ids:ints", "--dedup"], "none of ids is text"),
        (["--field=ids:ints", "--form=lines"], "none of ids is text"),
        (["--field=text", "--field=ids:ints=0"], "a list field takes no default for missing values"),
    ],
)
def test_rejects_lists_where_a_text_is_needed(tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(write_rows(tmp_path, "jsonl"), tmp_path / "out", *flags)

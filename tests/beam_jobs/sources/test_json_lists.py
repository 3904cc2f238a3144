"""Lists of JSON lines and JSON arrays.

Tests make pieces of a file and blocks of rows small, because a conversion divides only large lists.
"""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.images import run
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.lists.list_file import detect_list, read_columns
from tests.beam_jobs.sources.inputs import (
    extras,
    jpeg,
    listed_and_rejected,
    opened,
    summary,
    write_list,
)
from tpudata.errors import SourceError
from tpudata.format import open_dataset


def test_reads_values_of_jsonl_with_their_types(tmp_path: Path) -> None:
    rows = [
        {"path": "0.jpg", "label": "cat", "split": "train", "n": 1, "s": "7", "f": 1},
        {"path": "1.jpg", "label": ["dog", "cat"], "split": "test", "n": True, "f": 0.5},
        {"path": "2.jpg", "label": [], "split": "train", "n": 0.25, "s": None, "f": 2},
    ]
    path = write_list(tmp_path, "\n\n".join(map(json.dumps, rows)), name="list.jsonl")
    source = opened(path)
    assert summary(source) == {
        "0.jpg": ("train", ("cat",), jpeg(0)),
        "1.jpg": ("test", ("dog", "cat"), jpeg(1)),
        "2.jpg": ("train", (), jpeg(2)),
    }
    assert source.several_labels
    assert [(feature.name, feature.kind) for feature in source.features] == [
        ("f", "float"),
        ("n", "float"),
        ("s", "bytes"),
    ]
    assert extras(path)[:2] == [{"f": 1.0, "n": 1.0, "s": "7"}, {"f": 0.5, "n": 1.0, "s": ""}]


@settings(max_examples=50)
@given(texts=st.lists(st.text(), min_size=1, max_size=10), block=st.integers(1, 80), ascii_only=st.booleans())
def test_lists_each_jsonl_row_once_for_any_block_size(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], block: int, ascii_only: bool
) -> None:
    folder = tmp_path_factory.mktemp("jsonl")
    (folder / "1.jpg").write_bytes(b"x")
    rows = [
        json.dumps({"path": "./" * number + "1.jpg", "class": "c", "t": text}, ensure_ascii=ascii_only)
        for number, text in enumerate(texts)
    ]
    (folder / "list").write_text("\n".join(rows), encoding="utf-8", newline="")
    assert [row["t"] for row in extras(folder / "list", block_bytes=block)] == texts


@settings(max_examples=50)
@given(
    texts=st.lists(st.text(), min_size=1, max_size=10),
    block=st.integers(1, 80),
    indent=st.sampled_from([None, 0, 2]),
)
def test_lists_each_array_element_once_for_any_block_size(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], block: int, indent: int | None
) -> None:
    folder = tmp_path_factory.mktemp("array")
    (folder / "1.jpg").write_bytes(b"x")
    rows = [{"path": "./" * number + "1.jpg", "class": "c", "t": text} for number, text in enumerate(texts)]
    (folder / "list").write_text(json.dumps(rows, indent=indent), encoding="utf-8", newline="")
    assert [row["t"] for row in extras(folder / "list", block_bytes=block)] == texts


@pytest.mark.parametrize("array", [False, True])
def test_names_the_line_of_a_column_without_a_name(tmp_path: Path, array: bool) -> None:
    lines = [json.dumps({"path": "0.jpg", "label": "c"}), json.dumps({"path": "1.jpg", "label": "c", "": "x"})]
    path = write_list(tmp_path, "[" + ",\n".join(lines) + "]" if array else "\n".join(lines), name="list.json")
    with pytest.raises(SourceError, match=r"list\.json line 2: a column has no name"):
        opened(path)


def test_errors_name_the_line_of_an_array_element(tmp_path: Path) -> None:
    rows = [{"path": f"{number}.jpg", "label": "c"} for number in range(3)]
    path = write_list(tmp_path, json.dumps([*rows, {"path": "9.jpg", "label": "c"}], indent=1), name="list.json")
    for block in (1, 1 << 20):
        _, (error,) = listed_and_rejected(opened(path, block_bytes=block))
        assert error.source == f"{path} line 17"


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize("block", [1, 1 << 20])
def test_counts_lines_with_commas_on_lines_after_their_elements(tmp_path: Path, piece: int, block: int) -> None:
    text = '[\n{"path": "7.jpg"},\n{"path":\n"8.jpg"}\n\n,\n{"path": "9.jpg"}\n\n]\n'
    path = write_list(tmp_path, text, name="list.json")
    said = SourceOptions(unlabelled=True)
    # Blocks are cut from these rows.
    with detect_list(str(path), said).open(piece) as (_, rows), detect_list(str(path), said).open() as (_, others):
        found = list(rows)
        assert found == list(others)
    assert [row.line for row in found] == [2, 4, 7]
    _, errors = listed_and_rejected(opened(path, said, block_bytes=block))
    assert [error.source for error in errors] == [f"{path} line {line}" for line in (2, 4, 7)]


def test_finds_columns_of_a_one_line_array_without_reading_all_of_it(tmp_path: Path) -> None:
    rows = [{"path": f"{number}.jpg", "note": "x" * 50_000} for number in range(200)]
    path = write_list(tmp_path, json.dumps(rows), images=0, name="list.json")
    tracemalloc.start()
    try:
        assert read_columns(detect_list(str(path), SourceOptions())) == ("path", "note")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 4


def test_list_columns_take_the_kind_of_their_widest_item(tmp_path: Path) -> None:
    rows = [
        {"path": "0.jpg", "label": "cat", "ids": [1, 2], "box": [0, 0.5], "tags": ["a", "", "é"], "mixed": [1, "x"]},
        {"path": "1.jpg", "label": "cat", "ids": [], "box": [1, 2], "tags": [], "mixed": []},
        {"path": "2.jpg", "label": "cat", "box": None, "tags": ["b"], "mixed": ["y"], "late": [0.25]},
    ]
    path = write_list(tmp_path, "\n".join(map(json.dumps, rows)), name="list.jsonl")
    assert [(feature.name, feature.kind, feature.shape) for feature in opened(path).features] == [
        ("box", "float", (None,)),
        ("ids", "int64", (None,)),
        ("late", "float", (None,)),
        ("mixed", "bytes", (None,)),
        ("tags", "bytes", (None,)),
    ]
    assert extras(path) == [
        {"box": [0.0, 0.5], "ids": [1, 2], "late": [], "mixed": ["1", "x"], "tags": ["a", "", "é"]},
        {"box": [1.0, 2.0], "ids": [], "late": [], "mixed": [], "tags": []},
        {"box": [], "ids": [], "late": [0.25], "mixed": ["y"], "tags": ["b"]},
    ]
    # Declared to be text, a list is stored as it would be written.
    assert extras(path, SourceOptions(column_types={"box": "str"}))[0]["box"] == "[0, 0.5]"


def test_stores_lists_in_records(tmp_path: Path) -> None:
    rows = [{"path": f"{n}.jpg", "label": "cat", "ids": list(range(n)), "box": [n / 4] * 2} for n in range(3)]
    path = write_list(tmp_path, "\n".join(map(json.dumps, rows)), name="list.jsonl")
    assert run(["--input", str(path), "--output", str(tmp_path / "out"), "--no-shuffle"]) == 0
    found = list(open_dataset(str(tmp_path / "out")).examples("train"))
    assert [(record["ids"], record["box"]) for record in found] == [
        ([], [0, 0]),
        ([0], [0.25, 0.25]),
        ([0, 1], [0.5, 0.5]),
    ]


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ([1], 2, r"line 1: column 'x' is a list, and at .*line 2 it is not"),
        ("a", ["b"], r"line 2: column 'x' is a list, and at .*line 1 it is not"),
        ([1, None], [2], r"line 1: column 'x' has a list whose item 1 is null"),
        ([[1]], [2], r"line 1: column 'x' is \[1\] \(expected a number"),
        ([0.5], [2**24 + 1], r"line 2: column 'x' is 16777217, which would become 16777216 in float32"),
        ([2**63], [1], r"line 1: column 'x' is 9223372036854775808, which does not fit int64"),
    ],
)
def test_rejects_lists_that_fit_no_column(tmp_path: Path, one: object, two: object, message: str) -> None:
    rows = [{"path": f"{n}.jpg", "label": "cat", "x": value} for n, value in enumerate((one, two))]
    path = write_list(tmp_path, "\n".join(map(json.dumps, rows)), name="list.jsonl")
    with pytest.raises(SourceError, match=message):
        opened(path)

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpudata
from beam_jobs.references.labels import Labels
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import (
    converted,
    extras,
    jpeg,
    listed,
    listed_and_rejected,
    opened,
    summary,
    units,
    write_files,
    write_list,
)
from tpudata.errors import SourceError, UsageError
from tpudata.format import Feature, open_dataset

CELLS = st.text(st.sampled_from('ab,"\n\r;\té '), max_size=8)


@settings(max_examples=200)
@given(
    cells=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12),
    block=st.integers(1, 60),
    ending=st.sampled_from(["\n", "\r\n"]),
    bom=st.booleans(),
    last_end=st.booleans(),
)
def test_lists_each_csv_row_once_for_any_block_size(
    tmp_path_factory: pytest.TempPathFactory,
    cells: list[tuple[str, str]],
    block: int,
    ending: str,
    bom: bool,
    last_end: bool,
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    (folder / "1.jpg").write_bytes(b"x")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator=ending, quoting=csv.QUOTE_ALL)
    writer.writerow(["path", "label", "note", "more"])
    # Different spellings of one path are different keys, and each is there.
    for number, (one, other) in enumerate(cells):
        writer.writerow(["./" * number + "1.jpg", "cat", "t" + one, "t" + other])
    text = buffer.getvalue() if last_end else buffer.getvalue().removesuffix(ending)
    (folder / "list.csv").write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
    source = opened(folder / "list.csv", block_bytes=block)
    assert all(unit.end - unit.start <= block for unit in units(source)[:-1]) or block < 200
    found = [reference.features for reference in listed(source)]
    assert found == [{"more": "t" + other, "note": "t" + one} for one, other in cells]
    # The whole file is in blocks that touch.
    blocks = units(source)
    assert all(one.end == other.start for one, other in itertools.pairwise(blocks))
    assert blocks[-1].end == (folder / "list.csv").stat().st_size


def test_reads_splits_and_further_columns_of_csv(tmp_path: Path) -> None:
    path = write_list(
        tmp_path,
        "path,label,split,age,score,code\n"
        "0.jpg,cat,train,3,0.5,007\n"
        '"1.jpg","dog, big",validation,4,1,x\n'
        f"{tmp_path}/2.jpg,cat,train,-5,.25,\n",
    )
    source = opened(path)
    assert summary(source) == {
        "0.jpg": ("train", ("cat",), jpeg(0)),
        "1.jpg": ("validation", ("dog, big",), jpeg(1)),
        f"{tmp_path}/2.jpg": ("train", ("cat",), jpeg(2)),
    }
    assert source.labels == Labels(("cat", "dog, big"))
    assert (source.has_classes, source.several_labels, source.integer_labels) == (True, False, False)
    assert source.features == (
        Feature("age", "int64", "int64"),
        Feature("code", "bytes", "string", encoding="utf8"),
        Feature("score", "float", "float32"),
    )
    assert extras(path) == [
        {"age": 3, "score": 0.5, "code": "007"},
        {"age": 4, "score": 1.0, "code": "x"},
        {"age": -5, "score": 0.25, "code": ""},
    ]


def test_accepts_the_split_names_that_folders_have(tmp_path: Path) -> None:
    names = {"train": "TRAIN training", "validation": "Val vaL VAL", "test": "Testing", "extra": "extra"}
    written = [(split, name) for split, spelled in names.items() for name in spelled.split()][1:]
    rows = "".join(f"{number}.jpg,cat,{name}\n" for number, (_, name) in enumerate(written))
    path = write_list(tmp_path / "in", f"path,label,split\n{rows}", images=len(written))
    assert [reference.split for reference in listed(opened(path))] == [split for split, _ in written]
    for split, name in written:
        if split != "extra":
            write_files(
                tmp_path / name,
                {f"{name}/cat/0.jpg": jpeg(0), f"{'test' if split != 'test' else 'dev'}/cat/1.jpg": b""},
            )
            assert split in {reference.split for reference in listed(opened(tmp_path / name))}
    path.write_text("path,label,split\n0.jpg,cat,val\n1.jpg,cat,train\n2.jpg,cat,DEV\n")
    with pytest.raises(SourceError, match=r"line 4: split 'DEV', and .*line 2 has 'val'; both stand for validation"):
        opened(path)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2", "0"], "int64"),
        (["1", "2.5", "3"], "float"),
        (["1.0", "", "3"], "float"),
        (["1", "x", "3"], "bytes"),
        (["01", "2", "3"], "bytes"),
        (["123456789012345678901", "2", "3"], "bytes"),
        (["", "", ""], "bytes"),
        (["1_0", "2", "3"], "bytes"),
        (["1e3", "+2", "-.5"], "float"),
        (["9223372036854775807", "-9223372036854775808", "0"], "int64"),
    ],
)
def test_columns_take_the_narrowest_kind_that_fits_all_values(tmp_path: Path, values: list[str], kind: str) -> None:
    rows = "".join(f"{number}.jpg,cat,{value}\n" for number, value in enumerate(values))
    path = write_list(tmp_path, f"path,label,x\n{rows}")
    assert [feature.kind for feature in opened(path).features] == [kind]
    for value, row in zip(values, extras(path), strict=True):
        got = row["x"]
        if kind == "bytes":
            assert got == value
        elif value:
            assert isinstance(got, int if kind == "int64" else float)
            assert got == (int(value) if kind == "int64" else float(value))
        else:
            assert isinstance(got, float)
            assert math.isnan(got)


def test_reads_columns_as_declared(tmp_path: Path) -> None:
    path = write_list(tmp_path, "path,label,x,y\n0.jpg,cat,007,5\n")
    assert extras(path, SourceOptions(column_types={"x": "int", "y": "str"})) == [{"x": 7, "y": "5"}]
    assert extras(path, SourceOptions(column_types={"x": "float"})) == [{"x": 7.0, "y": 5}]
    with pytest.raises(UsageError, match="no extra column 'z'"):
        opened(path, SourceOptions(column_types={"z": "int"}))
    path.write_text("path,label,x\n0.jpg,cat,True\n")
    with pytest.raises(SourceError, match="is 'True'; --column-types says int"):
        opened(path, SourceOptions(column_types={"x": "int"}))
    path.write_text("path,label,x\n0.jpg,cat,3\n1.jpg,cat,2.5\n")
    with pytest.raises(SourceError, match=r"list\.csv line 3: column 'x' is '2\.5'; --column-types says int"):
        opened(path, SourceOptions(column_types={"x": "int"}))


ID = 1234567890123


@pytest.mark.parametrize("typed", [False, True], ids=["csv", "jsonl"])
def test_rejects_a_missing_whole_number_without_a_declared_default(tmp_path: Path, typed: bool) -> None:
    if typed:
        rows = [{"path": "0.jpg", "label": "c", "id": ID}, {"path": "1.jpg", "label": "c", "id": None}]
        path = write_list(tmp_path, "\n".join(map(json.dumps, [*rows, {"path": "2.jpg", "label": "c"}])))
    else:
        path = write_list(tmp_path, f"path,label,id\n0.jpg,c,{ID}\n1.jpg,c,\n2.jpg,c,\n")
    where = rf"list\.csv line {2 if typed else 3}: column 'id'"
    with pytest.raises(SourceError, match=f"{where} has no value.*id=int=0"):
        opened(path)
    with pytest.raises(SourceError, match=f"{where} has no value; --column-types says int"):
        opened(path, SourceOptions(column_types={"id": "int"}))
    with pytest.raises(SourceError, match=r"line \d: column 'id' is 1234567890123, which would become 1234567954432"):
        opened(path, SourceOptions(column_types={"id": "float"}))
    declared = SourceOptions(column_types={"id": "int=-1"})
    assert opened(path, declared).features == (Feature("id", "int64", "int64"),)
    assert extras(path, declared) == [{"id": ID}, {"id": -1}, {"id": -1}]
    assert extras(path, SourceOptions(column_types={"id": "str=none"}))[1:] == [{"id": "none"}, {"id": "none"}]
    tpudata.convert_images(path, tmp_path / "out", column_types={"id": "int=-1"})
    assert sorted(example["id"][0] for example in open_dataset(str(tmp_path / "out")).examples("train")) == [-1, -1, ID]


def test_rejects_a_key_that_earlier_rows_lack(tmp_path: Path) -> None:
    rows = [{"path": "0.jpg", "label": "c"}, {"path": "1.jpg", "label": "c", "id": 7}]
    path = write_list(tmp_path, "\n".join(map(json.dumps, rows)))
    with pytest.raises(SourceError, match=r"list\.csv line 1: column 'id' has no value"):
        opened(path)


@pytest.mark.parametrize(
    ("values", "line", "message"),
    [
        (["0.5", "1234567890123", "2"], 3, "is 1234567890123, which would become 1234567954432 in float32"),
        (["0.5", "1700000000.75", "2"], 3, r"is 1700000000\.75, which would become 1700000000\.0 in float32"),
        (["16777217", "0.5", ""], 2, "is 16777217, which would become 16777216 in float32"),
        (["0.5", "1e39", "2"], 3, "is 1e39, which is too large for float32"),
        (["0.5", "1e400", "2"], 3, "is 1e400, which is too large for float32"),
    ],
)
def test_rejects_numbers_that_float32_changes(tmp_path: Path, values: list[str], line: int, message: str) -> None:
    rows = "".join(f"{number}.jpg,cat,{value}\n" for number, value in enumerate(values))
    path = write_list(tmp_path, f"path,label,x\n{rows}")
    with pytest.raises(SourceError, match=rf"list\.csv line {line}: column 'x' {message}.*x=str"):
        opened(path)
    assert [row["x"] for row in extras(path, SourceOptions(column_types={"x": "str"}))] == values
    if "large" in message:
        return
    # An explicit float32 is rounded.
    rounded = extras(path, SourceOptions(column_types={"x": "float32"}))
    assert [row["x"] for row in rounded][:2] == [float(value) for value in values[:2]]


def test_accepts_measured_numbers_as_floats(tmp_path: Path) -> None:
    path = write_list(tmp_path, "path,label,x\n0.jpg,c,33554432\n1.jpg,c,0.1\n2.jpg,c,6.02214076e23\n")
    assert [row["x"] for row in extras(path)] == [33554432.0, 0.1, 6.02214076e23]


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"x": "int=0.5"}, r"--column-types: x=int=0\.5: '0\.5' is not a whole number that fits int64"),
        ({"x": "int="}, "'' is not a whole number"),
        ({"x": "int=9223372036854775808"}, "fits int64"),
        ({"x": "float=x"}, "'x' is not a number"),
        ({"x": "float=16777217.5"}, r"would become 16777218\.0"),
        ({"x": "double=1"}, "x is 'double=1'; allowed are int, float, float32, str"),
    ],
)
def test_rejects_default_values_of_another_kind(types: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SourceOptions(column_types=types)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,label\n0.jpg,cat\n1.jpg\n",
            r"line 3: 1 cell \(expected 2 columns as in the first row: path, label\)\. Fix",
        ),
        ("path,label\n0.jpg,cat,x\n", "line 2: 3 cells"),
        ('path,label\n0.jpg,"cat\n1.jpg,dog\n', "line 3: not CSV"),
        ("0.jpg,cat\n1.jpg,dog\n", r"'0\.jpg', 'cat'.*--label-column"),
        ("path,file,label\n0.jpg,1.jpg,cat\n", "'path' and 'file' could all be meant"),
        ("path,lable\n0.jpg,cat\n", "none of label, class.*--label-column.*--unlabelled"),
        ("path,label,label\n0.jpg,cat,cat\n", "'label' comes twice"),
        ("path,label\n0.jpg,caf\xe9\n".encode("latin-1"), "line 2: byte 9 of the row is not UTF-8"),
        ("path,label\n0.jpg,cat\n".encode("utf-16"), "UTF-16"),
        ("path,label,split\n0.jpg,cat,\n", "line 2: split ''"),
        ("path,label,split\n0.jpg,cat,train/a\n", "line 2: split 'train/a'"),
        ("path,label\n0.jpg,cat\n1.jpg,cat\n0.jpg,dog\n", "line 4 and .*line 2 have the same path '0.jpg'"),
        ("path,label,split\n0.jpg,cat,train\n0.jpg,cat,test\n", "line 3 and .*line 2 have the same path"),
        ('{"path": "0.jpg", "label": "cat"}\n{"path": "1.jpg"\n', "line 2: not JSON"),
        ('{"path": "0.jpg", "label": "cat"}\n[1]\n', "line 2: a JSON list"),
        (
            '{"path": "0.jpg", "label": "cat", "x": {"y": 1}}\n',
            "line 1: column 'x' is .*a number, a string, true, false or",
        ),
        ('{"path": "0.jpg", "label": "cat", "x": 9223372036854775808}\n', "does not fit int64"),
        ('{"path": "0.jpg", "label": ' + "1" * 5000 + "}", "line 1: not JSON: it has an integer of too many digits"),
        ('{"path": "0.jpg", "label": ' + "[" * 100_000, "line 1: not JSON: it is nested too deep"),
        ('{"path": "0.jpg", "label": "cat", "x": ' + "[" * 900 + "]" * 900 + "}", "line 1: column 'x' is "),
        ('[{"path": "0.jpg", "label": "cat"}', "not a JSON array: the file ends inside it|has no end|ends"),
        ('[{"path": "0.jpg", "label": "cat"},\n 7]', "line 2: a JSON int"),
        ('[{"path": "0.jpg",\n "label": cat}]', "line 2: not JSON"),
        ("[]", "has no rows"),
        (
            "path,label\n0.jpg,cat\r1.jpg,dog\n",
            "line 2: not CSV: a CR without LF outside of quotes; save the file with",
        ),
        ("path,label\r0.jpg,cat\r1.jpg,dog\r", "line 1: not CSV: a CR without LF outside of quotes"),
        ('path\tlabel\n0.jpg\t"cat\n', r"line 2: not CSV: a quote is not closed.*pass --raw-tsv"),
        ("", "is empty"),
    ],
)
def test_rejects_damaged_lists(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write_list(tmp_path, text)
    with pytest.raises(SourceError, match=message):
        opened(path)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("path,label\n0.jpg,cat\nnone.jpg,cat\n1.jpg,dog\n", 3, "its file does not exist: none.jpg"),
        ("path,label\n0.jpg,cat\n.,cat\n1.jpg,dog\n", 3, "its file is a folder: ."),
        # It would be read without end, and a pipe waited for.
        (
            "path,label\n0.jpg,cat\n/dev/zero,cat\n1.jpg,dog\n",
            3,
            "its file cannot be read: /dev/zero: neither a file",
        ),
        (
            "path,label\n0.jpg,cat\nnone://a/b,cat\n1.jpg,dog\n",
            3,
            "its file cannot be read: none://a/b: no storage",
        ),
        ("path,label\n0.jpg,cat\n,cat\n1.jpg,dog\n", 3, "column 'path' has no path: \"\""),
        ("path,label\n0.jpg,cat\n2.jpg,\n1.jpg,dog\n", 3, "column 'label' is not a label: it is \"\""),
        ('{"path":"0.jpg","label":"cat"}\n{"path":"2.jpg","label":1.5}\n{"path":"1.jpg","label":"dog"}\n', 2, "is 1.5"),
        (
            '{"path":"0.jpg","label":"cat"}\n{"path":"\\ud800","label":"cat"}\n{"path":"1.jpg","label":"dog"}\n',
            2,
            "column 'path' is not Unicode",
        ),
        (
            '{"path":"0.jpg","label":"cat"}\n{"path":"\\u0000","label":"cat"}\n{"path":"1.jpg","label":"dog"}\n',
            2,
            "its file does not exist",
        ),
        ('{"path":"0.jpg","label":"cat"}\n{"path":"2.jpg"}\n{"path":"1.jpg","label":"dog"}\n', 2, "is null"),
    ],
)
def test_rejects_bad_rows_or_skips_them(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = write_list(tmp_path, text)
    with pytest.raises(SourceError, match=rf"list\.csv line {line}: rejected: .*{reason}"):
        listed(opened(path))
    found, rejected = listed_and_rejected(opened(path))
    assert [reference.key for reference in found] == ["0.jpg", "1.jpg"]
    assert [error.source for error in rejected] == [f"{path} line {line}"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("raw", [False, True])
# With a byte order mark, the first rows are split one by one.
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_rejects_a_row_of_empty_cells_and_skips_blank_lines(
    tmp_path: Path, delimiter: str, raw: bool, mark: str
) -> None:
    text = f"{mark},\npath,label\n\n0.jpg,cat\n,\n  \n , \n1.jpg,dog\n"
    path = write_list(tmp_path, text.replace(",", delimiter))
    found, rejected = listed_and_rejected(opened(path, SourceOptions(raw_tsv=raw)))
    assert [reference.key for reference in found] == ["0.jpg", "1.jpg"]
    assert [error.source for error in rejected] == [f"{path} line 5", f"{path} line 7"]
    assert all("column 'path' has no path" in str(error) for error in rejected)


def test_options_name_the_columns(tmp_path: Path) -> None:
    path = write_list(tmp_path, "where;what;label;part\n0.jpg;cat;5;test\n")
    said = SourceOptions(path_column="where", label_column="what", split_column="part")
    assert summary(opened(path, said)) == {"0.jpg": ("test", ("cat",), jpeg(0))}
    assert extras(path, said) == [{"label": 5}]
    with pytest.raises(UsageError, match=r"--label-column: .* no column 'labl'.*did you mean label"):
        opened(path, SourceOptions(path_column="where", label_column="labl"))
    assert summary(opened(path, SourceOptions(path_column="where", unlabelled=True))) == {
        "0.jpg": ("train", (), jpeg(0))
    }


def test_rejects_the_split_flag_next_to_a_split_column(tmp_path: Path) -> None:
    path = write_list(tmp_path, "path\tlabel\tsplit\n0.jpg\tcat\ttrain\n")
    with pytest.raises(UsageError, match=r"--split: .* in its column 'split'"):
        opened(path, split="train=0.5,test=0.5")


def test_several_lists_share_classes_and_types(tmp_path: Path) -> None:
    write_list(tmp_path / "a", "path,label,x\n0.jpg,cat,1\n", images=1)
    write_list(tmp_path / "b", "path,label,x\n../b/0.jpg,dog,2.5\n", images=1)
    source = opened(f"{tmp_path}/*/list.csv")
    assert source.labels == Labels(("cat", "dog"))
    assert [reference.features for reference in listed(source)] == [{"x": 1.0}, {"x": 2.5}]
    (tmp_path / "b" / "list.csv").write_text("file,label,x\n0.jpg,dog,2\n")
    with pytest.raises(SourceError, match="have different columns"):
        opened(f"{tmp_path}/*/list.csv")
    (tmp_path / "b" / "list.csv").write_text('{"path": "0.jpg", "label": "dog"}\n')
    with pytest.raises(SourceError, match="CSV and JSONL"):
        opened(f"{tmp_path}/*/list.csv")


def test_rejects_an_empty_list_among_others(tmp_path: Path) -> None:
    write_list(tmp_path, "path,label\n0.jpg,cat\n")
    empty = write_list(tmp_path, "", name="z.csv")
    with pytest.raises(SourceError, match=f"{empty}.*is empty"):
        opened(tmp_path / "*.csv")


def test_converts_a_list(tmp_path: Path) -> None:
    path = write_list(tmp_path / "in", "path,label,split\n0.jpg,dog,train\n1.jpg,cat,train\n2.jpg,dog,test\n")
    assert converted(path, tmp_path / "out") == {
        "test": {b"2.jpg": (1, jpeg(2))},
        "train": {b"0.jpg": (1, jpeg(0)), b"1.jpg": (0, jpeg(1))},
    }


def test_converts_several_labels_and_extra_columns(tmp_path: Path) -> None:
    rows = [
        {"path": "0.jpg", "label": ["dog", "cat"], "age": 3, "note": "né"},
        {"path": "1.jpg", "label": [], "age": 4, "note": "b"},
        {"path": "2.jpg", "label": "dog", "age": -1},
    ]
    path = write_list(tmp_path / "in", "\n".join(map(json.dumps, rows)))
    tpudata.convert_images(path, tmp_path / "out")
    examples = {
        example["image/filename"][0]: example for example in open_dataset(str(tmp_path / "out")).examples("train")
    }
    names = ("image/class/label", "image/class/text", "age", "note")
    assert {key: [example[name] for name in names] for key, example in examples.items()} == {
        b"0.jpg": [[1, 0], [b"dog", b"cat"], [3], ["né".encode()]],
        b"1.jpg": [[], [], [4], [b"b"]],
        b"2.jpg": [[1], [b"dog"], [-1], [b""]],
    }


def test_rejects_a_list_truncated_during_a_run(tmp_path: Path) -> None:
    path = write_list(tmp_path, "path,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,cat\n")
    source = opened(path)
    path.write_text("path,label\n0.jpg,cat\n1.jpg,dog\n")
    with pytest.raises(SourceError, match=r"list.csv was cut during the run \(got 20 bytes at byte 11, expected 30\)"):
        listed(source)


def test_raw_tsv_keeps_quotes(tmp_path: Path) -> None:
    write_files(tmp_path, {'"0.jpg': jpeg(0), "1.jpg": jpeg(1)})
    path = tmp_path / "list.tsv"
    path.write_text('path\tlabel\n"0.jpg\tcat "x"\n1.jpg\tdog')
    found = listed(opened(path, SourceOptions(raw_tsv=True)))
    assert [(reference.key, reference.labels) for reference in found] == [('"0.jpg', ('cat "x"',)), ("1.jpg", ("dog",))]

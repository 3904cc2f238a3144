"""From files of any form to documents: the same ones for any compression and line ends."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import zstandard
from pyarrow import parquet

import tpudata
from beam_jobs import text
from tests.beam_jobs.outcomes import convert_texts
from tests.beam_jobs.pipelines import run_with_limits
from tpudata.errors import CorruptionError, SourceError, TpudataError, UsageError

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
FIELDS = ["text", "label:int"]
ROWS: list[tuple[str, int]] = [("plain", 1), ('quo"ted, é', -2), ("two\nlines\r\n😀", 3), ("", 4), ("\ttab", 5)]


def rows_as(suffix: str, rows: Iterable[tuple[str, int]]) -> bytes:
    table = [dict(zip(("text", "label"), row, strict=True)) for row in rows]
    if suffix == ".parquet":
        return parquet_bytes({name: [row[name] for row in table] for name in ("text", "label")}, row_group_size=2)
    if suffix == ".csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, ("text", "label"))
        writer.writeheader()
        writer.writerows(table)
        return buffer.getvalue().encode()
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in table).encode()


def parquet_bytes(columns: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), file, **options)
    return file.getvalue()


def test_reads_the_same_rows_from_every_form_and_compression(tmp_path: Path) -> None:
    files = {
        f"{packing[1:] or 'plain'}/a{suffix}{packing}": pack(rows_as(suffix, ROWS))
        for packing, pack in PACKERS.items()
        for suffix in (".jsonl", ".csv", ".parquet")
        if not (packing and suffix == ".parquet")
    }
    texts = convert_texts(tmp_path, files, fields=FIELDS)
    assert not texts.rejects
    assert len(texts.records) == len(ROWS) * len(files)
    places: dict[str, set[tuple[str, ...]]] = {}
    for packing in PACKERS:
        for suffix in (".jsonl", ".csv", ".parquet"):
            name = f"{packing[1:] or 'plain'}/a{suffix}"
            if f"{name}{packing}" in files:
                rows = [*zip(texts.of(name), texts.of(name, "label"), strict=True)]
                assert rows == ROWS, name
                keys = tuple(key.partition(":")[2] for key in texts.records if key.startswith(f"{name}:"))
                places.setdefault(suffix, set()).add(keys)
    # Keys are the same, however a file is compressed.
    assert all(len(keys) == 1 for keys in places.values())


def test_finds_raw_tab_separated_rows(tmp_path: Path) -> None:
    mixer, files, expected = random.Random(0), {}, {}
    for number in range(60):
        end, texts = (
            mixer.choice(["\n", "\r\n"]),
            ["".join(mixer.choices('aé日😀 ,"', k=mixer.randrange(12))) for _ in range(12)],
        )
        lines = ["text\tlabel", *(f"{text}\t{label}" for label, text in enumerate(texts))]
        mark = b"\xef\xbb\xbf" if number % 3 == 0 else b""
        files[f"{number}.tsv"] = mark + (end.join(lines) + end * (number % 2)).encode()
        expected[f"{number}.tsv"] = texts
    found = convert_texts(tmp_path, files, fields=FIELDS, form="raw-tsv")
    assert not found.rejects
    for name, wanted in expected.items():
        assert found.of(name) == wanted
        assert found.of(name, "label") == [*range(12)]


def test_reads_tsv_by_the_rules_of_csv_unless_raw(tmp_path: Path) -> None:
    rows = [("plain", 1), ('quo"ted', 2), ("two\r\nlines", 3), ("ta\tb", 4), ("one\rcr", 5)]
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter="\t").writerows([("text", "label"), *rows])
    quotes = b'text\tlabel\n"a" b\t1\n"\t2\n'
    texts = convert_texts(tmp_path / "csv", {"a.tsv": buffer.getvalue().encode(), "b.tsv": quotes}, fields=FIELDS)
    assert [*zip(texts.of("a.tsv"), texts.of("a.tsv", "label"), strict=True)] == rows
    reason = texts.rejects["b.tsv", 11]
    assert "after the closing quote of cell 1; if quotes" in reason
    assert "pass --form raw-tsv" in reason
    raw = convert_texts(tmp_path / "raw", {"b.tsv": quotes}, fields=FIELDS, form="raw-tsv")
    assert raw.of("b.tsv") == ['"a" b', '"']


@pytest.mark.parametrize(("delimiter", "form"), [(",", "csv"), (";", "csv"), ("\t", "tsv"), ("\t", "raw-tsv")])
@pytest.mark.parametrize("packing", ["", ".gz"])
def test_rows_of_empty_cells_are_documents_below_the_names_of_columns(
    tmp_path: Path, delimiter: str, form: str, packing: str
) -> None:
    # With and without a byte order mark, and with an empty first row.
    for number, begin in enumerate(("", "\ufeff", ",\n \n", "\ufeff,\n")):
        text = f"{begin}text,note\na,b\n,\n\n  \n , \r\nc,\n,"
        files = {f"a{packing}": PACKERS[packing](text.replace(",", delimiter).encode())}
        texts = convert_texts(tmp_path / str(number), files, fields=["text"], form=form)
        assert texts.of("a") == ["a", "", " ", "c", ""]


def test_reads_csv_by_the_same_rules_as_lists(tmp_path: Path) -> None:
    good = {
        "a.csv": ("\ufeff\n \n,\ntext,label\r\n\r\n a ,1\r\n", [" a "]),
        "b.csv": ('text,label\n"a\r",1\nb"c,2', ["a\r", 'b"c']),
        "c.csv": ("text,label\n" + "x" * 200_000 + ",1\n", ["x" * 200_000]),
    }
    bad = {
        "d.csv": ("text,label\na\rb,1\n", "a CR without LF outside of quotes"),
        "e.csv": ('text,label\n"a"\rb,1\n', "after the closing quote of cell 1"),
        "f.csv": ('text,label\n"a,1\n', "a quote is not closed"),
        "g.csv": ("text,label\na,1,2\n", "3 cells"),
    }
    files = {name: csv_text.encode() for name, (csv_text, _) in (good | bad).items()}
    texts = convert_texts(tmp_path, files, fields=FIELDS)
    for name, (_, expected) in good.items():
        assert texts.of(name) == expected
    for name, (_, reason) in bad.items():
        assert reason in texts.rejects[name, 11], name


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("auto", {3: "one", 8: "two", 18: "three"}),
        ("paragraphs", {3: "one\r\ntwo", 18: "three"}),
        ("files", {None: "one\r\ntwo\r\n\r\n \r\nthree\r\n"}),
    ],
)
def test_finds_lines_paragraphs_and_files(form: str, expected: dict[int | None, str], tmp_path: Path) -> None:
    data = "\ufeffone\r\ntwo\r\n\r\n \r\nthree\r\n".encode()
    files = {f"{packing[1:] or 'plain'}/a.txt{packing}": pack(data) for packing, pack in PACKERS.items()}
    # Files without documents; a byte order mark is nothing, too.
    files |= {"empty/a.txt": b"", "empty/b.txt": b"\xef\xbb\xbf", "empty/c.txt.gz": gzip.compress(b"\xef\xbb\xbf")}
    texts = convert_texts(tmp_path, files, form=form)
    for packing in PACKERS:
        name = f"{packing[1:] or 'plain'}/a.txt"
        keys = [name if place is None else f"{name}:{place}" for place in expected]
        assert [key for key in texts.records if key.split(":")[0] == name] == keys
        assert texts.of(name) == [*expected.values()]
    assert len(texts.records) == len(PACKERS) * len(expected)


@pytest.mark.parametrize("form", ["lines", "paragraphs", "files"])
def test_rejects_a_document_over_the_limit_by_file_and_byte(form: str, tmp_path: Path) -> None:
    data = b"x" * 50
    files = {"a.txt": data, "b.txt.gz": gzip.compress(data), "c.txt": b"short"}
    if form == "lines":
        files["d.txt"] = b"short\n" + data + b"\nshort\n"
    texts = convert_texts(tmp_path, files, form=form, document_bytes=10)
    reason = "larger than --document-bytes (got 50 bytes, expected at most 10"
    assert [text for name in ("c.txt", "d.txt") for text in texts.of(name)] == ["short"] * (3 if form == "lines" else 1)
    assert {name for name, _ in texts.rejects} == files.keys() - {"c.txt"}
    assert all(some.startswith(reason) for some in texts.rejects.values())
    if form == "lines":
        assert ("d.txt", 6) in texts.rejects


def convert(folder: Path, data: bytes, **options: Any) -> Any:
    """Convert one Parquet file."""
    folder.mkdir(exist_ok=True)
    (folder / "a.parquet").write_bytes(data)
    return tpudata.convert_text(folder / "a.parquet", folder / "out", **options)


GOOD = ["a"] * 300
UNREADABLE: dict[str, tuple[bytes, dict[str, Any], type[TpudataError], str]] = {
    "column": (parquet_bytes({"body": ["a"]}), {}, UsageError, "no column 'text'; it has 'body'"),
    "end": (parquet_bytes({"body": ["a"]})[:-2] + b"xx", {}, CorruptionError, "Parquet file is cut or damaged"),
    "list": (
        parquet_bytes({"text": ["a"], "label": [[1]]}),
        {"fields": FIELDS},
        SourceError,
        "column 'label' has an unsupported type (got list<element: int64>, expected",
    ),
    "struct": (
        parquet_bytes({"text": ["a"], "label": [{"a": 1}]}),
        {"fields": FIELDS},
        SourceError,
        "column 'label' has an unsupported type (got struct<a: int64>, expected",
    ),
    "twice": (
        parquet_bytes(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text", "text"])),
        {},
        SourceError,
        "column 'text' appears twice",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_rejects_unsupported_and_damaged_parquet(case: str, tmp_path: Path) -> None:
    data, options, kind, message = UNREADABLE[case]
    with pytest.raises(kind) as error:
        convert(tmp_path, data, dry_run=True, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# Over two row groups: the row is counted from the file's begin.
BAD_ROWS: dict[str, tuple[Any, str]] = {
    "a.parquet": ([*[b"a"] * 299, b"\xff"], "not UTF-8: column 'label', byte 0xff"),
    "b.parquet": (pa.array([*[b"a"] * 299, b"\xff"]).view(pa.string()), "not UTF-8: column 'label', byte 0xff"),
    "c.parquet": (
        pa.array([*[None] * 299, 2**62], pa.timestamp("us")),
        "a time cannot be read: column 'label', value out of range",
    ),
}


def test_rejects_rows_of_parquet_by_their_number(tmp_path: Path) -> None:
    files = {
        name: parquet_bytes({"text": GOOD, "label": column}, row_group_size=200)
        for name, (column, _) in BAD_ROWS.items()
    }
    # What is said of damage is one line, and the other files are read.
    damaged = bytearray(parquet_bytes({"text": ["a", "b"], "label": ["", ""]}))
    damaged[6:30] = b"\xff" * 24
    files |= {
        "d.parquet": bytes(damaged),
        "e.parquet": parquet_bytes({"text": ["a", "b" * 100], "label": ["", ""]}),
        "f.parquet": parquet_bytes({"text": pa.array(["a", "b", "a"]).dictionary_encode(), "label": ["", "", ""]}),
        "g.parquet": parquet_bytes({"text": ["é".encode()], "label": [""]}),
    }
    texts = convert_texts(tmp_path, files, fields=["text", "label:str="], document_bytes=50)
    for name, (_, reason) in BAD_ROWS.items():
        assert [some for (file, _), some in texts.rejects.items() if file == name] == [texts.rejects[name, None]]
        assert texts.rejects[name, None].startswith(reason)
        assert len(texts.of(name)) == 299
    assert "Parquet file is cut or damaged: column 'text': " in next(
        reason for (name, _), reason in texts.rejects.items() if name == "d.parquet"
    )
    assert "\n" not in "".join(texts.rejects.values())
    assert texts.rejects["e.parquet", None].startswith("larger than --document-bytes (got 10")
    assert [texts.of(name) for name in ("e.parquet", "f.parquet", "g.parquet")] == [["a"], ["a", "b", "a"], ["é"]]


def test_divides_a_large_parquet_file_by_row_groups(tmp_path: Path) -> None:
    columns = {"text": [f"text {n}" for n in range(100)]}
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(columns, row_group_size=9))
    flags = [f"--input={tmp_path}/a.parquet", f"--output={tmp_path}/out", "--no-shuffle", "--keep-key"]
    assert run_with_limits(text, flags, range_bytes=200) == 0
    examples = [*tpudata.open_dataset(f"{tmp_path}/out").examples("train")]
    assert [example["text"] for example in examples] == [[f"text {n}".encode()] for n in range(100)]
    assert [example["key"] for example in examples] == [[f"a.parquet:{n}".encode()] for n in range(100)]

"""From files of any form to documents: the same ones, whatever the parts, the compression and the line ends."""

from __future__ import annotations

import bz2
import csv
import dataclasses
import gzip
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.references.reading import read_reference
from beam_jobs.references.reference import WHOLE_FILE, Reference
from beam_jobs.sources.lists.list_file import list_file
from beam_jobs.sources.options import SourceOptions
from beam_jobs.text_files.document import TextFile, TextPart
from beam_jobs.text_files.document_form import RowForm
from beam_jobs.text_files.documents import document_blocks, text_parts
from beam_jobs.text_files.fields import TextField
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.values import DocumentError, Value, document_values
from tpudata.errors import BadRecordError, CorruptionError, SourceError, UsageError

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
TEXTS = TextOptions(fields=(TextField("text"), TextField("label", "str")))
FIELDS = TextOptions(fields=(TextField("text"), TextField("label", "int")))
ROWS: list[list[Value]] = [["plain", 1], ['quo"ted, é', -2], ["two\nlines\r\n😀", 3], ["", 4], ["\ttab", 5]]


class Document(NamedTuple):
    """One document of a block."""

    key: str
    offset: int
    size: int
    form: RowForm
    data: bytes
    is_addressed: bool


def documents(part: TextPart, options: TextOptions, reject: Callable[[BadRecordError], None]) -> Iterator[Document]:
    for block in document_blocks(part, options, reject):
        data, starts, *columns = block.spans
        for key, start, size, offset in zip(block.keys, *map(np.ndarray.tolist, (starts, *columns)), strict=True):
            yield Document(key, offset, size, block.form, data[start : start + size], block.is_addressed)


def rejected(error: BadRecordError) -> None:
    raise error


def file_of(path: Path) -> TextFile:
    return TextFile(str(path), f"below/{path.name}", path.stat().st_size)


def found(path: Path, options: TextOptions | None = None, range_bytes: int = 1 << 26) -> list[Document]:
    options = options or TextOptions()
    parts = list(text_parts([file_of(path)], options, range_bytes))
    documents_of_parts = [documents(part, options, rejected) for part in parts]
    return [document for some in documents_of_parts for document in some]


def values(path: Path, options: TextOptions, range_bytes: int = 1 << 26) -> list[list[Value]]:
    return [read(path, document, options) for document in found(path, options, range_bytes)]


def read(path: Path, document: Document, options: TextOptions) -> list[Value]:
    """The values of a document as the worker of its shard sees it: by reference where it has an address."""
    data = document.data
    if document.is_addressed:
        reference = Reference(document.key, "train", (), str(path), document.offset, document.size)
        data = read_reference(reference)
        assert not document.data or document.data == data
    return document_values(data, document.form, options)


def write_rows(path: Path, rows: Iterable[list[Value]]) -> Path:
    names = ("text", "label")
    table = [dict(zip(names, row, strict=True)) for row in rows]
    if path.suffix == ".parquet":
        columns: dict[str, Any] = {name: [row[name] for row in table] for name in names}
        pq.write_table(pa.table(columns), path, row_group_size=2)
    elif path.suffix == ".csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, names)
        writer.writeheader()
        writer.writerows(table)
        path.write_bytes(buffer.getvalue().encode())
    else:
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in table), newline="")
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_rows_are_the_same_in_every_form(suffix: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / f"a{suffix}", ROWS)
    for range_bytes in (1 << 26, 40, 7):
        assert values(path, FIELDS, range_bytes) == ROWS
    keys = [document.key for document in found(path, FIELDS)]
    assert len(set(keys)) == len(ROWS)
    assert keys == [document.key for document in found(path, FIELDS, 40)]
    assert all(key.startswith(f"below/a{suffix}:") for key in keys)


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_compression_changes_neither_keys_nor_values(packing: str, suffix: str, tmp_path: Path) -> None:
    plain = write_rows(tmp_path / f"a{suffix}", ROWS)
    packed = tmp_path / f"a{suffix}{packing}"
    packed.write_bytes(PACKERS[packing](plain.read_bytes()))
    assert values(packed, FIELDS, 7) == ROWS
    one, two = found(plain, FIELDS), found(packed, FIELDS)
    assert [document._replace(is_addressed=False) for document in one] == two
    packed.write_bytes(packed.read_bytes()[:-3])
    with pytest.raises(CorruptionError, match="cut or damaged"):
        found(packed, FIELDS)


@given(
    texts=st.lists(st.text(st.sampled_from('aé日😀 ,"'), max_size=12), max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    mark=st.booleans(),
    range_bytes=st.integers(12, 60),
)
@settings(deadline=None)
def test_finds_raw_tab_separated_rows_in_ranges(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], end: str, last: bool, mark: bool, range_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "ranges.tsv"
    lines = ["text\tlabel", *(f"{text}\t{number}" for number, text in enumerate(texts))]
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + (end.join(lines) + end * last).encode())
    assert values(path, dataclasses.replace(FIELDS, form="raw-tsv"), max(range_bytes, 16)) == [
        [text, number] for number, text in enumerate(texts)
    ]


def test_tsv_is_read_by_the_rules_of_csv_unless_it_is_raw(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    rows: list[list[Value]] = [["plain", 1], ['quo"ted', 2], ["two\r\nlines", 3], ["ta\tb", 4], ["one\rcr", 5]]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t").writerows([["text", "label"], *rows])
    assert values(path, FIELDS) == rows
    assert values(path, FIELDS, 7) == rows
    path.write_text('text\tlabel\n"a" b\t1\n"\t2\n')
    with pytest.raises(DocumentError, match=r"after the closing quote of cell 1; if quotes.*pass --form raw-tsv"):
        values(path, FIELDS)
    assert values(path, dataclasses.replace(FIELDS, form="raw-tsv")) == [['"a" b', 1], ['"', 2]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufeff\n \ntext,label\r\n\r\n a ,1\r\n", [[" a ", 1]]),
        ('text,label\n"a\r",1\nb"c,2', [["a\r", 1], ['b"c', 2]]),
        ("text,label\na\rb,1\n", "a CR without LF outside of quotes"),
        ('text,label\n"a"\rb,1\n', "after the closing quote of cell 1"),
        ('text,label\n"a,1\n', "a quote is not closed"),
        ("text,label\na,1,2\n", "3 cells"),
        ("text,label\n" + "x" * 200_000 + ",1\n", [["x" * 200_000, 1]]),
    ],
)
def test_lists_and_text_read_csv_by_the_same_rules(
    tmp_path: Path, text: str, expected: str | list[list[Value]]
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())

    def listed_rows() -> list[list[Value]]:
        with list_file(str(path), SourceOptions(path_column="text")).open() as (_, rows):
            return [[row.values["text"], int(row.values["label"])] for row in rows]

    for read in (listed_rows, lambda: values(path, FIELDS)):
        if isinstance(expected, str):
            with pytest.raises((SourceError, DocumentError), match=expected):
                read()
        else:
            assert read() == expected


@pytest.mark.parametrize("packing", ["", *PACKERS])
def test_finds_lines_paragraphs_and_files(packing: str, tmp_path: Path) -> None:
    text = "\ufeffone\r\ntwo\r\n\r\n \r\nthree\r\n"
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(PACKERS.get(packing, bytes)(text.encode()))
    for form, expected in (
        ("auto", ["one", "two", "three"]),
        ("paragraphs", ["one\r\ntwo", "three"]),
        ("files", [text.removeprefix("\ufeff")]),
    ):
        options = TextOptions(form=form)
        for range_bytes in (1 << 26, 5):
            assert [value for (value,) in values(path, options, range_bytes)] == expected
        keys = [document.key for document in found(path, options)]
        assert keys == (["below/a.txt"] if form == "files" else keys)
    assert [document.key for document in found(path)] == ["below/a.txt:3", "below/a.txt:8", "below/a.txt:18"]


def test_parts_cover_a_large_file_and_leave_small_ones(tmp_path: Path) -> None:
    large, small, packed = tmp_path / "large.txt", tmp_path / "small.txt", tmp_path / "large.gz"
    large.write_bytes(b"0123456789\n" * 100)
    small.write_bytes(b"a\n")
    packed.write_bytes(gzip.compress(large.read_bytes(), 0))
    parts = list(text_parts(map(file_of, (large, small, packed)), TextOptions(), 300))
    assert [(Path(part.file.path).name, part.start, part.stop) for part in parts] == [
        ("large.txt", 0, 275),
        ("large.txt", 275, 550),
        ("large.txt", 550, 825),
        ("large.txt", 825, 1100),
        ("small.txt", 0, 2),
        ("large.gz", 0, packed.stat().st_size),
    ]
    # Small files are looked at where they are read.
    assert [part.form is None for part in parts] == [False] * 4 + [True, False]


def test_parquet_parts_are_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(100)]}), path, row_group_size=9)
    parts = list(text_parts([file_of(path)], TextOptions(), 200))
    assert len(parts) > 3
    assert [(one.stop, two.start) for one, two in itertools.pairwise(parts) if one.stop != two.start] == []
    keys = [document.key for document in found(path, range_bytes=200)]
    assert keys == [f"below/a.parquet:{n}" for n in range(100)]


def test_a_document_over_the_limit_names_file_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" + b"x" * 50 + b"\nshort\n")
    options = TextOptions(document_bytes=10)
    with pytest.raises(
        BadRecordError,
        match=r"a\.txt at byte 6: rejected: larger than --document-bytes \(got 50 bytes, expected at most 10",
    ):
        found(path, options)
    errors: list[BadRecordError] = []
    (part,) = text_parts([file_of(path)], options)
    kept = [document.data for document in documents(part, options, errors.append)]
    assert kept == [b"short", b"short"]
    assert [error.offset for error in errors] == [6]
    for form, name in (("files", "a.txt"), ("files", "a.gz"), ("paragraphs", "a.txt")):
        (tmp_path / name).write_bytes(b"x" * 50 if name == "a.txt" else gzip.compress(b"x" * 50))
        with pytest.raises(BadRecordError, match=r"larger than --document-bytes \(got 50 bytes"):
            found(tmp_path / name, TextOptions(form=form, document_bytes=10))


def test_empty_files_have_no_documents(tmp_path: Path) -> None:
    # A byte order mark is nothing, too.
    for data in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "a.txt").write_bytes(data)
        (tmp_path / "a.gz").write_bytes(gzip.compress(data))
        for name, form in itertools.product(("a.txt", "a.gz"), ("lines", "paragraphs", "files", "jsonl")):
            assert found(tmp_path / name, TextOptions(form=form)) == []


def test_a_whole_file_is_not_read_to_be_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"text")
    (document,) = found(path, TextOptions(form="files"))
    assert (document.offset, document.size, document.data, document.is_addressed) == (WHOLE_FILE, 4, b"", True)


def test_rejects_parquet_that_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["a"]}), path)
    with pytest.raises(UsageError, match="no column 'text'; it has 'body'"):
        found(path)
    path.write_bytes(path.read_bytes()[:-2] + b"xx")
    with pytest.raises(CorruptionError, match="Parquet file is cut or damaged"):
        found(path)
    good = ["a"] * 300
    for column, message in (
        ([*[b"a"] * 299, b"\xff"], "not UTF-8: column 'label', byte 0xff"),
        (pa.array([*[b"a"] * 299, b"\xff"]).view(pa.string()), "not UTF-8: column 'label', byte 0xff"),
        (
            pa.array([*[None] * 299, 2**62], pa.timestamp("us")),
            "a time cannot be read: column 'label', value out of range",
        ),
    ):
        # Over two row groups: the row is counted from the file's begin.
        pq.write_table(pa.table({"text": good, "label": column}), path, row_group_size=200)
        with pytest.raises(BadRecordError, match=rf"a\.parquet:299 in {path}: rejected: {message}"):
            found(path, TEXTS)
    for values, kind in (([[1]], "list<element: int64>"), ([{"a": 1}], "struct<a: int64>")):
        pq.write_table(pa.table({"text": ["a"], "label": values}), path)
        with pytest.raises(
            SourceError, match=rf"a\.parquet: column 'label' has an unsupported type \(got {kind}, expected"
        ):
            found(path, FIELDS)
    pq.write_table(pa.table({"text": ["a", "b" * 100]}), path)
    with pytest.raises(BadRecordError, match=rf"a\.parquet:1 in {path}: rejected: larger than --document-bytes"):
        found(path, TextOptions(document_bytes=50))
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text", "text"]), path)
    with pytest.raises(SourceError, match="column 'text' appears twice"):
        found(path)


def test_what_is_said_of_damaged_parquet_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path)
    data = bytearray(path.read_bytes())
    data[6:30] = b"\xff" * 24
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="Parquet file is cut or damaged: column 'text': ") as caught:
        found(path)
    assert "\n" not in str(caught.value)


def test_reads_parquet_of_dictionaries_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    pq.write_table(pa.table({"text": words, "label": pa.array([1, 2, 3], pa.int8())}), path)
    assert values(path, FIELDS) == [["a", 1], ["b", 2], ["a", 3]]
    pq.write_table(pa.table({"text": ["é".encode()], "label": [1]}), path)
    assert values(path, FIELDS) == [["é", 1]]

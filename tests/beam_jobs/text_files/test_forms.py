"""What a file is, by its content and its name."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import zstandard

from beam_jobs.text_files.fields import TextField
from beam_jobs.text_files.forms import TextForm, look_at
from beam_jobs.text_files.options import TextOptions
from tpudata.errors import CorruptionError, SourceError, TpudataError, UsageError

FIELDS = TextOptions(fields=(TextField("text"), TextField("label", "int")))


def form(folder: Path, name: str, data: bytes, options: TextOptions | None = None) -> TextForm:
    path = folder / name
    path.write_bytes(data)
    return look_at(str(path), options or TextOptions())


def test_finds_the_form_by_name_and_content(tmp_path: Path) -> None:
    assert form(tmp_path, "a.txt", b'{"text": "a"}\n') == TextForm("lines")
    assert form(tmp_path, "a", b"") == TextForm("lines")
    assert form(tmp_path, "a.JSONL", b"{}") == TextForm("jsonl")
    assert form(tmp_path, "a.tsv", b"text\tlabel\n", FIELDS) == TextForm("tsv", "", ("text", "label"), "\t")
    assert form(tmp_path, "a.csv", b'\xef\xbb\xbf"text", label\r\n', FIELDS).columns == ("text", "label")
    assert form(tmp_path, "a.csv", b'"label";"text"\n', FIELDS).delimiter == ";"
    assert form(tmp_path, "a.txt", b"text", TextOptions(form="paragraphs")) == TextForm("paragraphs")
    assert form(tmp_path, "a.ndjson.gz", gzip.compress(b"{}", mtime=0)) == TextForm("jsonl", "gzip")
    # What it is called does not matter to how it is compressed.
    assert form(tmp_path, "a.txt", bz2.compress(b"x")) == TextForm("lines", "bzip2")
    assert form(tmp_path, "a.txt.zst", zstandard.compress(b"x")) == TextForm("lines", "zstd")
    assert form(tmp_path, "a.gz", b"plain") == TextForm("lines")
    assert form(tmp_path, "a.txt", b"PARE is no page of an encrypted Parquet file.\n") == TextForm("lines")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.txt")
    assert look_at(str(tmp_path / "a.txt"), TextOptions()) == TextForm("parquet")


@pytest.mark.parametrize(
    ("form", "ranges"),
    [
        (TextForm("lines"), True),
        (TextForm("jsonl"), True),
        (TextForm("tsv"), False),
        (TextForm("raw-tsv"), True),
        (TextForm("csv"), False),
        (TextForm("files"), False),
        (TextForm("lines", "zstd"), False),
    ],
)
def test_forms_of_a_record_a_line_are_read_in_ranges(form: TextForm, ranges: bool) -> None:
    assert form.has_ranges is ranges


@pytest.mark.parametrize(
    ("name", "data", "options", "error", "message"),
    [
        ("a.txt", "text".encode("utf-16"), TextOptions(), SourceError, "UTF-16. Save it as UTF-8: iconv -f UTF-16"),
        ("a.txt", "text".encode("utf-32"), TextOptions(), SourceError, "UTF-32"),
        ("a.txt", b"MZ\0\0", TextOptions(), SourceError, "not text: byte 2 is zero"),
        ("a.zip", b"PK\x03\x04", TextOptions(), SourceError, "a zip archive. Unpack it"),
        ("a.parquet", b"text", TextOptions(), SourceError, "not a Parquet file: it begins with 74 65 78 74"),
        ("a", b"PAR1", TextOptions(form="lines"), UsageError, "--form is lines, but .* is a Parquet file"),
        ("a", gzip.compress(b"PAR1", mtime=0), TextOptions(), SourceError, "compressed with gzip. Unpack it"),
        ("a.csv", b"body,id\n", TextOptions(), SourceError, "no column 'text'; its first row has 'body', 'id'"),
        ("a.csv", b"texts,id\n", TextOptions(), SourceError, "Did you mean 'texts'"),
        ("a.csv", b"", TextOptions(), SourceError, "first row has nothing"),
        ("a.csv", b"text,id\ra,1\rb,2\r", TextOptions(), SourceError, "a.csv: its lines end with CR alone"),
        ("a.tsv", b"text\ra\r", TextOptions(), SourceError, "a.tsv: its lines end with CR alone"),
        ("a.csv", b"text,text\n", TextOptions(), SourceError, "column 'text' appears twice"),
        ("a.csv", b'"text\n', TextOptions(), SourceError, "a quote is not closed"),
        (
            "a.csv",
            b"text," + b"x" * 70_000,
            TextOptions(),
            SourceError,
            "longer than 65536 bytes|expected at most 65,536",
        ),
        ("a.txt", b"a", FIELDS, UsageError, "read by lines, which have no fields, but --field names 2"),
        ("a.gz", b"\x1f\x8brubbish", TextOptions(), CorruptionError, "gzip stream is cut or damaged"),
    ],
)
def test_rejects_forms_that_are_not_read(
    tmp_path: Path, name: str, data: bytes, options: TextOptions, error: type[TpudataError], message: str
) -> None:
    with pytest.raises(error, match=message):
        form(tmp_path, name, data, options)

"""The form of a text file, recognized by its content and its name."""

from __future__ import annotations

import bz2
import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import zstandard
from pyarrow import parquet

import tpudata
from tests.beam_jobs.outcomes import convert_texts
from tpudata.errors import TpudataError


def parquet_bytes(**columns: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def test_finds_the_form_by_name_and_content(tmp_path: Path) -> None:
    files = {
        "a.txt": (b'{"text": "a"}\n', ['{"text": "a"}']),
        "b": (b"one\ntwo\n", ["one", "two"]),
        "c.JSONL": (b'{"text": "c"}\n', ["c"]),
        "d.tsv": (b"text\tlabel\nd\t1\n", ["d"]),
        "e.csv": (b'\xef\xbb\xbf"text", label\r\n"e,",1\r\n', ["e,"]),
        "f.csv": (b'"label";"text"\n1;f\n', ["f"]),
        "g.ndjson.gz": (gzip.compress(b'{"text": "g"}', mtime=0), ["g"]),
        # Compression is recognized by the content, not by the name.
        "h.txt": (bz2.compress(b"h"), ["h"]),
        "i.txt.zst": (zstandard.compress(b"i"), ["i"]),
        "j.gz": (b"plain", ["plain"]),
        "k.txt": (
            b"PARE is no page of an encrypted Parquet file.\n",
            ["PARE is no page of an encrypted Parquet file."],
        ),
        "l.txt": (parquet_bytes(text=["l"]), ["l"]),
    }
    texts = convert_texts(tmp_path, {name: data for name, (data, _) in files.items()})
    assert not texts.rejects
    for name, (_, expected) in files.items():
        suffix = next((end for end in (".gz", ".zst") if name.endswith(end)), "")
        assert texts.of(name.removesuffix(suffix)) == expected, name


# By name: the bytes, and the reason; the file is rejected, or the run ends if all files have the fault.
REJECTED = {
    "a.txt": ("text".encode("utf-16"), "UTF-16. Save it as UTF-8: iconv -f UTF-16"),
    "b.txt": ("text".encode("utf-32"), "UTF-32"),
    "c.txt": (b"MZ\0\0", "not text: byte 2 is zero"),
    "d.zip": (b"PK\x03\x04", "a zip archive. Unpack it"),
    "e.parquet": (b"text", "not a Parquet file: it begins with 74 65 78 74"),
    "f": (gzip.compress(b"PAR1", mtime=0), "compressed with gzip. Unpack it"),
    "g.csv": (b"body,id\n", "no column 'text'; its first row has 'body', 'id'"),
    "h.csv": (b"texts,id\n", "Did you mean 'texts'"),
    "i.csv": (b"", "first row has nothing"),
    "j.csv": (b"text,id\ra,1\rb,2\r", "its lines end with CR alone"),
    "k.tsv": (b"text\ra\r", "its lines end with CR alone"),
    "l.csv": (b"text,text\n", "column 'text' appears twice"),
    "m.csv": (b'"text\n', "a quote is not closed"),
    "n.csv": (b"text," + b"x" * 70_000, "65"),
    "o.gz": (b"\x1f\x8brubbish", "gzip stream is cut or damaged"),
}


def test_rejects_files_of_other_forms_by_name(tmp_path: Path) -> None:
    for name, (data, reason) in REJECTED.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(data)
        with pytest.raises(TpudataError) as error:
            tpudata.convert_text(folder, tmp_path / "none", dry_run=True)
        assert reason in str(error.value), name
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a", b"PAR1", {"form": "lines"}, "form is lines, but .* is a Parquet file"),
        ("a.txt", b"a", {"fields": ["text", "label:int"]}, "read by lines, which have no fields, but fields names 2"),
    ],
)
def test_rejects_options_that_contradict_the_form(
    name: str, data: bytes, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TpudataError, match=message):
        tpudata.convert_text(tmp_path / name, tmp_path / "out", **options)

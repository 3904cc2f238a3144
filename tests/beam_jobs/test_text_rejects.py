"""Texts that are rejected, or end the run."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pyarrow  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from tests.beam_jobs.texts import (
    PLAY,
    convert,
    texts,
)
from tpudata.errors import BadRecordError, DatasetError, SourceError
from tpudata.format import open_dataset, verify


def test_bad_documents_abort_the_run_or_are_skipped(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    rows = [json.dumps({"text": f"line {number}"}).encode() for number in range(50)]
    rows[7], rows[30] = b'{"text": 3}', b"\xff"
    source.write_bytes(b"\n".join(rows))
    flags = ["--num-shards", "4", "--tokenizer", "bytes", "--sequence-length", "16"]
    with pytest.raises(BadRecordError, match=r"a\.jsonl:\d+ in .*a\.jsonl: rejected: "):
        convert(source, tmp_path / "out", *flags)
    skip = ["--on-bad-record", "skip", "--max-bad-records"]
    with pytest.raises(SourceError, match="2 of 50 inputs rejected"):
        convert(source, tmp_path / "out", *flags, *skip, "1", "--resume")
    convert(source, tmp_path / "out", *flags, *skip, "2", "--resume")
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert sum(manifest.rejected.values()) == 2
    assert manifest.counts["documents"] == 48
    listed = [
        json.loads(line) for path in (tmp_path / "out/rejects").iterdir() for line in path.read_text().splitlines()
    ]
    offset = sum(map(len, rows[:7])) + 7
    assert any(item["source"].startswith(f"a.jsonl:{offset} in ") for item in listed)
    assert not list(verify(str(tmp_path / "out")))


def test_rejects_a_file_that_is_not_text(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text(PLAY)
    (source / "b.pdf").write_bytes(b"%PDF-1.5\n\0\0")
    with pytest.raises(BadRecordError, match=r"b\.pdf: rejected: not text: byte 9 is zero"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", "--on-bad-record=skip", "--resume")
    assert open_dataset(str(tmp_path / "out")).manifest.rejected == {"not text": 1}
    assert len(texts(tmp_path / "out")) == len([line for line in PLAY.split("\n") if line])
    (source / "a.txt").unlink()
    with pytest.raises(
        SourceError, match=rf"in: all that is in it was rejected\. It is listed in {tmp_path}/none/rejects/"
    ):
        convert(source, tmp_path / "none", "--on-bad-record=skip")
    (rejects,) = (tmp_path / "none" / "rejects").iterdir()
    assert "b.pdf" in rejects.read_text()


def test_skips_damaged_files_among_good_ones(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    column = pyarrow.array([b"one", b"t\xffwo", b"three"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": column}), source / "a.parquet")
    (source / "b.txt").write_text("good\n")
    lines = "".join(f"line {number}\n" for number in range(9000)).encode()
    (source / "c.txt.gz").write_bytes(gzip.compress(lines)[:-9])
    damaged = bytearray(bz2.compress(lines))
    damaged[len(damaged) // 2] ^= 1
    (source / "d.txt.bz2").write_bytes(damaged)
    # Of two row groups the second one is damaged.
    table = pyarrow.table({"text": ["four", "five"]})
    parquet.write_table(table, source / "e.parquet", row_group_size=1, compression="none", write_page_checksum=True)
    (source / "e.parquet").write_bytes((source / "e.parquet").read_bytes().replace(b"five", b"fife", 1))
    (source / "f.parquet").write_bytes((source / "e.parquet").read_bytes()[:-9])
    with pytest.raises((BadRecordError, DatasetError)):
        convert(source, tmp_path / "fail")
    skip = ["--on-bad-record=skip", "--max-bad-records=9"]
    convert(source, tmp_path / "out", *skip)
    assert set(texts(tmp_path / "out")) == {"good", "one", "three", "four"}
    assert open_dataset(str(tmp_path / "out")).manifest.rejected == {
        "not UTF-8": 1,
        "the gzip stream is cut or damaged": 1,
        "the bzip2 stream is cut or damaged": 1,
        "the Parquet file is cut or damaged": 2,
    }
    listed = "".join(path.read_text() for path in (tmp_path / "out" / "rejects").iterdir())
    assert "none of its documents is stored" in listed
    assert "row group 1 of 1 row is not stored" in listed
    convert(source, tmp_path / "replaced", *skip, "--invalid-utf8=replace")
    assert set(texts(tmp_path / "replaced")) == {"good", "one", "three", "four", "t\ufffdwo"}


def test_appends_after_a_shard_with_only_rejected_documents(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(b"good\n\xff\xff\nfine\n\xfe\n")
    convert(
        source, tmp_path / "out", "--no-shuffle", "--num-shards", "4", "--on-bad-record=skip", "--max-bad-records=2"
    )
    assert texts(tmp_path / "out") == ["good", "fine"]
    with source.open("ab") as file:
        file.write(b"more\n")
    convert(source, tmp_path / "out", "--no-shuffle", "--append", "--on-bad-record=skip", "--max-bad-records=2")
    assert texts(tmp_path / "out") == ["good", "fine", "more"]


def test_rejects_missing_and_empty_inputs(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        convert(tmp_path / "none", tmp_path / "out")
    (tmp_path / "in").mkdir()
    with pytest.raises(SourceError, match="no files to convert"):
        convert(tmp_path / "in", tmp_path / "out")
    with pytest.raises(SourceError, match="there is no folder"):
        convert(f"{tmp_path}/no/*.txt", tmp_path / "out")
    (tmp_path / "in" / "a.txt").write_text("\n \n")
    with pytest.raises(SourceError, match="no files to convert, or only empty ones"):
        convert(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "a.txt").write_text('{"text": ""}\n')
    flags = ["--form", "jsonl", "--tokenizer", "bytes", "--sequence-length", "8", "--no-eos"]
    with pytest.raises(SourceError, match="no record in 1 input"):
        convert(tmp_path / "in", tmp_path / "out", *flags)


def test_gives_the_size_of_a_large_row_in_bytes(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["é" * 100]}), tmp_path / "a.parquet")
    with pytest.raises(BadRecordError, match=r"larger than --document-bytes \(got 200 bytes, expected at most 50\)"):
        convert(tmp_path / "a.parquet", tmp_path / "out", "--document-bytes=50")

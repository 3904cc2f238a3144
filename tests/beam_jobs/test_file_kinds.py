"""Kinds of files by their first bytes, and the errors of text and images that name unsupported kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpudata
from tests.beam_jobs.outcomes import convert_texts
from tpudata.errors import SourceError

# The first bytes of files by compress 5.0, lz4 1.9, lzip 1.23, lzma of XZ Utils 5.4, 7z 16 and rar 6.
OTHERS = {
    "compress (.Z)": bytes.fromhex("1f9d90 68ca b061 f308 0000"),
    "LZ4": bytes.fromhex("04224d18 6440 a7 06000080 68656c6c"),
    "lzip": b"LZIP\x01\x0c\0\x34\x19\x49",
    "lzma, the form before xz": bytes.fromhex("5d00008000 ffffffffffffffff 0034"),
    "a 7z archive": bytes.fromhex("377abcaf271c0004"),
    "a RAR archive": b"Rar!\x1a\x07\x01\0",
}


@pytest.mark.parametrize("what", OTHERS)
def test_rejects_files_of_other_compressions_by_name(what: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(OTHERS[what] + b"\xff\n" * 20)
    for convert in (tpudata.convert_text, tpudata.convert_images):
        with pytest.raises(SourceError) as error:
            convert(path, tmp_path / "out", dry_run=True)
        assert f"{what}. Unpack it" in str(error.value)
        assert str(path) in str(error.value)


WORDS = [
    *("PARENTS,CHILDREN", "LZIP is a program of 2008", "]", "Rar! is a word", "7z archives", "PK is a name", "Z*M"),
    "BZh9 is a word",
]
SIGNATURES = {
    "npz": (b"PK\x03\x04" + bytes(22) + b"\5\0\0\0a.npy", "a zip archive"),
    "zip": (b"PK\x03\x04" + bytes(22) + b"\5\0\0\0a.jpg", "a zip archive"),
    "parquet": (b"PARE\x15\0", "Parquet"),
    "bzip2": (b"BZh91AY&SY", "bzip2"),
    "zstd": (b"\x5a\x2a\x4d\x18", "zstd"),
    "utf-16": ("a".encode("utf-16"), "UTF-16"),
    "utf-32": ("a".encode("utf-32"), "UTF-32"),
}


def test_rejects_other_formats_and_keeps_texts_that_begin_like_them(tmp_path: Path) -> None:
    files = {f"{number}.txt": word.encode() for number, word in enumerate(WORDS)}
    files |= {f"{name}.bin": data for name, (data, _) in SIGNATURES.items()}
    texts = convert_texts(tmp_path, files)
    assert [values["text"].decode() for values in texts.records.values()] == WORDS
    for name, (_, what) in SIGNATURES.items():
        (reason,) = [reason for (file, _), reason in texts.rejects.items() if file == f"{name}.bin"]
        assert what in reason, (name, reason)

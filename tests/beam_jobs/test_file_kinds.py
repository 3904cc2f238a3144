"""Kinds of files by their first bytes, and what those are called that are not read, by text and by images."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.file_kinds import file_kind
from beam_jobs.text_files.forms import look_at
from beam_jobs.text_files.options import TextOptions
from tests.beam_jobs.sources.inputs import opened
from tpudata.errors import SourceError


@pytest.mark.parametrize(
    ("head", "what"),
    [
        # The first bytes of files by compress 5.0, lz4 1.9, lzip 1.23, lzma of XZ Utils 5.4, 7z 16 and rar 6.
        (bytes.fromhex("1f9d90 68ca b061 f308 0000"), r"compress \(\.Z\)"),
        (bytes.fromhex("04224d18 6440 a7 06000080 68656c6c"), "LZ4"),
        (b"LZIP\x01\x0c\0\x34\x19\x49", "lzip"),
        (bytes.fromhex("5d00008000 ffffffffffffffff 0034"), "lzma, the form before xz"),
        (bytes.fromhex("377abcaf271c0004"), "a 7z archive"),
        (b"Rar!\x1a\x07\x01\0", "a RAR archive"),
    ],
)
def test_files_of_other_compressions_are_called_so(tmp_path: Path, head: bytes, what: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(head + b"\xff\n" * 20)
    for read in (lambda: look_at(str(path), TextOptions()), lambda: opened(path)):
        with pytest.raises(SourceError, match=rf"a\.csv is (compressed with )?{what}.*\. Unpack it"):
            read()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"PK\x03\x04" + bytes(22) + b"\5\0\0\0a.npy", "npz"),
        (b"PK\x03\x04" + bytes(22) + b"\5\0\0\0a.jpg", "zip"),
        (b"PARE\x15\0", "Parquet"),
        (b"PARENTS,CHILDREN\n", ""),
        (b"BZh91AY&SY", "bzip2"),
        (b"BZh9 is a word", "damaged bzip2"),
        (b"\x5a\x2a\x4d\x18", "zstd"),
        ("a".encode("utf-16"), "UTF-16"),
        ("a".encode("utf-32"), "UTF-32"),
        (b"LZIP is a program of 2008", ""),
        (b"]", ""),
        (b"Rar! is a word", ""),
        (b"7z archives", ""),
        (b"", ""),
    ],
)
def test_what_follows_a_signature_counts(head: bytes, kind: str) -> None:
    assert file_kind(head) == kind

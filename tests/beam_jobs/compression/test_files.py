"""Compressed files of text: several streams in each, and damage of every kind."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.beam_jobs.outcomes import convert_texts

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
}
SUFFIXES = {"gzip": ".gz", "bzip2": ".bz2", "zstd": ".zst", "xz": ".xz"}
LETTERS = np.random.default_rng(0).choice(np.frombuffer(b"abcd efgh\n", np.uint8), 100_000).tobytes()
LINES = [line.decode() for line in LETTERS.split(b"\n") if line.strip()]


def test_unpacks_several_streams_in_a_file(tmp_path: Path) -> None:
    files = {
        f"{name}.txt{SUFFIXES[name]}": pack(LETTERS) + pack(b"") + pack(b"\nmore\n") for name, pack in PACKERS.items()
    }
    # Zeros fill up what is written in blocks, and plain text is no stream.
    files |= {"zeros.txt.gz": gzip.compress(b"text\n") + b"\0" * 512, "plain.gz": b"BZh is how bzip2 files begin\n"}
    texts = convert_texts(tmp_path, files)
    assert not texts.rejects
    for name in PACKERS:
        # Keys have the name of the content.
        assert texts.of(f"{name}.txt") == [*LINES, "more"]
    assert texts.of("zeros.txt") == ["text"]
    assert texts.of("plain") == ["BZh is how bzip2 files begin"]


def cut(data: bytes, keep: float) -> bytes:
    return data[: min(int(len(data) * keep), len(data) - 1)]


def flip(data: bytes, place: int, bits: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= bits
    return bytes(changed)


DAMAGED = {
    **{
        f"{name} cut at {keep}{SUFFIXES[name]}": cut(pack(LETTERS), keep)
        for name, pack in PACKERS.items()
        for keep in (0.3, 0.9, 1.0)
    },
    **{
        f"{name} damaged{SUFFIXES[name]}": flip(PACKERS[name](LETTERS), len(PACKERS[name](LETTERS)) // 2, 0x55)
        for name in ("gzip", "bzip2", "xz")
    },
    "zstd checksum.zst": flip(zstandard.ZstdCompressor(write_checksum=True).compress(LETTERS), -1, 1),
    "gzip rubbish.gz": gzip.compress(b"text\n") + b"rubbish",
}


@pytest.mark.parametrize("form", ["lines", "files"])
def test_rejects_damaged_files_and_stores_none_of_their_documents(form: str, tmp_path: Path) -> None:
    texts = convert_texts(tmp_path, {**DAMAGED, "whole.txt": b"whole"}, form=form)
    assert [*texts.records] == ["whole.txt" if form == "files" else "whole.txt:0"]
    for name in DAMAGED:
        reasons = [reason for (file, _), reason in texts.rejects.items() if file == name]
        assert [reason.startswith(f"the {name.split()[0]} stream is cut or damaged") for reason in reasons] == [True], (
            name
        )

"""Compressed files, unpacked from start to end."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from beam_jobs.compression.files import decompress_file, unpacked_name
from beam_jobs.file_kinds import find_compression
from tpudata.errors import CorruptionError

Pack = Callable[[bytes], bytes]
PACKERS: dict[str, Pack] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
}


def text(size: int = 100_000) -> bytes:
    return np.random.default_rng(0).choice(np.frombuffer(b"abcd efgh\n", np.uint8), size).tobytes()


@pytest.mark.parametrize("packed", PACKERS)
def test_unpacks_several_streams_in_a_file(packed: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    pack = PACKERS[packed]
    path.write_bytes(pack(text()) + pack(b"") + pack(b"more\n"))
    assert find_compression(path.read_bytes()[:16]) == packed
    assert b"".join(decompress_file(str(path), packed)) == text() + b"more\n"


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("keep", [0.3, 0.9, 1.0])
def test_a_cut_file_is_an_error(packed: str, keep: float, tmp_path: Path) -> None:
    pack = PACKERS[packed]
    data = pack(text())
    path = tmp_path / "a"
    path.write_bytes(data[: min(int(len(data) * keep), len(data) - 1)])
    with pytest.raises(CorruptionError, match=rf"a at byte \d+: the {packed} stream is cut or damaged"):
        list(decompress_file(str(path), packed))


@pytest.mark.parametrize("packed", ["gzip", "bzip2", "xz"])
def test_a_damaged_file_is_an_error(packed: str, tmp_path: Path) -> None:
    pack = PACKERS[packed]
    data = bytearray(pack(text()))
    data[len(data) // 2] ^= 0x55
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="cut or damaged"):
        list(decompress_file(str(path), packed))


def test_zstd_checks_its_checksum(tmp_path: Path) -> None:
    data = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(text()))
    data[-1] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(CorruptionError, match="zstd stream is cut or damaged"):
        list(decompress_file(str(tmp_path / "a"), "zstd"))


def test_rubbish_behind_a_stream_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"text\n") + b"\0" * 512)
    assert b"".join(decompress_file(str(path), "gzip")) == b"text\n"
    path.write_bytes(gzip.compress(b"text\n") + b"rubbish")
    with pytest.raises(CorruptionError, match="at byte 0"):
        list(decompress_file(str(path), "gzip"))


def test_a_bomb_is_unpacked_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(bytes(1 << 28)))
    sizes = [len(chunk) for chunk in decompress_file(str(path), "zstd")]
    assert sum(sizes) == 1 << 28
    assert max(sizes) <= 1 << 26


def test_plain_text_is_not_compressed() -> None:
    assert find_compression(b"BZh is how bzip2 files begin"[:16]) == ""
    assert find_compression(b"") == ""
    assert find_compression(bz2.compress(b"")[:16]) == "bzip2"


def test_the_name_of_the_content_has_no_suffix_of_a_compression() -> None:
    names = ("a/b.txt", "a/b.txt.gz", "b.jsonl.zst", "c.bz2", "d.tar.xz")
    assert [unpacked_name(name) for name in names] == ["a/b.txt", "a/b.txt", "b.jsonl", "c", "d.tar"]

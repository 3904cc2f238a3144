"""Datasets of tars, zips and IDX files keep the bytes of earlier versions: shards, keys, rejects and manifest."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard

from beam_jobs.images import run
from tests.beam_jobs.golden import dataset_digest, one_pixel_png
from tests.beam_jobs.sources.inputs import tar_bytes, write_files

# The first 16 digits of SHA-256 over the names and bytes of all files.
GOLDEN = {
    "classes": "23c1a8b617ba8d96",
    "gzip": "0eb3219f955b1d89",
    "compressed": "a122861854885613",
    "pax": "c8692b66a9aa472b",
    "splits": "b6d6976ba1f00cae",
    "rejects": "e88b788f70840d74",
    "tars": "e5a514ed46312186",
    "pairs": "bd8b38e402b4906b",
    "captions": "247d8f77219b7042",
    "zips": "9a4ae90f8f808846",
    "idx": "3924db8bd537e769",
}
SKIP = ["--on-bad-record=skip", "--max-bad-records=9"]
CASES = {
    "classes": ["gnu.tar", "--num-shards=2"],
    "gzip": ["packed/gnu.tar.gz", "--shard-size=1kB"],
    "compressed": ["packed/*", "--no-shuffle"],
    "pax": ["pax.tar", "--layout=imagenet", "--split=train=0.7,test=0.3"],
    "splits": ["splits/*.tar", "--num-shards=2"],
    "rejects": ["rejects.tar", *SKIP],
    "tars": ["tars.tar", "--num-shards=2"],
    "pairs": ["pairs/*", "--num-shards=2", *SKIP],
    "captions": ["pairs/*.tar", "--unlabelled", *SKIP],
    "zips": ["zips", "--num-shards=2"],
    "idx": ["idx", "--layout=raw"],
}
PACKERS = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def members(prefix: str = "", count: int = 12) -> list[tuple[str, bytes]]:
    return [(f"{prefix}{['cat', 'dog', 'été'][n % 3]}/{n}.png", one_pixel_png(n)) for n in range(count)]


def odd_members() -> bytes:
    """A tar with links, a device, hidden files, paths with dots and an empty image."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        names = ["./cat/0.png", "cat/./1.png", "a/../cat/2.png", "../cat/3.png", "cat/.4.png", f"cat/{'x' * 150}.png"]
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = len(one_pixel_png(number))
            tar.addfile(info, io.BytesIO(one_pixel_png(number)))
        tar.addfile(tarfile.TarInfo("dog/empty.png"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo(f"cat/{kind.decode()}.png")
            info.type, info.linkname = kind, "0.png"
            tar.addfile(info)
    return buffer.getvalue()


def pairs(first: int) -> bytes:
    files: list[tuple[str, bytes]] = []
    for n in range(first, first + 8):
        files.append((f"{n:04d}.png", one_pixel_png(n)))
        files.append((f"{n:04d}.json", json.dumps({"label": n % 3, "caption": "x"}).encode()))
    return tar_bytes([*files, (f"{first}.odd.png", b""), (f"{first}.cls", b"1")])


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    inner = {f"n{k:08d}": [(f"{n}.png", one_pixel_png(n)) for n in range(4 * k, 4 * k + 4)] for k in range(3)}
    stored, deflated = io.BytesIO(), io.BytesIO()
    for buffer, method in ((stored, zipfile.ZIP_STORED), (deflated, zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, data in members():
                archive.writestr(name, data)
    images = bytes((0, 0, 8, 3, 0, 0, 0, 10, 0, 0, 0, 2, 0, 0, 0, 2)) + bytes(range(40))
    labels = bytes((0, 0, 8, 1, 0, 0, 0, 10)) + bytes(range(10))
    write_files(
        folder,
        {
            "gnu.tar": tar_bytes(members()),
            "pax.tar": tar_bytes(members(f"{'long' * 30}/"), tarfile.PAX_FORMAT),
            "splits/train-0.tar": tar_bytes(members()),
            "splits/test-0.tar": tar_bytes(members("b/", 4)),
            "rejects.tar": odd_members(),
            "tars.tar": tar_bytes([(f"{name}.tar", tar_bytes(files)) for name, files in inner.items()]),
            "pairs/a.tar": pairs(0),
            "pairs/b.tar": pairs(8),
            "zips/a.zip": stored.getvalue(),
            "zips/b.zip": deflated.getvalue(),
            "idx/train-images-idx3-ubyte.gz": gzip.compress(images),
            "idx/train-labels-idx1-ubyte": labels,
            "packed/gnu.tar.gz": gzip.compress(tar_bytes(members()) + bytes(70_000)) + gzip.compress(b""),
            **{f"packed/{end}.tar.{end}": pack(tar_bytes(members())) for end, pack in PACKERS.items()},
        },
    )
    return folder


@pytest.mark.parametrize("name", GOLDEN)
def test_datasets_keep_the_bytes_of_earlier_versions(
    name: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Messages and the manifest have the paths of the input.
    monkeypatch.chdir(inputs)
    source, *flags = CASES[name]
    assert run(["--input", source, "--output", str(tmp_path / "out"), *flags]) == 0
    assert dataset_digest(tmp_path / "out") == GOLDEN[name]

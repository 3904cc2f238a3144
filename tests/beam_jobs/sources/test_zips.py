"""Zip archives of images, as Python's zipfile writes them."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

import tpudata
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import (
    converted,
    ignored,
    jpeg,
    listed,
    listed_and_rejected,
    opened,
    summary,
    write_files,
)
from tpudata.errors import BadRecordError, CorruptionError, SourceError, TpudataError, UsageError
from tpudata.format import open_dataset

FILES = {"cat/0.jpg": jpeg(0), "cat/deep/1.jpg": jpeg(1), "dog/2.jpg": jpeg(2)}


def zipped(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.mkdir("cat") if hasattr(archive, "mkdir") else None
        for name, data in files.items():
            archive.writestr(name, data)
    return path


METHODS = pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)


@METHODS
def test_lists_members_by_class(tmp_path: Path, method: int) -> None:
    path = zipped(tmp_path / "a.zip", {**FILES, "__MACOSX/._0.jpg": b"x"}, method)
    source = opened(path)
    assert summary(source) == {f"a.zip/{name}": ("train", (name.split("/")[-2],), data) for name, data in FILES.items()}
    assert ignored(source) == [f"{path}/__MACOSX/._0.jpg"]
    # Uncompressed members stay in the archive.
    assert all(bool(reference.data) == (method != zipfile.ZIP_STORED) for reference in listed(source))


def test_reads_members_with_an_extra_field(tmp_path: Path) -> None:
    # As zip writes one with the times of each file, and zipalign to align what is stored.
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number, (name, data) in enumerate(FILES.items()):
            member = zipfile.ZipInfo(name)
            member.extra = struct.pack("<HH", 0xD935, 4 * number) + bytes(4 * number)
            archive.writestr(member, data)
    source = opened(tmp_path / "a.zip")
    assert {key: data for key, (_, _, data) in summary(source).items()} == {f"a.zip/{n}": d for n, d in FILES.items()}


# tests/beam_jobs/contract converts uncompressed members.
def test_converts_members_that_are_compressed(tmp_path: Path) -> None:
    found = converted(zipped(tmp_path / "a.zip", FILES, zipfile.ZIP_DEFLATED), tmp_path / "out")
    assert {key: image for key, (_, image) in found["train"].items()} == {
        f"a.zip/{name}".encode(): data for name, data in FILES.items()
    }


def test_reads_folders_and_patterns_of_archives(tmp_path: Path) -> None:
    zipped(tmp_path / "in" / "a.zip", {"cat/0.jpg": jpeg(0)})
    zipped(tmp_path / "in" / "b.zip", {"train/dog/1.jpg": jpeg(1), "val/dog/2.jpg": jpeg(2)})
    wanted = {
        "a.zip/cat/0.jpg": ("train", ("cat",), jpeg(0)),
        "b.zip/train/dog/1.jpg": ("train", ("dog",), jpeg(1)),
        "b.zip/val/dog/2.jpg": ("validation", ("dog",), jpeg(2)),
    }
    assert summary(opened(tmp_path / "in")) == wanted
    assert summary(opened(f"{tmp_path}/in/*.zip")) == wanted
    with pytest.raises(UsageError, match="split folders already"):
        listed(opened(tmp_path / "in", split="train=0.5,test=0.5"))


def test_reads_archives_without_classes_if_unlabelled(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"0.jpg": jpeg(0), "test/1.jpg": jpeg(1)})
    found = summary(opened(path, SourceOptions(unlabelled=True)))
    assert {key: split for key, (split, _, _) in found.items()} == {"a.zip/0.jpg": "train", "a.zip/test/1.jpg": "test"}
    with pytest.raises(SourceError, match=r"lies in no folder of its class"):
        listed(opened(path))


def test_rejects_members_that_cannot_be_read(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"cat/0.jpg": b"", "cat/1.jpg": jpeg(1)}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    place = data.index(b"cat/1.jpg") + 60
    data[place] ^= 255
    path.write_bytes(data)
    found, rejected = listed_and_rejected(opened(path))
    assert not found
    assert [error.reason.partition(":")[0] for error in rejected] == ["the file is empty", "damaged in the archive"]


@METHODS
def test_damage_at_any_byte_raises_only_tpudata_errors(tmp_path: Path, method: int) -> None:
    path = zipped(tmp_path / "a.zip", FILES, method)
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    for place in range(0, len(whole), 7 if method != zipfile.ZIP_LZMA else 3):
        for value in (0, 255) if place > directory else (whole[place] ^ 255,):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            with contextlib.suppress(TpudataError):
                listed_and_rejected(opened(path))
    for entry in (place for place in range(directory, len(whole)) if whole.startswith(b"PK\x01\x02", place)):
        # The version needed to read a member, which Python's zipfile reads up to 6.3.
        path.write_bytes(whole[: entry + 6] + b"\xff" + whole[entry + 7 :])
        with pytest.raises(CorruptionError, match="zip file version"):
            listed(opened(path))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_rejects_a_damaged_member(tmp_path: Path, method: int) -> None:
    path = zipped(tmp_path / "a.zip", FILES, method)
    data = bytearray(path.read_bytes())
    place = data.index(b"cat/0.jpg") + 40
    data[place : place + 30] = bytes(byte ^ 0x55 for byte in data[place : place + 30])
    path.write_bytes(data)
    found, (error,) = listed_and_rejected(opened(path))
    assert len(found) == 2
    assert (error.source, error.reason.partition(":")[0]) == (f"{path}/cat/0.jpg", "damaged in the archive")


def test_rejects_encrypted_members(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"cat/0.jpg": jpeg(0)})
    data = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(signature) + place] |= 1
    path.write_bytes(data)
    _, (error,) = listed_and_rejected(opened(path))
    assert error.reason.startswith("encrypted")


def test_rejects_a_truncated_archive(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", FILES)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CorruptionError, match=r"a\.zip at byte 0: the zip archive is cut or damaged"):
        listed(opened(path))


def test_lists_a_zip_among_images_as_one_input(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x", b"x")
    write_files(tmp_path, {"cat/0.jpg": jpeg(0), "cat/a.zip": buffer.getvalue()})
    assert set(summary(opened(f"{tmp_path}/*/*"))) == {"cat/0.jpg", "cat/a.zip"}


def damaged(path: Path, member: str) -> Path:
    """Flip a bit in the middle of the bytes of a member, as they lie in the archive."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    data = bytearray(path.read_bytes())
    start = info.header_offset + 30 + len(member)
    data[start + info.compress_size // 2] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "method",
    [
        zipfile.ZIP_STORED,
        *(
            pytest.param(method, marks=pytest.mark.matrix)
            for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
        ),
    ],
)
def test_a_damaged_member_is_skipped_or_ends_the_run(tmp_path: Path, method: int) -> None:
    path = damaged(zipped(tmp_path / "a.zip", FILES, method), "cat/deep/1.jpg")
    # The oracle: Python finds the same member damaged.
    with zipfile.ZipFile(path) as archive, pytest.raises(Exception, match=r"."):
        archive.read("cat/deep/1.jpg")
    with pytest.raises(BadRecordError, match="damaged in the archive"):
        converted(path, tmp_path / "out")
    tpudata.convert_images(path, tmp_path / "skipped", on_bad_record="skip", max_bad_records=1)
    dataset = open_dataset(str(tmp_path / "skipped"))
    keys = {example["image/filename"][0] for example in dataset.examples("train")}
    assert keys == {b"a.zip/cat/0.jpg", b"a.zip/dog/2.jpg"}
    (line,) = [line for file in (tmp_path / "skipped" / "rejects").iterdir() for line in file.read_text().splitlines()]
    assert "damaged in the archive" in line


def test_the_opened_source_holds_no_names_of_archives(tmp_path: Path) -> None:
    for number in range(100):
        zipped(tmp_path / "in" / f"{number:05}.zip", {"cat/0.jpg": jpeg(number)})
    source = opened(tmp_path / "in")
    assert len(pickle.dumps(source)) < 2000
    assert len(listed(source)) == 100


def test_resolves_paths_with_dots_and_rejects_outside_paths(tmp_path: Path) -> None:
    names = ["./cat/0.jpg", "dog/../cat/1.jpg", "../dog/2.jpg", "cat/.3.jpg"]
    path = zipped(tmp_path / "a.zip", {name: jpeg(number) for number, name in enumerate(names)})
    found, rejected = listed_and_rejected(opened(path))
    assert [(reference.key, reference.labels) for reference in found] == [
        ("a.zip/cat/0.jpg", ("cat",)),
        ("a.zip/cat/1.jpg", ("cat",)),
    ]
    assert [(error.key, error.source) for error in rejected] == [("a.zip/../dog/2.jpg", f"{path}/../dog/2.jpg")]


def test_rejects_names_that_are_not_utf8_despite_their_flag(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"cät/0.jpg": jpeg(0)})
    path.write_bytes(path.read_bytes().replace("ä".encode(), b"\xe9\xe9"))
    with pytest.raises(CorruptionError, match=r"not UTF-8.*c\\xe9\\xe9t/0\.jpg"):
        listed(opened(path))

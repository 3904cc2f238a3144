"""Every type of tar member is read right or rejected by name: tars of GNU tar and of Python's tarfile, in all formats."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.beam_jobs.sources.inputs import ignored, jpeg, listed, listed_and_rejected, opened, summary, tar_bytes
from tpudata.errors import CorruptionError, SourceError

GZ = pytest.mark.parametrize("gz", [False, True])
IMAGES = {f"{name}/{number}.jpg": jpeg(number) for number, name in enumerate(["cat", "cat", "dog"])}
# Beyond the 100 bytes of a header's name; ustar splits it at a slash.
LONG = f"cat/{'a' * 90}/{'b' * 90}.jpg"


def gnu_tar() -> str:
    program = shutil.which("gtar") or shutil.which("tar") or ""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout if program else ""
    if "GNU tar" not in said:
        pytest.skip("needs GNU tar")
    return program


def packed(folder: Path, *flags: str) -> Path:
    path = folder.parent / "data.tar"
    subprocess.run([gnu_tar(), *flags, "-cf", str(path), "-C", str(folder), "."], check=True, capture_output=True)
    return path


def write_tree(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_members(path: Path, infos: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """A tar of raw headers, each followed by its data in whole blocks, and the end mark."""
    data = b"".join(info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % 512) for info, body in infos)
    path.write_bytes(gzip.compress(data + bytes(1024)) if path.suffix == ".gz" else data + bytes(1024))
    return path


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    return info, data


@GZ
@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_reads_every_format_of_gnu_tar(tmp_path: Path, form: str, gz: bool) -> None:
    files = IMAGES if form == "v7" else {**IMAGES, LONG: jpeg(9)}
    folder = write_tree(tmp_path / "in", files)
    (folder / "empty").mkdir()
    path = packed(folder, f"--format={form}", *(["-z"] if gz else []))
    with tarfile.open(path) as tar:
        assert sorted(name.removeprefix("./") for name in tar.getnames() if name.endswith(".jpg")) == sorted(files)
    wanted = {f"data.tar/{name}": ("train", (name.rsplit("/", 2)[-2],), data) for name, data in files.items()}
    assert summary(opened(path)) == wanted
    assert ignored(opened(path)) == []


@GZ
@pytest.mark.parametrize("kind", [b"0", b"\0", b"7"], ids=["regular", "NUL", "contiguous"])
def test_reads_every_type_flag_of_regular_files(tmp_path: Path, kind: bytes, gz: bool) -> None:
    path = write_members(
        tmp_path / ("data.tar.gz" if gz else "data.tar"), [member(name, data, kind) for name, data in IMAGES.items()]
    )
    assert summary(opened(path)) == {f"data.tar/{name}": ("train", (name[:3],), data) for name, data in IMAGES.items()}


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_rejects_hard_links_unless_packed_as_files(tmp_path: Path, form: str) -> None:
    folder = write_tree(tmp_path / "in", {"cat/0.jpg": jpeg(0)})
    os.link(folder / "cat/0.jpg", folder / "cat/1.jpg")
    found, rejected = listed_and_rejected(opened(packed(folder, f"--format={form}", "--sort=name")))
    assert [reference.key for reference in found] == ["data.tar/cat/0.jpg"]
    assert [(error.key, error.reason) for error in rejected] == [
        (
            "data.tar/cat/1.jpg",
            "a link (to ./cat/0.jpg); pack the tar again with --dereference --hard-dereference",
        )
    ]
    whole = summary(opened(packed(folder, f"--format={form}", "--hard-dereference")))
    assert whole == {f"data.tar/cat/{n}.jpg": ("train", ("cat",), jpeg(0)) for n in (0, 1)}


def test_names_long_link_targets_in_full(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "in", {LONG: jpeg(0)})
    (folder / "cat/1.jpg").symlink_to(folder / LONG)
    _, rejected = listed_and_rejected(opened(packed(folder, "--format=gnu")))
    assert [LONG in (error.reason or "") for error in rejected] == [True]


@pytest.mark.parametrize("form", ["oldgnu", "gnu", "posix --sparse-version=0.0", "posix --sparse-version=1.0"])
def test_rejects_sparse_files_by_name(tmp_path: Path, form: str) -> None:
    folder = write_tree(tmp_path / "in", {"cat/0.jpg": jpeg(0)})
    with open(folder / "cat/1.jpg", "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    path = packed(folder, *f"--format={form}".split(), "--sparse", "--hole-detection=raw", "--sort=name")
    with pytest.raises(SourceError, match=r"data\.tar at byte \d+: cat/1\.jpg is a sparse file\. .*--sparse"):
        listed(opened(path))


@GZ
def test_skips_folders_of_every_format(tmp_path: Path, gz: bool) -> None:
    # Before there was a type for folders, a slash at the end said so. A size of a folder is a hint, and no data follow it.
    hint = tarfile.TarInfo("cat")
    hint.type, hint.size = tarfile.DIRTYPE, 2048
    parts = [member(f"{name}/", b"", kind) for name, kind in (("a", b"\0"), ("b", b"0"), ("c", b"7"), ("d", b"5"))]
    parts += [(hint, b""), member("cat/0.jpg", jpeg(0)), member("cat/", b"0.jpg\0", b"D"), member("cat/1.jpg", jpeg(1))]
    path = write_members(tmp_path / ("data.tar.gz" if gz else "data.tar"), parts)
    assert list(summary(opened(path))) == ["data.tar/cat/0.jpg", "data.tar/cat/1.jpg"]
    assert ignored(opened(path)) == []


def test_reads_an_incremental_tar(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "in", IMAGES)
    path = packed(folder, f"--listed-incremental={tmp_path / 'state'}")
    assert sorted(summary(opened(path))) == [f"data.tar/{name}" for name in sorted(IMAGES)]


def test_skips_volume_labels_and_global_headers(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "in", IMAGES)
    for flags in (("--label=VOLUME",), ("--format=posix", "--label=VOLUME", "--pax-option=comment=hello")):
        source = opened(packed(folder, *flags))
        assert sorted(summary(source)) == [f"data.tar/{name}" for name in sorted(IMAGES)]
        assert ignored(source) == []


@pytest.mark.parametrize("name", ["path", "size", "linkpath", "GNU.sparse.major"])
def test_rejects_global_headers_that_change_members(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "data.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={name: "1"}) as tar:
        tar.addfile(tarfile.TarInfo("cat/0.jpg"))
    with pytest.raises(SourceError, match=rf"data\.tar at byte 0: a global pax header sets {name} of all members"):
        listed(opened(tmp_path / "data.tar"))


@pytest.mark.parametrize("kind", [b"M", b"N"])
def test_rejects_parts_of_files_by_name(tmp_path: Path, kind: bytes) -> None:
    path = write_members(tmp_path / "data.tar", [member("cat/0.jpg", jpeg(0)), member("cat/1.jpg", jpeg(1), kind)])
    with pytest.raises(SourceError, match=r"data\.tar at byte 1536: cat/1\.jpg is "):
        listed(opened(path))


@GZ
def test_rejects_members_of_unknown_types(tmp_path: Path, gz: bool) -> None:
    parts = [member("cat/0.jpg", jpeg(0)), member("cat/1.jpg", jpeg(1), b"Q"), member("cat/2.jpg/", jpeg(2))]
    path = write_members(tmp_path / ("data.tar.gz" if gz else "data.tar"), [*parts, member("cat/3.jpg", jpeg(3))])
    found, rejected = listed_and_rejected(opened(path))
    assert [reference.key for reference in found] == ["data.tar/cat/0.jpg", "data.tar/cat/3.jpg"]
    assert [(error.key, (error.reason or "").split(";")[0]) for error in rejected] == [
        ("data.tar/cat/1.jpg", "a tar member of the unknown type 'Q'"),
        ("data.tar/cat/2.jpg/", f"a folder by its name that has content: {len(jpeg(2))} bytes"),
    ]


@pytest.mark.parametrize(
    ("kind", "what"), [(b"1", "a link to x; .*--dereference"), (b"Q", "a tar member of the unknown")]
)
def test_rejects_other_members_in_a_tar_of_tars(tmp_path: Path, kind: bytes, what: str) -> None:
    inner = write_members(tmp_path / "inner.tar", [member("0.jpg", jpeg(0))]).read_bytes()
    other = member("dog.tar", b"", kind)
    other[0].linkname = "x"
    path = write_members(tmp_path / "data.tar", [member("cat.tar", inner, b"\0"), other])
    with pytest.raises(SourceError, match=rf"member dog\.tar is {what}"):
        listed(opened(path))
    path = write_members(path, [member("cat.tar", inner, b"\0"), member("dog.tar", inner, b"7")])
    assert [reference.labels for reference in listed(opened(path))] == [("cat",), ("dog",)]


@GZ
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_rejects_data_after_members_without_content(tmp_path: Path, kind: bytes, gz: bool) -> None:
    # Such as hard links of `pax -o linkdata`.
    parts = [member("cat/0.jpg", jpeg(0)), member("cat/1.jpg", jpeg(1), kind)]
    path = write_members(tmp_path / ("data.tar.gz" if gz else "data.tar"), parts)
    with pytest.raises(SourceError, match=r"cat/1\.jpg/? .*has data in the tar") as raised:
        listed(opened(path))
    assert not isinstance(raised.value, CorruptionError)
    # The size alone, as some programs write it for links, does no harm.
    info = parts[1][0]
    found, _ = listed_and_rejected(opened(write_members(path, [parts[0], (info, b""), member("cat/2.jpg", jpeg(2))])))
    assert [reference.key for reference in found] == ["data.tar/cat/0.jpg", "data.tar/cat/2.jpg"]


def test_accepts_checksums_of_signed_bytes(tmp_path: Path) -> None:
    # Some old programs summed the bytes of a header as signed ones.
    header = bytearray(member("cat/é.jpg", jpeg(0))[0].tobuf(tarfile.USTAR_FORMAT))
    spaces = bytes(header[:148]) + b" " * 8 + bytes(header[156:])
    header[148:156] = f"{sum(byte - 256 if byte > 127 else byte for byte in spaces):06o}\0 ".encode()
    (path := tmp_path / "data.tar").write_bytes(bytes(header) + jpeg(0) + bytes(-len(jpeg(0)) % 512 + 1024))
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["cat/é.jpg"]
    assert list(summary(opened(path))) == ["data.tar/cat/é.jpg"]


@GZ
def test_reads_a_size_in_base_256(tmp_path: Path, gz: bool) -> None:
    header = bytearray(member("cat/0.jpg", jpeg(0))[0].tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + len(jpeg(0)).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    data = bytes(header) + jpeg(0) + bytes(-len(jpeg(0)) % 512 + 1024)
    (path := tmp_path / "data.tar").write_bytes(gzip.compress(data) if gz else data)
    with tarfile.open(path) as tar:
        assert [info.size for info in tar] == [len(jpeg(0))]
    assert summary(opened(path)) == {"data.tar/cat/0.jpg": ("train", ("cat",), jpeg(0))}


@GZ
def test_resolves_paths_with_dots_and_rejects_outside_paths(tmp_path: Path, gz: bool) -> None:
    names = ["./cat/0.jpg", "cat/./1.jpg", "dog/../cat/../dog/2.jpg", "../cat/3.jpg", "cat/.4.jpg", "../.DS_Store"]
    path = tmp_path / "data.tar"
    data = tar_bytes([(name, jpeg(number)) for number, name in enumerate(names)])
    path.write_bytes(gzip.compress(data) if gz else data)
    found, rejected = listed_and_rejected(opened(path))
    assert [(reference.key, reference.labels) for reference in found] == [
        ("data.tar/cat/0.jpg", ("cat",)),
        ("data.tar/cat/1.jpg", ("cat",)),
        ("data.tar/dog/2.jpg", ("dog",)),
    ]
    assert [(error.key, error.source) for error in rejected] == [("data.tar/../cat/3.jpg", f"{path}/../cat/3.jpg")]
    assert "outside the archive" in rejected[0].reason
    passed: list[str] = []
    for unit in opened(path).parts():
        list(opened(path).references(unit, passed, lambda _: None))
    assert passed == [f"{path}/cat/.4.jpg", f"{path}/../.DS_Store"]


@GZ
@pytest.mark.parametrize("size", [1 << 62, 1 << 63, 1 << 80])
def test_rejects_impossible_sizes(tmp_path: Path, gz: bool, size: int) -> None:
    members = [(f"cat/{number}.jpg", jpeg(number)) for number in range(4)]
    data = bytearray(tar_bytes(members))
    start = data.rindex(b"cat/3.jpg")
    data[start + 124 : start + 136] = b"\x80" + size.to_bytes(11, "big")
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    path = tmp_path / "data.tar"
    path.write_bytes(gzip.compress(data) if gz else data)
    with pytest.raises(CorruptionError, match=f"{size}|is cut") as caught:
        listed_and_rejected(opened(path))
    assert caught.value.path == str(path)


def test_rejects_classes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "data.tar"
    name = os.fsdecode(b"c\xe9t/0.jpg")
    path.write_bytes(tar_bytes([(name, jpeg(0)), ("dog/1.jpg", jpeg(1))]))
    found, rejected = listed_and_rejected(opened(path))
    assert [reference.labels for reference in found] == [("dog",)]
    assert [error.key for error in rejected] == [f"data.tar/{name}"]


@GZ
@pytest.mark.parametrize("place", [-1, len("path=")], ids=["length", "equals"])
def test_rejects_damaged_pax_headers(tmp_path: Path, place: int, gz: bool) -> None:
    name = f"cat/{'a' * 120}/dog/0.jpg"
    data = bytearray(tar_bytes([("cat/1.jpg", jpeg(1)), (name, jpeg(0))], tarfile.PAX_FORMAT))
    data[data.index(b" path=") + place] ^= 0x40
    path = tmp_path / "data.tar"
    path.write_bytes(gzip.compress(data) if gz else data)
    with pytest.raises(CorruptionError, match=r"data\.tar at byte \d+: a damaged pax header"):
        listed(opened(path))


def test_reads_a_member_after_2000_headers(tmp_path: Path) -> None:
    names = [member("x", f"cat/{number}.jpg\0".encode(), b"L") for number in range(2000)]
    path = write_members(tmp_path / "data.tar", [*names, member("short", jpeg(0))])
    assert summary(opened(path)) == {"data.tar/cat/1999.jpg": ("train", ("cat",), jpeg(0))}

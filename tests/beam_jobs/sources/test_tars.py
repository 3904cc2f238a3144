"""Tars of images: which form they have, their members, their classes, and damage.

Members are compared with those of other programs. Tests lower the limits that a conversion reaches only with archives of
many GB.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.references.labels import Labels
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.tars.file import open_tar
from beam_jobs.sources.tars.form import CLASSES, detect_tar_form
from beam_jobs.sources.tars.form import PAIRS as PAIRED
from beam_jobs.sources.tars.members import list_tar_members
from beam_jobs.sources.tars.tars import Tars
from beam_jobs.sources.tars.unit import TarUnit, list_tar_files
from tests.beam_jobs.sources.inputs import (
    converted,
    ignored,
    jpeg,
    listed,
    listed_and_rejected,
    opened,
    summary,
    tar_bytes,
    units,
    write_files,
)
from tpudata.errors import BadRecordError, CorruptionError, SourceError, UsageError

FLAT = [("cat/0.jpg", jpeg(0)), ("cat/1.jpg", jpeg(1)), ("dog/2.jpg", jpeg(2))]
PAIRS = [("0.jpg", jpeg(0)), ("0.cls", b"3"), ("1.cls", b"1"), ("1.jpg", jpeg(1))]
GZ = pytest.mark.parametrize("gz", [False, True])


def write_tar(folder: Path, files: list[tuple[str, bytes]], gz: bool = False, name: str = "data.tar") -> Path:
    path = folder / (f"{name}.gz" if gz else name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(tar_bytes(files)) if gz else tar_bytes(files))
    return path


# A file whose name ends in a slash is none that a file system has.
NAMES = st.lists(
    st.text(st.sampled_from("abé/.x "), min_size=1, max_size=180).filter(lambda name: not name.endswith("/")),
    min_size=1,
    max_size=8,
)


def keeps_dots(name: str) -> bool:
    """Whether no part of a name is resolved: test_tar_members.py has those that are."""
    return not {".", ".."} & {*name.split("/")}


@settings(max_examples=150)
@given(
    names=NAMES,
    sizes=st.lists(st.sampled_from([0, 1, 511, 512, 513, 9000]), min_size=8, max_size=8),
    form=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    gz=st.booleans(),
)
def test_finds_the_members_that_tarfile_finds(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], sizes: list[int], form: int, gz: bool
) -> None:
    try:
        data = tar_bytes([(name, bytes(size)) for name, size in zip(names, sizes, strict=False)], form)
    except ValueError:
        return  # ustar has no room for such a name
    path = tmp_path_factory.mktemp("tar") / "t"
    path.write_bytes(gzip.compress(data) if gz else data)
    with tarfile.open(path) as tar:
        wanted = [(info.name.removeprefix("./"), info.offset_data, info.size) for info in tar if info.isreg()]
    with open_tar(str(path), "gzip" if gz else "") as (file, size):
        found = [(member.name, member.offset, member.size) for member in list_tar_members(file, str(path), 0, size)]
    # tarfile takes slashes from the ends of names, and a name with one at its end is a folder to it and to us.
    assert [place for _, *place in found] == [place for _, *place in wanted]
    for (name, *_), (written, *_) in zip(found, wanted, strict=True):
        assert name == written or not keeps_dots(written)


@pytest.mark.parametrize("number", [8**11 - 1, 8**11, 2**40])
def test_reads_sizes_beyond_octal_digits(number: int) -> None:
    info = tarfile.TarInfo("large")
    info.size = number
    header = info.tobuf(tarfile.GNU_FORMAT)
    (member,) = (next(list_tar_members(io.BytesIO(header), "t", 0, None)),)
    assert member.size == number


@GZ
def test_takes_classes_from_folders_in_a_tar(tmp_path: Path, gz: bool) -> None:
    hidden = [("cat/.DS_Store", b"x"), ("__MACOSX/cat/._0.jpg", b"x")]
    path = write_tar(tmp_path, [("./" + name, data) for name, data in FLAT] + hidden, gz)
    source = opened(path)
    assert summary(source) == {f"data.tar/{name}": ("train", (name[:3],), data) for name, data in FLAT}
    assert [bool(reference.data) for reference in listed(source)] == [gz] * 3
    assert ignored(source) == [f"{path}/{name}" for name, _ in hidden]
    assert (source.has_classes, source.labels, source.integer_labels) == (True, None, False)


@GZ
def test_takes_splits_from_folders_above_the_classes(tmp_path: Path, gz: bool) -> None:
    path = write_tar(tmp_path, [("set/train/cat/0.jpg", jpeg(0)), ("set/test/cat/0.jpg", jpeg(1))], gz)
    assert [(ref.split, ref.labels) for ref in listed(opened(path))] == [("train", ("cat",)), ("test", ("cat",))]
    with pytest.raises(UsageError, match=r"--split: .*has split folders already \(train\)"):
        listed(opened(path, split="train=0.5,test=0.5"))


def test_rejects_a_member_without_class_unless_unlabelled(tmp_path: Path) -> None:
    for name in ("0.jpg", "train/0.jpg"):
        path = write_tar(tmp_path, [(name, jpeg(0))])
        with pytest.raises(SourceError, match=f"member {name} lies in no folder of its class.*--unlabelled"):
            listed(opened(path))
        assert summary(opened(path, SourceOptions(unlabelled=True))) == {f"data.tar/{name}": ("train", (), jpeg(0))}


def test_keeps_an_empty_member_of_a_compressed_tar(tmp_path: Path) -> None:
    path = write_tar(tmp_path, [("cat/0.jpg", b"")], gz=True)
    (reference,) = listed(opened(path))
    assert (reference.size, reference.data) == (0, b"")
    assert reference.offset >= 0


def test_takes_a_class_from_each_tar_in_a_tar(tmp_path: Path) -> None:
    inner = {f"n0000000{i}": [(f"n0000000{i}_{j}.JPEG", jpeg(10 * i + j)) for j in range(3)] for i in range(2)}
    path = write_tar(tmp_path, [(f"{name}.tar", tar_bytes(files)) for name, files in inner.items()])
    source = opened(path)
    assert len(units(source)) == 2
    assert summary(source) == {
        f"data.tar/{name}.tar/{file}": ("train", (name,), data) for name, files in inner.items() for file, data in files
    }
    packed = write_tar(tmp_path, [(f"{name}.tar", tar_bytes(files)) for name, files in inner.items()], gz=True)
    with pytest.raises(SourceError, match=r"a compressed tar of tars.*Unpack it"):
        opened(packed)
    path = write_tar(tmp_path, [("a.tar", tar_bytes(FLAT)), ("b.tar.gz", gzip.compress(tar_bytes(FLAT)))])
    with pytest.raises(SourceError, match=r"member b\.tar\.gz is not a tar.*It is compressed"):
        listed(opened(path))


@GZ
def test_reads_pairs_of_images_and_classes(tmp_path: Path, gz: bool) -> None:
    source = opened(write_tar(tmp_path, PAIRS, gz))
    assert summary(source) == {
        "data.tar/0.jpg": ("train", ("3",), jpeg(0)),
        "data.tar/1.jpg": ("train", ("1",), jpeg(1)),
    }
    assert source.integer_labels
    assert source.labels is None
    named = opened(write_tar(tmp_path, PAIRS, gz), SourceOptions(labels_file=str(names_file(tmp_path, "abcd"))))
    assert [reference.labels for reference in listed(named)] == [("d",), ("b",)]
    assert named.labels == Labels(("a", "b", "c", "d"))


@GZ
def test_lists_two_samples_with_one_key_separately(tmp_path: Path, gz: bool) -> None:
    # A conversion then rejects the key that comes twice, and no image is lost without notice.
    twice = [("0.jpg", jpeg(0)), ("0.cls", b"1"), ("0.jpg", jpeg(1)), ("0.cls", b"2")]
    found = listed(opened(write_tar(tmp_path, twice, gz)))
    assert [(reference.key, reference.labels) for reference in found] == [
        ("data.tar/0.jpg", ("1",)),
        ("data.tar/0.jpg", ("2",)),
    ]


def names_file(folder: Path, names: str) -> Path:
    path = folder / "names.txt"
    path.write_text("\n".join(names))
    return path


@GZ
def test_reads_classes_of_json_and_text(tmp_path: Path, gz: bool) -> None:
    source = opened(
        write_tar(tmp_path, [("a/0.x.png", b"i"), ("a/0.jpg", jpeg(0)), ("a/0.json", b'{"label": "cat"}')], gz)
    )
    assert summary(source) == {"data.tar/a/0.jpg": ("train", ("cat",), jpeg(0))}
    # What a sample holds next to image and label is counted.
    assert [path.rsplit("/", 1)[1] for path in ignored(source)] == ["0.x.png"]
    source = opened(write_tar(tmp_path, [("0.PNG", jpeg(0)), ("0.txt", b" a cat\n")], gz))
    assert [reference.labels for reference in listed(source)] == [("a cat",)]
    source = opened(write_tar(tmp_path, [("0.json", b'{"label": [1, 5]}'), ("0.jpg", jpeg(0))], gz))
    assert source.several_labels
    assert source.integer_labels
    assert [reference.labels for reference in listed(source)] == [("1", "5")]


@GZ
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ([("1.jpg", jpeg(1))], r"no \.cls, \.json or \.txt follows or precedes it: 1\.jpg; .*--sort=name"),
        ([("1.cls", b"1")], "a sample needs one image; it has cls"),
        ([("1.jpg", jpeg(1)), ("1.png", b""), ("1.cls", b"1")], "needs one image; it has jpg, png, cls"),
        ([("1.jpg", jpeg(1)), ("1.cls", b"dog")], "label is not a whole number .*: 'dog'"),
        ([("1.jpg", jpeg(1)), ("1.json", b'{"label": null}')], '"label" is not a label: it is null'),
        ([("1.jpg", jpeg(1)), ("1.json", b"[1]")], 'it has no "label"; write one, or pass --unlabelled'),
        ([("1.jpg", jpeg(1)), ("1.json", b'{"caption": "x"}')], 'it has no "label"; write one, or pass --unlabelled'),
        ([("1.b.jpg", jpeg(1)), ("1.b.cls", b"1")], "the name of a sample ends at the first dot, so .*'b\\.jpg'"),
        ([("1.jpg", jpeg(1)), ("1.json", b"{")], "not JSON"),
        ([("1.jpg", jpeg(1)), ("1.json", b"[" * 100_000)], "not JSON: it is nested too deep"),
        ([("1.jpg", jpeg(1)), ("1.json", b'{"label": ' + b"[" * 900 + b"]" * 900 + b"}")], '"label" is not a label'),
        ([("1.jpg", jpeg(1)), ("1.json", b'{"label": [1]}')], "a list of labels, unlike the first sample"),
        ([("1.jpg", jpeg(1)), ("1.txt", b"two\nlines")], "a label is one line of text: it has 2 lines"),
        ([("1.jpg", jpeg(1)), ("1.cls", b"")], "0 lines of text"),
        ([("1.jpg", jpeg(1)), ("1.cls", b"99999999")], "more than 1,000,000"),
    ],
)
def test_rejects_bad_pairs_or_skips_them(
    tmp_path: Path, gz: bool, broken: list[tuple[str, bytes]], message: str
) -> None:
    path = write_tar(tmp_path, [*PAIRS[:2], *broken, ("2.jpg", jpeg(2)), ("2.cls", b"1")], gz)
    with pytest.raises(SourceError, match=f"{path}/1.*: rejected: .*{message}"):
        listed(opened(path))
    found, rejected = listed_and_rejected(opened(path))
    assert [reference.key for reference in found] == ["data.tar/0.jpg", "data.tar/2.jpg"]
    assert len(rejected) == 1


@GZ
@pytest.mark.parametrize("first", ["dog", "-1", "01", "1.0"])
def test_rejects_pairs_that_mix_numbers_and_names_as_labels(tmp_path: Path, gz: bool, first: str) -> None:
    files = [("0.jpg", jpeg(0)), ("0.cls", first.encode()), ("1.jpg", jpeg(1)), ("1.cls", b"7")]
    path = write_tar(tmp_path, files, gz)
    found, rejected = listed_and_rejected(opened(path))
    assert [reference.labels for reference in found] == [("dog",)] * (first == "dog")
    assert [(error.reason or "").split(";")[0] for error in rejected] == [
        f"its label is a number, and the first label of the input is not a whole number from 0: '{label}'"
        for label in ([first] * (first != "dog") + ["7"])
    ]
    assert [ref.labels for ref in listed(opened(path, SourceOptions(label_type="str")))] == [(first,), ("7",)]
    found, rejected = listed_and_rejected(opened(path, SourceOptions(label_type="int")))
    assert [reference.labels for reference in found] == [("7",)]


def test_treats_numeric_folders_as_names_unless_label_type_is_int(tmp_path: Path) -> None:
    files = [(f"{name}/0.jpg", jpeg(number)) for number, name in enumerate(["10", "2", "x"])]
    path = write_tar(tmp_path, files)
    source = opened(path)
    assert not source.integer_labels
    assert [reference.labels for reference in listed(source)] == [("10",), ("2",), ("x",)]
    source = opened(path, SourceOptions(label_type="int"))
    assert source.integer_labels
    found, rejected = listed_and_rejected(source)
    assert [reference.labels for reference in found] == [("10",), ("2",)]
    assert [error.key for error in rejected] == ["data.tar/x/0.jpg"]
    outer = write_tar(
        tmp_path, [(f"{name}.tar", tar_bytes([("0.jpg", jpeg(0))])) for name in ("10", "2")], name="o.tar"
    )
    source = opened(outer, SourceOptions(label_type="int"))
    assert (source.integer_labels, [ref.labels for ref in listed(source)]) == (True, [("10",), ("2",)])
    # The lines of a file are what numbers stand for.
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    source = opened(path, SourceOptions(label_type="int", labels_file=f"{tmp_path}/names.txt"))
    assert [ref.labels for ref in listed_and_rejected(source)[0]] == [("c",)]


def test_lists_samples_without_labels_if_unlabelled(tmp_path: Path) -> None:
    path = write_tar(tmp_path, [("0.jpg", jpeg(0)), ("0.json", b'{"caption": "x"}'), ("1.jpg", jpeg(1))])
    source = opened(path, SourceOptions(unlabelled=True))
    assert summary(source) == {f"data.tar/{n}.jpg": ("train", (), jpeg(n)) for n in range(2)}


def test_infers_labels_after_a_bad_first_sample(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path, [("0.jpg", jpeg(0)), ("0.json", b"{}"), ("1.jpg", jpeg(1)), ("1.json", b'{"label": [7]}')]
    )
    source = opened(path)
    assert (source.integer_labels, source.several_labels) == (True, True)
    found, rejected = listed_and_rejected(source)
    assert [reference.labels for reference in found] == [("7",)]
    assert [error.key for error in rejected] == ["data.tar/0"]


@GZ
def test_lists_a_unit_for_each_tar(tmp_path: Path, gz: bool) -> None:
    for number in range(3):
        write_tar(tmp_path / "in", [(f"cat/{number}.jpg", jpeg(number))], gz, f"shard-{number}.tar")
    wanted = {f"shard-{i}.tar/cat/{i}.jpg": ("train", ("cat",), jpeg(i)) for i in range(3)}
    for source in (opened(tmp_path / "in"), opened(f"{tmp_path}/in/shard-*")):
        assert isinstance(source, Tars)
        assert len(units(source)) == 3
        assert summary(source) == wanted


def test_rejects_links_and_skips_devices(tmp_path: Path) -> None:
    path = tmp_path / "data.tar"
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("cat/0.jpg"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo(f"cat/{kind.decode()}.jpg")
            info.type, info.linkname = kind, "0.jpg"
            tar.addfile(info)
    with pytest.raises(SourceError, match=r"2\.jpg: rejected: a link .to 0\.jpg.; .*--dereference"):
        listed(opened(path))
    found, rejected = listed_and_rejected(opened(path))
    assert [reference.key for reference in found] == ["data.tar/cat/0.jpg"]
    assert [error.source for error in rejected] == [f"{path}/cat/2.jpg", f"{path}/cat/1.jpg"]


@pytest.mark.parametrize("size", [300, 512, 700, 1023, 1024, 1536, 2000, 2048, 3071, 3072])
@GZ
def test_rejects_a_tar_truncated_anywhere(tmp_path: Path, size: int, gz: bool) -> None:
    # Each member takes a header and a block of content, so that 3,072 bytes end between the last and the end mark.
    data = tar_bytes([(f"cat/{number}.jpg", bytes(500)) for number in range(3)])[:size]
    path = tmp_path / "t.tar"
    path.write_bytes(gzip.compress(data) if gz else data)
    if size < 512:
        with pytest.raises(SourceError):
            listed(opened(path))
        return
    with pytest.raises(CorruptionError, match=r"t\.tar at byte \d+: the tar is cut"):
        listed(opened(path))


def test_rejects_truncated_and_damaged_gzip_streams(tmp_path: Path) -> None:
    data = gzip.compress(tar_bytes(FLAT))
    path = tmp_path / "t.tar.gz"
    for size in range(len(data) - 1, len(data) // 2, -97):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptionError, match=r"t\.tar\.gz at byte \d+: the gzip stream is cut"):
            listed(opened(path))
    flipped = bytearray(data)
    flipped[-6] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(CorruptionError, match=r"damaged: .*incorrect data check"):
        listed(opened(path))


def test_rejects_a_damaged_header(tmp_path: Path) -> None:
    path = write_tar(tmp_path, FLAT)
    data = bytearray(path.read_bytes())
    (offset,) = [reference.offset - 512 for reference in listed(opened(path)) if reference.key.endswith("1.jpg")]
    data[offset + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=rf"data\.tar at byte {offset}: no tar header"):
        listed(opened(path))


def test_rejects_bytes_after_the_end_mark(tmp_path: Path) -> None:
    path = tmp_path / "two.tar"
    path.write_bytes(tar_bytes(FLAT) * 2)
    with pytest.raises(CorruptionError, match="after the tar's end mark"):
        listed(opened(path))


def test_rejects_a_sparse_member(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tar"
    info = tarfile.TarInfo("cat/0.jpg")
    info.type = tarfile.GNUTYPE_SPARSE
    path.write_bytes(info.tobuf() + bytes(1024))
    with pytest.raises(SourceError, match="sparse"):
        listed(opened(path))


def test_converts_plain_and_compressed_tars_alike(tmp_path: Path) -> None:
    plain = converted(write_tar(tmp_path, FLAT), tmp_path / "plain")
    packed = converted(write_tar(tmp_path, FLAT, gz=True), tmp_path / "packed")
    wanted = {f"data.tar/{name}".encode(): (int(name.startswith("dog")), data) for name, data in FLAT}
    assert plain == packed == {"train": wanted}
    (name,) = [path.name for path in (tmp_path / "plain").glob("train-*")]
    assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "packed" / name).read_bytes()


def test_converts_pairs(tmp_path: Path) -> None:
    found = converted(write_tar(tmp_path, PAIRS), tmp_path / "out")
    assert found == {"train": {b"data.tar/0.jpg": (3, jpeg(0)), b"data.tar/1.jpg": (1, jpeg(1))}}


def test_rejects_other_archives(tmp_path: Path) -> None:
    write_files(
        tmp_path, {"a.7z": b"7z\xbc\xaf", "a.tar.xz": b"\xfd7zXZ\0", "a.csv.gz": gzip.compress(b"path,label\n")}
    )
    for name, message in (
        ("a.7z", "a 7z archive. Unpack it"),
        ("a.tar.xz", "the xz stream is cut or damaged"),
        ("a.csv.gz", "compressed with gzip, and neither a tar nor an IDX file"),
    ):
        with pytest.raises((SourceError, CorruptionError), match=message):
            opened(tmp_path / name)


def test_rejects_list_flags(tmp_path: Path) -> None:
    path = write_tar(tmp_path, FLAT)
    with pytest.raises(UsageError, match=r"--path-column is for CSV and JSONL lists, and .*data\.tar is a tar"):
        opened(path, SourceOptions(path_column="x"))


def test_reads_json_labels_of_any_size(tmp_path: Path) -> None:
    label = json.dumps({"label": "c" * 100_000})
    source = opened(write_tar(tmp_path, [("0.jpg", jpeg(0)), ("0.json", label.encode())]))
    assert [len(reference.labels[0]) for reference in listed(source)] == [100_000]


@GZ
def test_rejects_a_member_that_is_too_large(tmp_path: Path, gz: bool) -> None:
    path = write_tar(tmp_path, [*FLAT, ("cat/9.jpg", bytes(90_001))], gz)
    rejections: list[BadRecordError] = []
    with open_tar(str(path), "gzip" if gz else "") as (file, size):
        members = list(list_tar_files(file, TarUnit(str(path), ""), size, [], rejections.append, max_bytes=90_000))
    assert [member.name for member in members] == [name for name, _ in FLAT]
    assert [(error.source, error.reason.split(":")[0]) for error in rejections] == [(f"{path}/cat/9.jpg", "too large")]


@pytest.mark.parametrize(
    "first",
    [
        [("._0.jpg", bytes(2 << 20))],
        [("a/0.jpg", bytes(2 << 20)), ("a/0.cls", b"3")],
        [("a/0.cls", b" " * (2 << 20))],
        [(f"._{number}.jpg", bytes(1 << 10)) for number in range(1 << 10)],
    ],
    ids=["skipped", "image", "label", "many small"],
)
def test_unpacks_at_most_1_mebibyte_to_find_the_form_of_a_tar(tmp_path: Path, first: list[tuple[str, bytes]]) -> None:
    path = write_tar(tmp_path, [*first, *FLAT], gz=True)
    assert opened(path).has_classes
    with pytest.raises(SourceError, match=r"data\.tar\.gz is compressed, and its first 1 MiB do not show.*Unpack it"):
        detect_tar_form(TarUnit(str(path), ""), reads_labels=True, max_examined_bytes=1 << 20)
    # Of one that is not compressed, what is skipped is not read.
    plain = write_tar(tmp_path, [*first, *FLAT])
    assert detect_tar_form(TarUnit(str(plain), ""), reads_labels=True, max_examined_bytes=1 << 20).form in (
        CLASSES,
        PAIRED,
    )


def test_does_not_unpack_trailing_zeros_to_find_the_form_of_a_tar(tmp_path: Path) -> None:
    path = tmp_path / "data.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes([(".hidden", b"")]) + bytes(2 << 20)))
    with pytest.raises(SourceError, match="do not show what it holds"):
        detect_tar_form(TarUnit(str(path), ""), reads_labels=True, max_examined_bytes=1 << 20)


@GZ
@pytest.mark.parametrize("size", [-512, -1])
def test_rejects_negative_sizes(tmp_path: Path, gz: bool, size: int) -> None:
    info = tarfile.TarInfo("a/0.jpg")
    info.pax_headers = {"size": str(size)}
    data = info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    (path := tmp_path / "data.tar").write_bytes(gzip.compress(data) if gz else data)
    with pytest.raises(CorruptionError, match=f"a tar header with the size {size}"):
        opened(path)


@GZ
@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_rejects_headers_larger_than_any_name(tmp_path: Path, gz: bool, kind: bytes) -> None:
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, 2**60
    data = info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)
    (path := tmp_path / "data.tar").write_bytes(gzip.compress(data) if gz else data)
    with pytest.raises(CorruptionError, match=r"at byte 0: (a tar header of|the tar is cut)"):
        opened(path)


def test_keys_of_rejects_do_not_depend_on_the_folder_of_the_tar(tmp_path: Path) -> None:
    files = [*PAIRS, ("2.jpg", jpeg(2)), ("3.jpg", jpeg(3)), ("3.cls", b"tab\nby")]
    for folder in ("one", "two"):
        rejections = listed_and_rejected(opened(write_tar(tmp_path / folder, files)))[1]
        assert [error.key for error in rejections] == ["data.tar/2", "data.tar/3"]
        assert all(str(tmp_path) not in (error.reason or "") for error in rejections)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_reads_tars_of_other_compressions(tmp_path: Path, suffix: str) -> None:
    files = [*FLAT, ("dog/large.jpg", bytes(range(256)) * 10_000)]
    path = tmp_path / f"data.tar{suffix}"
    path.write_bytes(PACKERS[suffix](tar_bytes(files)))
    assert summary(opened(path)) == {
        f"data.tar/{name}": ("train", (name.partition("/")[0],), data) for name, data in files
    }
    path.write_bytes(PACKERS[suffix](tar_bytes(PAIRS)))
    assert {key: labels for key, (_, labels, _) in summary(opened(f"{tmp_path}/*")).items()} == {
        "data.tar/0.jpg": ("3",),
        "data.tar/1.jpg": ("1",),
    }


@pytest.mark.parametrize("suffix", PACKERS)
def test_names_a_truncated_compressed_tar(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.tar{suffix}"
    data = PACKERS[suffix](tar_bytes([*FLAT, ("dog/3.jpg", random.Random(0).randbytes(100_000))]))
    path.write_bytes(data[: len(data) - 40_000])
    with pytest.raises(CorruptionError, match=re.escape(str(path))):
        listed(opened(path))


@GZ
@pytest.mark.parametrize("unlabelled", [False, True])
def test_stores_texts_that_are_not_classes_as_captions(tmp_path: Path, gz: bool, unlabelled: bool) -> None:
    members = [("0.jpg", jpeg(0)), ("0.txt", "ein Haus, größer\n".encode()), ("1.jpg", jpeg(1))]
    if not unlabelled:
        members = [("0.cls", b"3"), *members, ("1.cls", b"4")]
    source = opened(write_tar(tmp_path, members, gz), SourceOptions(unlabelled=unlabelled))
    found = listed(source)
    assert [reference.features["image/caption"] for reference in found] == [["ein Haus, größer"], []]
    assert [reference.labels for reference in found] == ([(), ()] if unlabelled else [("3",), ("4",)])
    assert [feature.name for feature in source.features] == ["image/caption"]
    assert ignored(source) == []


def test_rejects_captions_that_are_not_utf8(tmp_path: Path) -> None:
    path = write_tar(tmp_path, [("0.jpg", jpeg(0)), ("0.txt", b"\xff")], False)
    _, (error,) = listed_and_rejected(opened(path, SourceOptions(unlabelled=True)))
    assert error.reason == "not UTF-8 text"

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
from PIL import Image

from beam_jobs.images import run
from beam_jobs.references.labels import Labels
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import (
    converted,
    ignored,
    jpeg,
    listed,
    listed_and_rejected,
    opened,
    summary,
    tar_bytes,
    write_files,
)
from tests.helpers.stores import serve_gs
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import open_dataset

FILES = {
    f"{split}/{name}/{i}.jpg": jpeg(i)
    for i, (split, name) in enumerate([("train", "cat"), ("train", "dog"), ("test", "cat")])
}
UNLABELLED = SourceOptions(unlabelled=True)
LIST = b"path,label\n0.jpg,cat\n"
IDX_IMAGES, IDX_LABELS = b"\0\0\x08\x03\0\0\0\1\0\0\0\1\0\0\0\1\7", b"\0\0\x08\x01\0\0\0\1\5"


def test_takes_class_and_split_from_the_folders_above_a_file(tmp_path: Path) -> None:
    write_files(tmp_path, {**FILES, "train/cat/.hidden.jpg": b"", "train/cat/notes.txt": b"not matched"})
    wanted = {key: (key.split("/")[0], (key.split("/")[1],), data) for key, data in FILES.items()}
    for pattern in ("*/*/*.jpg", "**/*.jpg", "**/cat/**/*.jpg"):
        source = opened(f"{tmp_path}/{pattern}")
        assert summary(source) == {key: value for key, value in wanted.items() if "cat" in key or "cat" not in pattern}
        with pytest.raises(UsageError, match=r"--split: .*split folders already \(test, train\)"):
            opened(f"{tmp_path}/{pattern}", split="train=0.5,test=0.5")


def test_fixed_folders_of_a_pattern_set_no_split(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    assert summary(opened(f"{tmp_path}/test/*/*")) == {"cat/2.jpg": ("train", ("cat",), jpeg(2))}
    assert summary(opened(f"{tmp_path}/test/cat/?.jpg")) == {"2.jpg": ("train", ("cat",), jpeg(2))}


def test_rejects_files_without_a_class_unless_unlabelled(tmp_path: Path) -> None:
    write_files(tmp_path, {"train/0.jpg": jpeg(0)})
    with pytest.raises(SourceError, match=r"0\.jpg lies in no folder of its class"):
        listed(opened(f"{tmp_path}/*/*.jpg"))
    assert summary(opened(f"{tmp_path}/*/*.jpg", UNLABELLED)) == {"train/0.jpg": ("train", (), jpeg(0))}


def test_lists_a_folder_of_unlabelled_images(tmp_path: Path) -> None:
    write_files(tmp_path, {"0.jpg": b"", "a/1.jpg": jpeg(1), "test/b/2.jpg": jpeg(2), "Thumbs.db": b"x"})
    with pytest.raises(SourceError, match=r"has 0\.jpg next to its folders.* or pass --unlabelled"):
        opened(tmp_path)
    source = opened(tmp_path, UNLABELLED)
    assert not source.has_classes
    assert summary(source) == {
        "0.jpg": ("train", (), b""),
        "a/1.jpg": ("train", (), jpeg(1)),
        "test/b/2.jpg": ("test", (), jpeg(2)),
    }
    assert ignored(source) == [f"{tmp_path}/Thumbs.db"]


def test_rejects_files_of_classes_outside_the_labels_file(tmp_path: Path) -> None:
    write_files(tmp_path, {"in/cat/0.jpg": jpeg(0), "in/dog/1.jpg": jpeg(1), "names.txt": b"dog\n"})
    source = opened(f"{tmp_path}/in/*/*", SourceOptions(labels_file=f"{tmp_path}/names.txt"))
    assert source.labels == Labels(("dog",))
    found, rejected = listed_and_rejected(source)
    assert [reference.key for reference in found] == ["dog/1.jpg"]
    assert [error.source for error in rejected] == [f"{tmp_path}/in/cat/0.jpg"]


def test_rejects_patterns_that_match_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"cat/0.jpg": jpeg(0)})
    with pytest.raises(SourceError, match="matches no file"):
        opened(f"{tmp_path}/*")
    with pytest.raises(SourceError, match=r"there is no folder .*/nowhere"):
        opened(f"{tmp_path}/nowhere/*")
    with pytest.raises(UsageError, match="--label-column is for CSV and JSONL lists"):
        opened(f"{tmp_path}/*/*", SourceOptions(label_column="x"))


def test_matches_every_kind_of_image(tmp_path: Path) -> None:
    names = ("JPEG", "PNG", "GIF", "WebP", "BMP", "TIFF", "PPM")
    for name in names:
        data = io.BytesIO()
        Image.new("RGB", (9, 7), (10, 200, 90)).save(data, name)
        files = write_files(tmp_path / name, {f"{kind}/0.{name.lower()}": data.getvalue() for kind in ("cat", "dog")})
        assert set(summary(opened(f"{files}/*/*.{name.lower()}"))) == {
            f"{kind}/0.{name.lower()}" for kind in ("cat", "dog")
        }
        with pytest.raises(SourceError, match="is one image"):
            opened(files / "cat" / f"0.{name.lower()}")
    found = converted(f"{tmp_path}/P*/*/*", tmp_path / "out")["train"]
    assert {key: label for key, (label, _) in found.items()} == {
        b"PNG/cat/0.png": 0,
        b"PNG/dog/0.png": 1,
        b"PPM/cat/0.ppm": 0,
        b"PPM/dog/0.ppm": 1,
    }


FIRST_FILES = [
    ("*/*.jpg", b"", "the file is empty"),
    ("**", b"<html><body>404</body></html>", "HTML"),
    ("*/*", b"PK\3\4 and more", "a zip file"),
    ("**/?.*", b"path,label\n", "unknown image format"),
]


@pytest.mark.parametrize(
    ("pattern", "bad", "reason", "skips"),
    [
        *((*case, False) for case in FIRST_FILES),
        *(pytest.param(*case, True, marks=() if case[0] == "**" else pytest.mark.matrix) for case in FIRST_FILES),
    ],
)
def test_counts_an_invalid_first_file_as_one_bad_record(
    tmp_path: Path, pattern: str, bad: bytes, reason: str, skips: bool
) -> None:
    write_files(tmp_path, {"in/cat/0.jpg": bad, **{f"in/dog/{i}.jpg": jpeg(i) for i in range(1, 4)}})
    argv = ["--input", f"{tmp_path}/in/{pattern}", "--output", f"{tmp_path}/out"]
    if not skips:
        with pytest.raises(BadRecordError, match=rf"cat/0\.jpg.*rejected: .*{reason}"):
            run(argv)
        return
    assert run([*argv, "--on-bad-record=skip", "--max-bad-records=1"]) == 0
    dataset = open_dataset(f"{tmp_path}/out")
    assert sorted(example["image/filename"][0] for example in dataset.examples("train")) == [
        b"dog/1.jpg",
        b"dog/2.jpg",
        b"dog/3.jpg",
    ]


def test_takes_the_form_of_matched_files_from_their_names(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "tars/a.tar": tar_bytes([("cat/0.jpg", jpeg(0))]),
            "tars/b.TAR": tar_bytes([("dog/1.jpg", jpeg(1))]),
            "packed/a.tar.gz": tar_bytes([("cat/0.jpg", jpeg(0))], mode="w:gz"),
            "packed/b.tgz": tar_bytes([("dog/1.jpg", jpeg(1))], mode="w:gz"),
            "lists/a.csv": LIST,
            "lists/b.tsv": LIST.replace(b",", b"\t").replace(b"0", b"1"),
            "lists/0.jpg": jpeg(0),
            "lists/1.jpg": jpeg(1),
            "rows/a.jsonl": b'{"path": "../lists/0.jpg", "label": "cat"}\n',
            "rows/b.json": b'{"path": "../lists/1.jpg", "label": "dog"}\n',
            "mnist/t10k-images-idx3-ubyte": IDX_IMAGES,
            "mnist/t10k-labels-idx1-ubyte": IDX_LABELS,
            # Files without a known ending are images; only the last ending counts, and only after a dot.
            "blobs/cat/0a1b": jpeg(0),
            "blobs/dog/tar": jpeg(1),
            "blobs/dog/x.csv.jpeg": jpeg(2),
        },
    )
    blobs = {"cat/0a1b", "dog/tar", "dog/x.csv.jpeg"}
    for pattern, keys in (
        ("tars/*", {"a.tar/cat/0.jpg", "b.TAR/dog/1.jpg"}),
        ("packed/*", {"a.tar/cat/0.jpg", "b.tgz/dog/1.jpg"}),
        ("packed/*.tgz", {"b.tgz/dog/1.jpg"}),
        ("lists/?.[ct]sv", {"0.jpg", "1.jpg"}),
        ("lists/*.csv", {"0.jpg"}),
        ("rows/*", {"../lists/0.jpg", "../lists/1.jpg"}),
        ("mnist/*", {"t10k-images-idx3-ubyte/00000000"}),
        ("mnist/*-labels-*", {"t10k-images-idx3-ubyte/00000000"}),
        ("blobs/*/*", blobs),
        ("blobs/**", blobs),
    ):
        assert {reference.key for reference in listed(opened(f"{tmp_path}/{pattern}"))} == keys, pattern


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("cat/0.jpg", "cat/labels.csv"), r"cat/labels\.csv is a list.*cat/0\.jpg is an image.*/\*\.jpg"),
        (("cat/a.json", "cat/a.jpg"), r"cat/a\.json is a list.*cat/a\.jpg is an image"),
        (("all/README", "all/a.tar"), r"all/a\.tar is a tar.*all/README is an image"),
        (("all/a.csv", "all/a.tar"), r"all/a\.csv is a list.*all/a\.tar is a tar"),
    ],
)
def test_rejects_patterns_that_match_several_forms(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    write_files(tmp_path, {f"in/{name}": b"x" for name in names})
    for pattern in ("*/*", "**"):
        with pytest.raises(SourceError, match=message):
            opened(f"{tmp_path}/in/{pattern}")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.7z", b"7z\xbc\xaf", "a 7z archive"),
        ("a.tar.bz2", b"BZh9", "compressed with bzip2"),
        ("a.csv", jpeg(0), "is one image"),
        ("a.tar", b"", "is empty"),
        ("a.csv.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x03\0\0\0\0\0\0\0\0\0", "compressed with gzip, and neither"),
    ],
)
def test_rejects_patterns_of_unsupported_forms(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    write_files(tmp_path, {f"all/{name}": data})
    for pattern in ("*", name.replace("a", "?", 1)):
        with pytest.raises(SourceError, match=rf"all/{name} .*{message}|all/{name} {message}"):
            opened(f"{tmp_path}/all/{pattern}")
    # Among images it is one bad record.
    if not name.endswith((".csv", ".csv.gz", ".tar", ".tar.bz2")):
        write_files(tmp_path, {"all/0.jpg": jpeg(0)})
        assert set(summary(opened(f"{tmp_path}/all/*"))) == {"0.jpg", name}


@pytest.mark.parametrize("first", ["BMI", "BM", "P3", "GIF"])
def test_reads_a_list_that_begins_like_an_image(tmp_path: Path, first: str) -> None:
    write_files(tmp_path, {"0.jpg": jpeg(0), "list.tsv": f"{first}\tpath\tlabel\n1\t0.jpg\tcat\n".encode()})
    for name in ("list.tsv", "*.tsv"):
        source = opened(tmp_path / name)
        assert [feature.name for feature in source.features] == [first]


def test_the_opened_source_does_not_grow_with_the_matches(tmp_path: Path) -> None:
    sizes = []
    for count in (2, 400):
        write_files(tmp_path, {f"in/cat/{i}.jpg": b"x" for i in range(count)})
        sizes.append([len(pickle.dumps(opened(f"{tmp_path}/in/{pattern}"))) for pattern in ("*/*", "*/*.jpg", "**")])
    assert sizes[0] == sizes[1]


def test_a_pattern_with_a_suffix_opens_without_listing_every_folder() -> None:
    with serve_gs(page=1000) as store:
        for i in range(30):
            store.put("b", f"in/class{i}/0.jpg", jpeg(i))
        requests = []
        for pattern in ("*/*.jpg", "*/*"):
            store.requests.clear()
            opened(f"gs://b/in/{pattern}")
            requests.append(store.requests["list"])
    # `*/*` may match anything, so every folder is listed.
    assert requests[0] < 10 < 30 < requests[1]


def test_a_folder_with_brackets_is_not_a_pattern(tmp_path: Path) -> None:
    write_files(tmp_path / "a[1]*", {"cat/0.jpg": jpeg(0)})
    assert summary(opened(tmp_path / "a[1]*")) == {"cat/0.jpg": ("train", ("cat",), jpeg(0))}


def test_converts_matched_images(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    assert converted(f"{tmp_path}/in/**/*.jpg", tmp_path / "out") == {
        "train": {b"train/cat/0.jpg": (0, jpeg(0)), b"train/dog/1.jpg": (1, jpeg(1))},
        "test": {b"test/cat/2.jpg": (0, jpeg(2))},
    }

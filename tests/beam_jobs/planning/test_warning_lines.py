"""Warnings that a conversion prints about its input."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from beam_jobs import images, text
from tests.beam_jobs.sources.inputs import jpeg, tar_bytes, write_files
from tpudata.cli import main
from tpudata.format import open_dataset

Capture = pytest.CaptureFixture[str]
KINDS = {"images": images.run, "text": text.run}


def warnings_of(kind: str, source: Path | str, capsys: Capture, *flags: str, output: Path | None = None) -> list[str]:
    """The warnings that a dry run prints, or a run where there is an output."""
    where = ["--output", str(output)] if output else ["--output", "unused", "--dry-run"]
    assert KINDS[kind](["--input", str(source), *where, *flags]) == 0
    *_, printed = capsys.readouterr().out.split("\nsplit ", 1)
    assert all(len(line) <= 100 or " " not in line.strip() for line in printed.splitlines())
    _, *warnings = printed.replace("\n            ", " ").split("\nwarning     ")
    return [line.rstrip("\n") for line in warnings]


def folders(root: Path, *names: str) -> Path:
    return write_files(root, {name if "." in name else f"{name}/1.jpg": jpeg(n) for n, name in enumerate(names)})


def samples(*fields: tuple[str, list[bytes]]) -> bytes:
    """A WebDataset tar."""
    count = len(fields[0][1])
    return tar_bytes([(f"{n}.{name}", values[n]) for n in range(count) for name, values in fields])


def idx_pair(folder: Path, prefix: str, count: int) -> None:
    folder.mkdir(exist_ok=True)
    images_head, labels_head = struct.pack(">HBBIII", 0, 8, 3, count, 4, 4), struct.pack(">HBBI", 0, 8, 1, count)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(images_head + bytes(16 * count))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels_head + bytes(count))


def test_an_ordinary_input_has_no_warnings(tmp_path: Path, capsys: Capture) -> None:
    source = folders(tmp_path / "in", "train/cat", "train/dog", "val/cat", "val/dog")
    assert warnings_of("images", source, capsys, output=tmp_path / "out") == []
    assert "warnings" not in json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert warnings_of("images", folders(tmp_path / "digits", *map(str, range(10))), capsys) == []
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    assert warnings_of("text", tmp_path / "train.jsonl", capsys) == []
    (tmp_path / "a.tar").write_bytes(samples(("jpg", [jpeg(0), jpeg(1)]), ("txt", [b"cat", b"dog"])))
    assert warnings_of("images", tmp_path / "a.tar", capsys) == []


def test_warns_of_columns_that_are_not_stored(tmp_path: Path, capsys: Capture) -> None:
    rows = pa.table({"image": [jpeg(0), jpeg(1)], "label": ["a", "b"], "url": ["u", "v"], "id": [1, 2]})
    parquet.write_table(rows, tmp_path / "a.parquet")
    line = "columns that are not stored: id, url; pass --column-types NAME=TYPE to store one"
    assert warnings_of("images", tmp_path / "a.parquet", capsys) == [line]
    out = tmp_path / "out"
    assert warnings_of("images", tmp_path / "a.parquet", capsys, output=out) == [line]
    assert open_dataset(str(out)).manifest.warnings == {"image_columns": line}
    assert main(["inspect", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == {"image_columns": line}
    assert main(["inspect", str(out), "--records", "0"]) == 0
    assert "\nwarning     columns that are not stored: id, url" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "parquet", "json"])
def test_warns_of_text_columns_that_no_field_names(tmp_path: Path, capsys: Capture, form: str) -> None:
    path = tmp_path / f"a.{form}"
    row = {"text": "x", "id": 1, "label": 0}
    if form == "parquet":
        parquet.write_table(pa.table({name: [value] for name, value in row.items()}), path)
    elif form in ("csv", "tsv"):
        lines = (row.keys(), map(str, row.values()))
        path.write_text("".join(("," if form == "csv" else "\t").join(line) + "\n" for line in lines))
    else:
        path.write_text(json.dumps(row if form == "jsonl" else [row]))
    assert warnings_of("text", path, capsys) == [
        "columns that are not stored: id, label; pass --field NAME:KIND to store one of text, of numbers or of lists"
    ]
    flags = ["--field", "text", "--field", "id:int", "--field", "label:int"]
    assert warnings_of("text", path, capsys, *flags) == []
    assert warnings_of("text", path, capsys, "--tokenizer", "bytes", "--sequence-length", "8") == []


def test_warns_of_a_readme_read_as_lines(tmp_path: Path, capsys: Capture) -> None:
    source = write_files(tmp_path / "in", {"README.md": b"# Data\n", "data/a.jsonl": b'{"text": "a"}\n'})
    (line,) = warnings_of("text", source, capsys)
    assert line == (
        "files that were read as lines, next to files of rows such as data/a.jsonl: README.md; name the files of rows by a"
        " pattern, such as --input 'DIR/**/*.jsonl'"
    )
    assert warnings_of("text", f"{source}/**/*.jsonl", capsys) == []


def test_append_warns_of_new_columns(tmp_path: Path, capsys: Capture) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write_files(source, {"a.jsonl": b'{"text": "a", "id": 1}\n'})
    assert "id;" in warnings_of("text", source, capsys, output=out)[0]
    write_files(source, {"b.jsonl": b'{"text": "b", "id": 1, "url": ""}\n'})
    assert "id, url;" in warnings_of("text", source, capsys, "--append", output=out)[0]
    assert "id, url;" in open_dataset(str(out)).manifest.warnings["columns"]


def test_warns_of_captions_taken_for_classes_and_of_unstored_fields(tmp_path: Path, capsys: Capture) -> None:
    pictures = [jpeg(n) for n in range(5)]
    path = tmp_path / "captions.tar"
    path.write_bytes(samples(("jpg", pictures), ("txt", [f"a cat on mat {n}".encode() for n in range(5)])))
    (line,) = warnings_of("images", path, capsys)
    assert line == (
        "the .txt of 5 samples was taken for its class, which makes 5 classes; if these are captions, pass --unlabelled to store"
        " them so"
    )
    labels = [json.dumps({"label": n % 2, "url": "u", "exif": {}}).encode() for n in range(5)]
    path.write_bytes(samples(("jpg", pictures), ("json", labels), ("txt", [b"a cat"] * 5), ("seg.png", pictures)))
    (line,) = warnings_of("images", path, capsys, output=tmp_path / "out")
    assert line.startswith("fields of samples that are not stored: exif in json, seg.png;")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("images", "masks"), "the folders images, masks were taken for classes; .*--unlabelled"),
        (("JPEGImages",), "the folder JPEGImages was taken for a class; .*--unlabelled"),
        (("train", "test1"), "the folders test1, train were taken for classes; .*train, validation and test"),
        (("train2017", "val2017"), "the folders train2017, val2017 were taken for classes"),
        (("bus", "train", "car"), None),
        (("mask", "no_mask"), None),
    ],
)
def test_warns_of_folders_that_do_not_look_like_classes(
    tmp_path: Path, capsys: Capture, names: tuple[str, ...], words: str | None
) -> None:
    found = warnings_of("images", folders(tmp_path / "in", *names), capsys)
    assert len(found) == (words is not None)
    assert all(re.match(words or "", line) for line in found)


def test_warns_of_folders_of_text_documents(tmp_path: Path, capsys: Capture) -> None:
    names = ("train/pos/1.txt", "train/neg/1.txt", "test/pos/2.txt")
    source = write_files(tmp_path / "in", dict.fromkeys(names, b"a film"))
    (line,) = warnings_of("text", source, capsys, "--form", "files")
    assert line.startswith("names of folders that are not stored: neg, pos; if they are classes,")
    assert warnings_of("text", source, capsys) == []
    odd = write_files(tmp_path / "odd", {os.fsdecode(b"caf\xe9/1.txt"): b"a", "x/2.txt": b"b"})
    assert (
        r"not stored: caf\udce9, x;" in warnings_of("text", odd, capsys, "--form", "files", output=tmp_path / "out")[0]
    )
    one = write_files(tmp_path / "one", {"train/1.txt": b"a", "test/2.txt": b"b"})
    assert warnings_of("text", one, capsys, "--form", "files") == []


def test_warns_of_several_idx_sets_in_one_split(tmp_path: Path, capsys: Capture) -> None:
    for prefix in ("letters-train", "digits-train", "digits-test"):
        idx_pair(tmp_path / "in", prefix, 3)
    (line,) = warnings_of("images", tmp_path / "in", capsys)
    assert line.startswith("several sets of IDX files become one in train: digits-train-images-idx3-ubyte, letters-")
    assert warnings_of("images", f"{tmp_path}/in/digits-*", capsys) == []


def test_warns_of_numeric_folders_without_label_type(tmp_path: Path, capsys: Capture) -> None:
    source = folders(tmp_path / "in", *map(str, range(12)))
    (line,) = warnings_of("images", source, capsys)
    assert line == (
        "folders named by numbers get labels in the order of their text: folder 10 is label 2; pass --label-type int to make"
        " it label 10"
    )
    assert warnings_of("images", source, capsys, "--label-type", "str") == []
    assert warnings_of("images", source, capsys, "--label-type", "int", output=tmp_path / "out") == []
    dataset = open_dataset(str(tmp_path / "out"))
    assert dataset.labels() == tuple(map(str, range(12)))
    for example in dataset.examples("train"):
        assert example["image/filename"] == [b"%d/1.jpg" % int(example["image/class/label"][0])]
    # An append takes the flag from the dataset.
    write_files(source, {"13/1.jpg": jpeg(13)})
    assert warnings_of("images", source, capsys, "--append", output=tmp_path / "out") == []
    assert open_dataset(str(tmp_path / "out")).labels() == tuple(map(str, range(14)))


def test_warns_of_classes_in_one_split_and_of_empty_splits(tmp_path: Path, capsys: Capture) -> None:
    source = folders(tmp_path / "in", "train/cat", "train/dog", "test/cat", "test/owl")
    (source / "val" / "cat").mkdir(parents=True)
    expected = [
        "classes that only one split has: 1 in test (owl), 1 in train (dog); add records of them, or correct their names",
        "no record in validation, although files or folders of the input are named so; add records, or remove them",
    ]
    assert warnings_of("images", source, capsys) == expected
    assert warnings_of("images", source, capsys, output=tmp_path / "out") == expected
    # An append does not warn of classes that the dataset has already.
    write_files(source, {"train/cat/2.jpg": jpeg(9)})
    assert warnings_of("images", source, capsys, "--append", output=tmp_path / "out") == []
    write_files(tmp_path / "text", {"train.txt": b"a\n", "validation.txt": b""})
    assert warnings_of("text", tmp_path / "text", capsys) == expected[1:]
    idx_pair(tmp_path / "idx", "train", 3)
    idx_pair(tmp_path / "idx", "t10k", 0)
    assert warnings_of("images", tmp_path / "idx", capsys) == [expected[1].replace("validation", "test")]


def test_warns_of_classes_that_look_alike(tmp_path: Path, capsys: Capture) -> None:
    source = folders(tmp_path / "in", "cat", "Cat", "caf\u00e9", "cafe\u0301", "a b", "a  b")
    (line,) = warnings_of("images", source, capsys)
    assert line.startswith(
        "classes that differ only in case, blanks or the form of Unicode: 'Cat' and 'cat', 'a\\x20\\x20b' and 'a b',"
    )
    assert r"'cafe\u0301' and 'caf\xe9'" in line
    (tmp_path / "labels.txt").write_text("\n".join(sorted(path.name for path in source.iterdir())))
    assert warnings_of("images", source, capsys, "--labels", str(tmp_path / "labels.txt")) == []


def test_append_compares_new_classes_with_those_of_the_dataset(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert warnings_of("images", folders(tmp_path / "1", "cat", "dog"), capsys, output=out) == []
    (line,) = warnings_of("images", folders(tmp_path / "2", "Cat"), capsys, "--append", output=out)
    assert "'Cat' and 'cat'" in line
    # The warning is not repeated.
    assert warnings_of("images", folders(tmp_path / "3", "cow"), capsys, "--append", output=out) == []


def test_warns_of_labels_with_surrounding_blanks(tmp_path: Path, capsys: Capture) -> None:
    write_files(tmp_path, {"1.jpg": jpeg(1), "2.jpg": jpeg(2), "list.csv": b"path,label\n1.jpg, cat\n2.jpg,cat\n"})
    line = "blanks around 1 label were removed, such as ' cat'; write labels without them"
    assert warnings_of("images", tmp_path / "list.csv", capsys) == [line]
    assert warnings_of("images", tmp_path / "list.csv", capsys, output=tmp_path / "out") == [line]
    assert open_dataset(str(tmp_path / "out")).labels() == ("cat",)


def test_warns_of_text_labels_below_0(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": -1}\n{"text": "b", "label": 1}\n')
    for number, flags in enumerate(([], ["--tokenizer", "bytes"])):
        out = tmp_path / str(number)
        found = warnings_of(
            "text", tmp_path / "a.jsonl", capsys, "--field", "text", "--field", "label:int", *flags, output=out
        )
        assert len(found) == 1
        assert found[0].startswith("1 label below 0 in label (test sets often hide")

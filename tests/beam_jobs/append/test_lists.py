"""Appending the new rows of a list."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from beam_jobs.images import run
from tests.beam_jobs.append.samples import defects
from tests.helpers.pictures import digests
from tpudata.errors import BadRecordError, OutputError, SourceError
from tpudata.format import open_dataset


def write_list(path: Path, *rows: str, head: str = "path,label") -> None:
    path.write_text("\n".join((head, *rows, "")))


def convert_list(folder: Path, *flags: str) -> int:
    return run(["--input", str(folder / "list.csv"), "--output", str(folder / "out"), *flags])


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    for number in range(6):
        Image.new("RGB", (20 + number, 30)).save(tmp_path / f"{number}.png")
    return tmp_path


def test_appends_a_missing_file_once_it_exists(listed: Path) -> None:
    flags = ("--on-bad-record=skip", "--max-bad-records=50%", "--append")
    write_list(listed / "list.csv", "0.png,cat", "gone.png,cat", "1.png,dog")
    convert_list(listed, *flags[:2])
    # A row more, and one more that is missing: it is listed in rejects/ next to the old one.
    write_list(listed / "list.csv", "0.png,cat", "gone.png,cat", "1.png,dog", "2.png,cat", "lost.png,dog")
    convert_list(listed, *flags)
    manifest = open_dataset(str(listed / "out")).manifest
    assert (manifest.records, sum(manifest.rejected.values()), len(manifest.rejects)) == (3, 2, 2)
    assert defects(listed / "out") == []
    shutil.copy(listed / "3.png", listed / "gone.png")
    convert_list(listed, *flags)
    assert open_dataset(str(listed / "out")).manifest.records == 4
    assert defects(listed / "out") == []
    (listed / "gone.png").unlink()
    before = digests(listed / "out")
    # A file that is missing without skipping is an error, unless the dataset says so already.
    convert_list(listed, "--append")
    assert digests(listed / "out") == before
    write_list(listed / "list.csv", "0.png,cat", "1.png,dog", "absent.png,cat")
    with pytest.raises(BadRecordError, match=r"list\.csv line 4: rejected: its file does not exist: absent\.png"):
        convert_list(listed, "--append")


def test_recognizes_rejected_rows_that_moved(listed: Path, tmp_path: Path) -> None:
    flags = ("--on-bad-record=skip", "--max-bad-records=50%")
    write_list(listed / "list.csv", "0.png,cat", "gone.png,cat", "1.png,dog")
    convert_list(listed, *flags)
    before = digests(listed / "out")
    write_list(listed / "list.csv", "1.png,dog", "0.png,cat", "gone.png,cat")
    convert_list(listed, *flags, "--append")
    assert digests(listed / "out") == before
    moved = shutil.copytree(listed, listed.with_name(f"{listed.name}-moved"))
    convert_list(moved, *flags, "--append")
    assert digests(moved / "out") == before
    # A row with another name counts as new.
    write_list(moved / "list.csv", "1.png,dog", "0.png,cat", "lost.png,cat", "2.png,dog")
    convert_list(moved, *flags, "--append")
    assert open_dataset(str(moved / "out")).manifest.rejected == {"its file does not exist": 2}
    assert defects(moved / "out") == []


def test_passes_on_many_rejections_once_and_in_order(listed: Path) -> None:
    flags = ("--on-bad-record=skip", "--max-bad-records=100000")
    # More than are looked up together.
    old = [f"old{number}.png,cat" for number in range(3000)]
    write_list(listed / "list.csv", "0.png,cat", *old)
    convert_list(listed, *flags)
    new = [f"new{number}.png,cat" for number in range(5000)]
    write_list(listed / "list.csv", "0.png,cat", *new[:2500], *old, "1.png,dog", *new[2500:])
    convert_list(listed, *flags, "--append")
    dataset = open_dataset(str(listed / "out"))
    assert (dataset.manifest.records, sum(dataset.manifest.rejected.values())) == (2, 8000)
    files = sorted((listed / "out" / "rejects").iterdir(), key=lambda path: len(path.read_bytes()))
    reasons = [[json.loads(line)["reason"] for line in path.read_text().splitlines()] for path in files]
    assert [[reason.rpartition("/")[2].rpartition(" ")[2] for reason in group] for group in reasons] == [
        [row.partition(",")[0] for row in rows] for rows in (old, new)
    ]
    assert defects(listed / "out") == []


def test_missing_key_files_suggest_overwrite(listed: Path) -> None:
    write_list(listed / "list.csv", "0.png,cat")
    convert_list(listed)
    (path,) = (listed / "out" / "index").glob("*.keys")
    path.unlink()
    with pytest.raises(OutputError, match=rf"{path} is missing, .* or pass --overwrite"):
        convert_list(listed, "--append")


def test_rejects_changed_labels_and_splits(listed: Path) -> None:
    write_list(listed / "list.csv", "0.png,cat,train", "1.png,dog,test", head="path,label,split")
    convert_list(listed)
    for row in ("1.png,cat,test", "1.png,dog,train"):
        write_list(listed / "list.csv", "0.png,cat,train", row, head="path,label,split")
        with pytest.raises(
            SourceError, match=r"has a record of '1\.png' already, and its size, class, split or columns"
        ):
            convert_list(listed, "--append")


def test_whole_number_labels_do_not_mix_with_names(listed: Path) -> None:
    write_list(listed / "list.csv", "0.png,0", "1.png,2")
    convert_list(listed)
    write_list(listed / "list.csv", "0.png,0", "1.png,2", "2.png,4", "3.png,1")
    convert_list(listed, "--append")
    dataset = open_dataset(str(listed / "out"))
    assert dataset.labels() == ("0", "1", "2", "3", "4")
    labels = {example["image/filename"][0]: example["image/class/label"][0] for example in dataset.examples("train")}
    assert labels == {b"0.png": 0, b"1.png": 2, b"2.png": 4, b"3.png": 1}
    # Names would take the places of numbers that are still to come, and numbers are no names.
    write_list(listed / "list.csv", "4.png,cat")
    with pytest.raises(OutputError, match=r"are whole numbers, .* and the input has the class 'cat'"):
        convert_list(listed, "--append")
    assert dataset.labels() == ("0", "1", "2", "3", "4")
    write_list(listed / "list.csv", "0.png,cat")
    convert_list(listed, "--overwrite")
    write_list(listed / "list.csv", "5.png,5")
    with pytest.raises(OutputError, match="classes of the input are whole numbers"):
        convert_list(listed, "--append")


def test_labels_file_may_only_grow_at_its_end(listed: Path) -> None:
    names, flag = listed / "names.txt", f"--labels={listed / 'names.txt'}"
    names.write_text("eel\ncat\n")
    write_list(listed / "list.csv", "0.png,cat")
    convert_list(listed, flag)
    write_list(listed / "list.csv", "0.png,cat", "1.png,ant")
    names.write_text("ant\neel\ncat\n")
    with pytest.raises(OutputError, match="does not begin with the 2 classes of"):
        convert_list(listed, flag, "--append")
    names.write_text("eel\ncat\nant\n")
    convert_list(listed, flag, "--append")
    dataset = open_dataset(str(listed / "out"))
    assert dataset.labels() == ("eel", "cat", "ant")
    assert [example["image/class/label"] for example in dataset.examples("train")] == [[1], [2]]


def test_labels_file_may_have_moved(listed: Path) -> None:
    (listed / "names.txt").write_text("eel\ncat\n")
    write_list(listed / "list.csv", "0.png,cat")
    convert_list(listed, f"--labels={listed / 'names.txt'}")
    moved = (listed / "names.txt").rename(listed / "moved.txt")
    write_list(listed / "list.csv", "0.png,cat", "1.png,eel")
    convert_list(listed, "--append", f"--labels={moved}")
    write_list(listed / "list.csv", "0.png,cat", "1.png,eel", "2.png,eel")
    # The manifest has the path of the last append.
    convert_list(listed, "--append")
    dataset = open_dataset(str(listed / "out"))
    assert dataset.manifest.options["labels_file"] == str(moved)
    assert sorted(example["image/class/label"][0] for example in dataset.examples("train")) == [0, 0, 1]


def test_annotations_may_have_moved(listed: Path) -> None:
    pictures = listed / "in"
    pictures.mkdir()
    for number in range(3):
        (listed / f"{number}.png").rename(pictures / f"{number}.png")
        (listed / "boxes.csv").write_text(
            "".join(
                ["filename,class,xmin,ymin,xmax,ymax\n", *(f"{row}.png,cat,1,2,9,9\n" for row in range(number + 1))]
            )
        )
        moved = (listed / "boxes.csv").rename(listed / f"boxes{number}.csv")
        words = [f"--input={pictures}", f"--output={listed / 'out'}", f"--annotations={moved}"]
        assert run([*words, *["--append"] * bool(number)]) == 0
    # The manifest has the path of the last append.
    assert run([f"--input={pictures}", f"--output={listed / 'out'}", "--append"]) == 0
    assert open_dataset(str(listed / "out")).manifest.records == 3
    assert defects(listed / "out") == []


def test_rejects_missing_and_added_columns_by_name(listed: Path) -> None:
    write_list(listed / "list.csv", "0.png,cat,3", head="path,label,age")
    convert_list(listed)
    # Another type: tests/beam_jobs/steps/listing/test_scan_source.py.
    for head, row, message in (
        ("path,label", "1.png,cat", "feature 'age' of .* is int64, and in new records it would be missing"),
        (
            "path,label,age,zip",
            "1.png,cat,3,1",
            "feature 'zip' of .* is missing, and in new records it would be int64",
        ),
    ):
        write_list(listed / "list.csv", row, head=head)
        with pytest.raises(OutputError, match=message):
            convert_list(listed, "--append")
    write_list(listed / "list.csv", "1.png,cat,4", head="path,label,age")
    convert_list(listed, "--append")
    assert [example["age"] for example in open_dataset(str(listed / "out")).examples("train")] == [[3], [4]]

"""Rejected inputs, end to end: listed once and counted once; a shard or split with no other inputs is not written."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import tpudata
from beam_jobs.images import run
from beam_jobs.sources import Reject, make_reference, raise_rejection
from tests.beam_jobs.one_unit import OneUnit
from tests.beam_jobs.plugins import install
from tests.helpers.pictures import digests, make_pictures
from tpudata.errors import BadRecordError, CorruptionError, SourceError
from tpudata.format import open_dataset, verify

SKIP = ("--on-bad-record=skip", "--max-bad-records=70%")
BAD = b"no picture"


def convert(folder: Path, *flags: str, output: str = "out") -> Path:
    run(["--input", str(folder / "in"), "--output", str(folder / output), *flags])
    return folder / output


def listed(output: Path) -> list[dict[str, Any]]:
    """Every line of rejects/."""
    files = sorted((output / "rejects").glob("*"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def counts(output: Path) -> tuple[dict[str, int], int]:
    """Records of every split, and how many inputs were rejected."""
    manifest = open_dataset(str(output)).manifest
    return {name: split.records for name, split in manifest.splits.items()}, sum(manifest.rejected.values())


def defects(output: Path) -> list[str]:
    return [str(defect) for defect in verify(str(output))]


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """Nine pictures to train with, and for validation one file that is none."""
    make_pictures(tmp_path / "in" / "train", 9)
    (tmp_path / "in" / "validation" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "validation" / "cat" / "x.jpg").write_bytes(BAD)
    return tmp_path


def test_a_split_with_only_rejected_files_has_no_shards(splits: Path) -> None:
    output = convert(splits, *SKIP)
    assert counts(output) == ({"train": 9}, 1)
    assert [Path(line["source"]).name for line in listed(output)] == ["x.jpg"]
    assert not list(output.glob("validation-*"))
    assert defects(output) == []
    # An append knows them, and takes them up once they are fixed.
    before = digests(output)
    convert(splits, *SKIP, "--append")
    assert digests(output) == before
    Image.new("L", (5, 6)).save(splits / "in" / "validation" / "cat" / "x.jpg")
    convert(splits, *SKIP, "--append")
    assert counts(output) == ({"train": 9, "validation": 1}, 1)
    assert defects(output) == []
    convert(splits, "--overwrite")
    assert not listed(output)


def test_a_resumed_run_lists_the_same_rejects(splits: Path) -> None:
    output = convert(splits, *SKIP)
    due = digests(output)
    (output / "manifest.json").unlink()
    convert(splits, *SKIP, "--resume")
    assert digests(output) == due
    # What an earlier run has left of a shard that now has no record goes.
    (output / "manifest.json").unlink()
    Image.new("L", (5, 6)).save(splits / "in" / "validation" / "cat" / "x.jpg")
    convert(splits, *SKIP, "--resume")
    assert counts(output) == ({"train": 9, "validation": 1}, 0)
    (output / "manifest.json").unlink()
    (splits / "in" / "validation" / "cat" / "x.jpg").write_bytes(BAD)
    convert(splits, *SKIP, "--resume")
    assert digests(output) == due


def test_append_lists_rejected_files_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pictures(tmp_path / "in", 9)
    output = convert(tmp_path)
    before = digests(output)
    flags = ("--on-bad-record=skip", "--max-bad-records=100%", "--append")
    for number in (1, 2):
        (tmp_path / "in" / f"new{number}").mkdir()
        (tmp_path / "in" / f"new{number}" / "x.jpg").write_bytes(BAD)
        capsys.readouterr()
        convert(tmp_path, *flags)
        assert "0 records added" in (shown := capsys.readouterr().out)
        assert "rejected    1: 1 unknown image format" in shown
        assert counts(output) == ({"train": 9}, number)
        assert len(listed(output)) == number
        after = digests(output)
        assert {name for name in before if after[name] != before[name]} == {"manifest.json"}
        assert defects(output) == []
    convert(tmp_path, *flags)
    assert "nothing new" in capsys.readouterr().out
    assert digests(output) == after
    # Without skipping too: what is listed is not looked at again.
    convert(tmp_path, "--append")
    assert digests(output) == after
    # A list that was changed since is named, since it says what not to look at again.
    path = sorted((output / "rejects").iterdir())[0]
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"entry": "', b'"entry": "x'))
    with pytest.raises(CorruptionError, match=rf"{path} at byte 0: the line is damaged"):
        convert(tmp_path, "--append")
    path.write_bytes(data)
    # Their classes come with the first append that has records.
    Image.new("L", (5, 6)).save(tmp_path / "in" / "cat" / "more.png")
    convert(tmp_path, "--append")
    assert counts(output) == ({"train": 10}, 2)
    assert open_dataset(str(output)).labels() == ("cat", "dog", "eel", "new1", "new2")
    assert defects(output) == []


def test_missing_files_stay_in_rejects_across_appends(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("L", (5, 6)).save(tmp_path / "in" / "0.png")

    def listing(name: str, *flags: str) -> Path:
        (tmp_path / "in" / "list.csv").write_text(f"path,label\n0.png,cat\n{name},cat\n")
        output = tmp_path / "out"
        run(["--input", str(tmp_path / "in" / "list.csv"), "--output", str(output), *flags])
        return output

    Image.new("L", (7, 6)).save(tmp_path / "in" / "1.png")
    listing("1.png")
    for number in range(1, 3):
        # Nothing but rejections: there is no shard to count the appends by.
        output = listing(f"gone{number}.png", "--on-bad-record=skip", "--max-bad-records=100%", "--append")
        assert counts(output) == ({"train": 2}, number)
        assert len(listed(output)) == number
        assert defects(output) == []


# TFDS 4.9 reads protobuf descriptors in a way that protobuf 6 warns of.
@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
def test_readers_skip_shards_whose_inputs_were_all_rejected(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    tfds = pytest.importorskip("tensorflow_datasets")

    make_pictures(tmp_path / "in", 30)
    whole = open_dataset(str(convert(tmp_path, "--no-shuffle", "--num-shards=6", output="whole")))
    start, *_, end = itertools.accumulate(shard.records for shard in whole.manifest.split("train").shards[:4])
    # The order is that of the folder's listing.
    gone = set(sorted(str(path.relative_to(tmp_path / "in")) for path in (tmp_path / "in").rglob("*.*"))[start:end])
    for name in gone:
        path = tmp_path / "in" / name
        path.write_bytes(BAD.ljust(path.stat().st_size))
    output = convert(tmp_path, *SKIP, "--no-shuffle", "--num-shards=6")
    there = {path.name[6:11] for path in output.glob("train-*")}
    assert {"00000", "00005"} <= there < {f"{number:05}" for number in range(6)}
    assert counts(output) == ({"train": 30 - len(gone)}, len(gone))
    assert {line["source"] for line in listed(output)} == {str(tmp_path / "in" / name) for name in gone}
    assert defects(output) == []
    due = {str(path.relative_to(tmp_path / "in")) for path in (tmp_path / "in").rglob("*.*")} - gone
    feature = {"image/filename": tf.io.FixedLenFeature((), tf.string)}
    rows = tf.data.TFRecordDataset(sorted(map(str, output.glob("train-*"))))
    read = [tf.io.parse_single_example(row, feature)["image/filename"].numpy().decode() for row in rows]
    builder = tfds.builder_from_directory(str(output))
    assert builder.info.splits["train"].num_examples == len(due)
    by_tfds = [row["image/filename"].numpy().decode() for row in builder.as_dataset("train")]
    halves = [builder.as_dataset(f"train[{part}]") for part in (":50%", "50%:")]
    by_halves = [row["image/filename"].numpy().decode() for half in halves for row in half]
    assert sorted(read) == sorted(by_tfds) == sorted(by_halves) == sorted(due)
    batches = tpudata.make_input_fn(str(output), "train", training=False, images=tpudata.Images(size=(8, 8)))(
        {"batch_size": 8}
    )
    assert sum(features["weights"].numpy().sum() for features, _ in batches) == len(due)
    # An append changes nothing.
    before = digests(output)
    convert(tmp_path, *SKIP, "--no-shuffle", "--append")
    assert digests(output) == before


def test_writes_no_dataset_if_every_input_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for number in range(5):
        (tmp_path / "in" / "a" / f"{number}.png").write_bytes(BAD if number else b"")
    flags = ("--on-bad-record=skip", "--max-bad-records=100%", "--num-shards=2")
    with pytest.raises(SourceError, match=r"5 of 5 inputs rejected \(4 unknown image format, 1 the file is empty\)"):
        convert(tmp_path, *flags)
    assert len(listed(tmp_path / "out")) == 5
    assert not (tmp_path / "out" / "manifest.json").exists()
    shutil.rmtree(tmp_path / "in" / "a")
    make_pictures(tmp_path / "in", 5)
    output = convert(tmp_path, *flags, "--resume")
    assert counts(output) == ({"train": 5}, 0)
    assert not listed(output)
    assert defects(output) == []


# tests/beam_jobs/test_images.py covers runs without --append.
@pytest.mark.parametrize("append", [pytest.param(False, marks=pytest.mark.matrix), True])
def test_a_run_over_budget_says_how_to_carry_on(tmp_path: Path, append: bool) -> None:
    make_pictures(tmp_path / "in", 6)
    if append:
        convert(tmp_path)
    (tmp_path / "in" / "cat" / "x.png").write_bytes(BAD)
    flag = "--append" if append else "--resume"
    with pytest.raises(SourceError, match=rf"allow more, and run again with {flag}\."):
        convert(tmp_path, "--on-bad-record=skip", "--max-bad-records=0", *([flag] if append else []))
    assert listed(tmp_path / "out")
    output = convert(tmp_path, "--on-bad-record=skip", "--max-bad-records=1", flag)
    assert counts(output) == ({"train": 6}, 1)
    assert len(listed(output)) == 1
    assert defects(output) == []


KINDS = {
    "not UTF-8: byte 0xff. Save the file as UTF-8": "not UTF-8",
    "field 'x2' is not a number that fits float32: 1e39": "field 'x2' is not a number that fits float32",
    "field 'a (b): 7; c' has no value: null": "field 'a (b): 7; c' has no value",
    "JPEG of 12 bits per sample; 8 are read": "JPEG of 12 bits per sample",
    "JPEG 2000; JPEG, PNG, GIF, BMP, WebP, PPM and TIFF are read": "JPEG 2000",
    "the checksum of the PNG's IDAT chunk is wrong (at byte 33)": "the checksum of the PNG's IDAT chunk is wrong",
    "a JPEG of too many pixels: 70000 x 70000; 1 are allowed": "a JPEG of too many pixels",
    "its label is more than 1,000,000, the most: 7": "its label is more than 1,000,000, the most",
}
REASONS: list[str] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rejecting(OneUnit):
    """A source that rejects with `REASONS`, which are in this process alone, and has one picture."""

    def references(self, unit: str, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del ignored
        for reason in REASONS:
            reject(BadRecordError(unit, reason))
        yield make_reference(self.options, "a", path=unit, size=Path(unit).stat().st_size)


@pytest.mark.parametrize(
    ("reasons", "counts"),
    [
        ([*KINDS], dict.fromkeys(KINDS.values(), 1)),
        # Kinds that vary do not fill the manifest.
        ([reason for n in range(250) for reason in (f"strange byte {n}", "not JSON: x")], None),
    ],
)
def test_counts_reasons_by_kind(
    reasons: list[str], counts: dict[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "REASONS", reasons)
    install(monkeypatch, "tpudata.sources", rejecting=Rejecting)
    Image.new("L", (5, 6)).save(tmp_path / "in.png")
    options: dict[str, Any] = {"on_bad_record": "skip", "max_bad_records": "100%"}
    manifest = tpudata.convert_images(tmp_path / "in.png", tmp_path / "out", source="rejecting", **options)
    if counts is not None:
        assert manifest.rejected == counts
    else:
        assert sum(manifest.rejected.values()) == 500
        assert len(manifest.rejected) == 101
        assert manifest.rejected["other reasons"] == 151
        assert manifest.rejected["not JSON"] == 250


def test_reject_counts_keep_digits_that_tell_kinds_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pictures(tmp_path / "in", 12)
    for number in range(3):
        (tmp_path / "in" / "cat" / f"x{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(number + 1))
    for number in range(2):
        Image.new("I", (8 + number, 8)).save(tmp_path / "in" / "cat" / f"x{number}.tif")
    output = convert(tmp_path, *SKIP)
    digits = "TIFF of signed or fractional samples of 32 bits"
    reasons = {line["reason"] for line in listed(output)}
    assert len(reasons) == 3 + 1
    rejected = open_dataset(str(output)).manifest.rejected
    assert (len(rejected), sum(rejected.values()), rejected[digits]) == (2, 5, 2)
    assert f"2 {digits}" in capsys.readouterr().out

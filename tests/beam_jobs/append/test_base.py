"""Adding to a dataset, from end to end: `python -m beam_jobs.images --append`.

Two of the tests patch the last steps of a run, because no command can be stopped between them.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tpudata
from beam_jobs.append.base import Base
from beam_jobs.images import run
from beam_jobs.steps.write_metadata import WriteMetadata
from tests.beam_jobs.append.samples import FLAGS, REJECTED, Sample, defects
from tests.helpers.pictures import digests, make_pictures
from tpudata.errors import FeatureError, OutputError, SourceError, UsageError
from tpudata.format import Manifest, open_dataset


def test_appends_new_files_as_separate_shards(
    first: Sample, sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    before, records = sample.state(), sample.records()
    sample.grow()
    assert sample.convert("--append") == 0
    assert "9 records added in" in (printed := capsys.readouterr().out)
    assert "36 were there, 1 of them no longer in the input (they stay), 4 classes" in printed
    after = sample.state()
    metadata = ("labels.txt", "image.class.label.labels.txt", "dataset_info.json", "manifest.json")
    replaced = {str(sample.output / name) for name in metadata}
    assert {path for path, file in before.items() if after[path] != file} == replaced | {
        # Only the number of classes differs there.
        str(sample.output / "features.json")
    }
    manifest = open_dataset(str(sample.output)).manifest
    for part in manifest.splits.values():
        names = [shard.name for shard in part.shards]
        assert names == sorted(path.name for path in sample.output.glob(f"{names[0].split('-')[0]}-*"))
    added = [path.name for path in sample.output.glob("*-a001-*")]
    assert {name.split("-00")[0] for name in added} == {"train-a001", "validation-a001"}
    # Old records are as they were; new ones have the next label, and the split that a conversion of everything gives them.
    found = sample.records()
    assert {key: found[key] for key in records} == records
    assert sample.convert(output=sample.output.parent / "whole") == 0
    whole = sample.records(sample.output.parent / "whole")
    assert found.keys() == whole.keys() | {"cat/000.jpg"}
    labels = ("cat", "dog", "eel", "ant")
    assert open_dataset(str(sample.output)).labels() == labels
    for key, (split, _, text, data) in whole.items():
        assert found[key] == (split, labels.index(text.decode()), text, data)
    assert defects(sample.output) == []


def test_appended_manifest_has_the_totals_of_a_full_conversion(sample: Sample) -> None:
    Image.new("RGB", (90, 70)).save(sample.source / "cat" / "large.png")
    (sample.source / "dog" / "bad.jpg").write_bytes(b"no picture either")
    Image.new("RGB", (9, 7)).save(sample.source / "dog" / "small.png")
    (sample.source / "dog" / ".hidden").write_bytes(b"")
    sample.convert("--append")
    sample.convert(output=sample.output.parent / "whole")
    appended, whole = (
        json.loads((folder / "manifest.json").read_bytes())
        for folder in (sample.output, sample.output.parent / "whole")
    )
    for value in (appended, whole):
        del value["checksum"], value["appends"]
        for split in value["splits"].values():
            split["records"] = sum(shard["records"] for shard in split.pop("shards"))
    assert appended == whole
    assert appended["rejected"] == {"unknown image format": 3}
    assert appended["source"]["ignored_files"] == 1
    assert defects(sample.output) == []


# tests/beam_jobs/run/test_runner.py and test_prism.py append on other engines.
@pytest.mark.matrix
def test_writes_the_same_bytes_for_any_number_of_workers(grown: Sample, sample: Sample) -> None:
    sample.grow()
    sample.convert("--append", "--workers=2")
    one, two = digests(grown.output), digests(sample.output)
    # The manifest names its input, which differs here on purpose.
    assert one.pop("manifest.json") != two.pop("manifest.json")
    assert one == two


# TFDS 4.9 reads protobuf descriptors in a way that protobuf 6 warns of.
@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
def test_all_readers_read_a_dataset_after_two_appends(grown: Sample, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    tfds = pytest.importorskip("tensorflow_datasets")

    sample = grown.copied(tmp_path)
    for number in range(3):
        Image.new("L", (30, 20 + number)).save(sample.source / "eel" / f"{number}.png")
    sample.convert("--append")
    assert list(sample.output.glob("train-a002-*"))
    assert defects(sample.output) == []
    records = sample.records()
    assert len(records) == 36 + 9 + 3
    builder = tfds.builder_from_directory(str(sample.output))
    assert builder.info.features["image/class/label"].num_classes == 4
    for split in ("train", "validation"):
        due = {key: value for key, value in records.items() if value[0] == split}
        feature = {
            "image/filename": tf.io.FixedLenFeature((), tf.string),
            "image/encoded": tf.io.FixedLenFeature((), tf.string),
        }
        files = sorted(map(str, sample.output.glob(f"{split}-*")))
        rows = [tf.io.parse_single_example(row, feature) for row in tf.data.TFRecordDataset(files)]
        read = {row["image/filename"].numpy().decode(): row["image/encoded"].numpy() for row in rows}
        assert read == {key: value[3] for key, value in due.items()}
        runs = sorted({path.name.rsplit("-", 3)[0] for path in sample.output.glob(f"{split}-*")})
        assert runs[0] == split
        rows = list(builder.as_dataset("+".join(runs)))
        assert len(rows) == len(due)
        for row in rows:
            key = row["image/filename"].numpy().decode()
            assert row["image/class/label"].numpy() == due[key][1]
            with Image.open(io.BytesIO(due[key][3])) as picture:
                if picture.format == "PNG":
                    assert np.array_equal(row["image/encoded"].numpy(), np.asarray(picture.convert("RGB")))
        batches = tpudata.make_input_fn(
            str(sample.output), split, training=False, images=tpudata.Images(size=(16, 16))
        )({"batch_size": 8})
        labels = [label for features, labels in batches for label in labels.numpy()[features["weights"].numpy() > 0]]
        assert sorted(labels) == sorted(value[1] for value in due.values())
    assert sum(1 for _ in builder.as_dataset("all")) == len(records)


def test_append_without_new_files_changes_nothing(
    first: Sample, grown: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = grown.copied(tmp_path)
    before = sample.state()
    assert sample.convert("--append") == 0
    assert "nothing new; 45 were there, 1 of them no longer in the input (they stay); nothing was changed" in (
        capsys.readouterr().out
    )
    assert sample.convert("--append", "--dry-run") == 0
    assert "nothing new: 0 records would be added" in capsys.readouterr().out
    # Nor does a resume find anything to do, once the file that was taken away is back.
    shutil.copytree(first.source, sample.source, dirs_exist_ok=True)
    assert sample.convert("--resume") == 0
    assert sample.state() == before


def test_dry_run_prints_what_would_be_added(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    sample.grow()
    before = sample.state()
    sample.convert("--append", "--dry-run", "--num-shards=1")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:2] == ["9", "files,"]
    rows = {line[0]: (int(line[1]), int(line[2])) for line in lines[2:]}
    assert sum(records for records, _ in rows.values()) == 9
    assert {shards for _, shards in rows.values()} == {1}
    assert sample.state() == before


def test_rejects_a_changed_file_and_writes_nothing(sample: Sample) -> None:
    sample.grow()
    path = sample.source / "cat" / "003.png"
    path.write_bytes(path.read_bytes() + b"\0")
    before = sample.state()
    for flags in ((), ("--dry-run",)):
        with pytest.raises(SourceError, match=rf"{path}: {sample.output} has a record of 'cat/003.png' already"):
            sample.convert("--append", *flags)
        assert sample.state() == before


def test_retries_a_rejected_file_only_if_it_changed(sample: Sample) -> None:
    # Without skipping, a rejected file that is looked at again would end the run.
    flags = ["--input", str(sample.source), "--output", str(sample.output), *FLAGS[:2], "--append"]
    before = sample.state()
    run(flags)
    assert sample.state() == before
    Image.new("L", (5, 6)).save(sample.source / REJECTED[0], "JPEG")
    run(flags)
    assert REJECTED[0] in sample.records()
    assert open_dataset(str(sample.output)).manifest.rejected == {"unknown image format": 2}
    assert defects(sample.output) == []
    after = sample.state()
    run(flags)
    assert sample.state() == after


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--seed=4", "--label-offset=1"],
            "label_offset = 0, and now it is 1; seed = 0, and now it is 4. Pass --overwrite",
        ),
        (["--resize-shorter=9"], "resize_shorter = None, and now it is 9"),
        (["--layout=raw"], "has the layout 'imagenet', and new records would have 'raw'"),
    ],
)
def test_rejects_changed_options_by_name(sample: Sample, flags: list[str], message: str) -> None:
    before = sample.state()
    with pytest.raises(OutputError, match=message):
        sample.convert("--append", *flags)
    assert sample.state() == before


def test_append_inherits_options_of_the_dataset(tmp_path: Path) -> None:
    source = make_pictures(tmp_path / "in", 24)
    flags = ["--split=test=0.3,train=0.3,a=0.4", "--seed=3", "--label-offset=1", "--compression=gzip", "--jpeg-only"]
    flags += ["--resize-shorter=20", "--quality=80", "--shard-size=15kB", "--check=decode"]

    def convert(output: str, *flags: str) -> None:
        run(["--input", str(source), "--output", str(tmp_path / output), *flags])

    convert("out", *flags)
    shutil.copytree(tmp_path / "out", tmp_path / "repeated")
    make_pictures(source / "new", 18, seed=1)
    convert("out", "--append")
    convert("repeated", "--append", *flags)
    assert digests(tmp_path / "out") == digests(tmp_path / "repeated")
    assert list((tmp_path / "out").glob("*-a001-*"))
    with pytest.raises(OutputError, match="jpeg_only = True, and now it is False; quality = 80, and now it is 70"):
        convert("out", "--append", "--quality=70", "--no-jpeg-only")
    # Its shares are the same, but would go to other records.
    with pytest.raises(OutputError, match="split_order = "):
        convert("out", "--append", "--split=a=0.4,test=0.3,train=0.3")


def test_append_requires_a_complete_dataset(sample: Sample) -> None:
    with pytest.raises(OutputError, match=r"has no manifest\.json, .* Omit --append to make one"):
        sample.convert("--append", output=sample.output.parent / "other")
    (sample.output / "manifest.json").unlink()
    with pytest.raises(OutputError, match="Pass --resume to carry on a killed run there"):
        sample.convert("--append")
    for other in ("--resume", "--overwrite"):
        with pytest.raises(UsageError, match="choose one"):
            sample.convert("--append", other)


def test_rejects_a_dataset_without_keys(sample: Sample) -> None:
    path = sample.output / "manifest.json"
    value = json.loads(path.read_bytes())
    del value["keys"], value["rejects"]
    path.write_text(json.dumps(value))
    with pytest.raises(OutputError, match=r"does not say what it was made from \(index/\*\.keys\)"):
        sample.convert("--append")


def test_overwrite_removes_appended_shards(grown: Sample, tmp_path: Path) -> None:
    sample = grown.copied(tmp_path)
    # A shard that a killed append left belongs to no dataset: it is reported before anything is removed.
    stray = sample.output / "train-a002-00000-of-00001.tfrecord"
    stray.write_bytes(b"half")
    before = sample.state()
    with pytest.raises(OutputError, match="1 shard of another run, such as train-a002-00000-of-00001"):
        sample.convert("--overwrite")
    assert sample.state() == before
    stray.unlink()
    sample.convert("--overwrite")
    sample.convert(output=tmp_path / "fresh")
    assert digests(sample.output) == digests(tmp_path / "fresh")


def test_resume_suggests_append_if_the_input_grew(sample: Sample) -> None:
    sample.grow()
    with pytest.raises(
        OutputError, match=r"the input has changed since\. Pass --overwrite to replace it, --append to add"
    ):
        sample.convert("--resume")


def test_verify_reports_damaged_key_files(grown: Sample, tmp_path: Path) -> None:
    output = grown.copied(tmp_path).output
    index = output / "index"
    one, two, three = sorted(index.glob("train-0*.keys"))[:3]
    data = one.read_bytes()
    one.write_bytes(data[:30] + bytes([data[30] ^ 4]) + data[31:])
    shutil.copy(three, two)
    three.unlink()
    (index / "train-a009-00000-of-00001.keys").write_bytes(data)
    found = [defect.removeprefix(f"{index}/").split(":")[0:2] for defect in defects(output)]
    assert [name.split(" at ")[0] for name, _ in found] == [
        "train-a009-00000-of-00001.keys", one.name, two.name, three.name
    ]  # fmt: skip
    assert [reason.strip() for _, reason in found] == [
        "should not be there",
        "the checksum of the keys does not match",
        "the keys of another shard",
        "is missing",
    ]


def test_rejects_the_later_of_two_concurrent_appends(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    sample.grow()
    merged, path = Base.merge, sample.output / "manifest.json"

    def other_job(self: Base, added: Manifest) -> Manifest:
        path.write_bytes(dataclasses.replace(self.manifest, created_by="the other job").to_bytes())
        return merged(self, added)

    monkeypatch.setattr(Base, "merge", other_job)
    with pytest.raises(OutputError, match=rf"another job has changed {sample.output} since this one began"):
        sample.convert("--append")
    assert b"the other job" in path.read_bytes()


def test_append_widens_shapes_except_in_raw_layout(tmp_path: Path) -> None:
    def add(name: str, mode: str, size: tuple[int, int]) -> None:
        (tmp_path / "in" / "a").mkdir(parents=True, exist_ok=True)
        Image.new(mode, size).save(tmp_path / "in" / "a" / f"{name}.png")

    def convert(layout: str, *flags: str) -> tuple[int | None, ...]:
        run(["--input", str(tmp_path / "in"), "--output", str(tmp_path / layout), f"--layout={layout}", *flags])
        return open_dataset(str(tmp_path / layout)).manifest.features[0].shape

    add("1", "L", (7, 5))
    assert convert("imagenet") == (5, 7, 1)
    assert convert("raw") == (5, 7, 1)
    add("2", "L", (7, 5))
    assert convert("raw", "--append") == (5, 7, 1)
    add("3", "RGB", (9, 5))
    assert convert("imagenet", "--append") == (5, None, 3)
    with pytest.raises(FeatureError, match=r"have shape \(5, 7, 1\), new ones \(5, 9, 3\)"):
        convert("raw", "--append")
    assert open_dataset(str(tmp_path / "raw")).manifest.records == 2


def test_appends_a_new_tar_and_a_new_split(tmp_path: Path) -> None:
    make_pictures(tmp_path / "train", 6)
    (tmp_path / "in").mkdir()

    def pack(folder: str, name: str) -> None:
        with tarfile.open(tmp_path / "in" / name, "w:gz") as tar:
            tar.add(tmp_path / "train", folder)

    def convert(*flags: str) -> dict[str, int]:
        run(["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *flags])
        splits = open_dataset(str(tmp_path / "out")).manifest.splits
        return {name: split.records for name, split in splits.items()}

    pack("train", "1.tar.gz")
    assert convert() == {"train": 6}
    pack("test", "2.tar.gz")
    pack("train", "3.tar.gz")
    assert convert("--append") == {"train": 12, "test": 6}
    assert [path.name for path in (tmp_path / "out").glob("test-*")] == ["test-a001-00000-of-00001.tfrecord"]
    assert not list((tmp_path / "out").glob(".*"))
    assert defects(tmp_path / "out") == []


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_recognizes_rejected_members_of_a_moved_tar(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / f"data.{ending}", "w:gz" if ending == "tar.gz" else "w") as tar:
        for number, data in enumerate([picture.getvalue(), b"no picture", picture.getvalue()]):
            # The last has no label.
            for name, content in ((f"{number}.png", data), (f"{number}.cls", b"cat"))[: 1 + (number < 2)]:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("3.png")
        link.type, link.linkname = tarfile.SYMTYPE, "0.png"
        tar.addfile(link)
    flags = ["--output", str(tmp_path / "out"), "--on-bad-record=skip", "--max-bad-records=5"]
    assert run(["--input", str(tmp_path / "in" / f"data.{ending}"), *flags]) == 0
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert (manifest.records, sum(manifest.rejected.values())) == (1, 3)
    (tmp_path / "in").rename(tmp_path / "moved")
    capsys.readouterr()
    assert run(["--input", str(tmp_path / "moved" / f"data.{ending}"), *flags, "--append"]) == 0
    assert "nothing new; 1 were there; nothing was changed" in capsys.readouterr().out
    assert open_dataset(str(tmp_path / "out")).manifest == manifest
    assert defects(tmp_path / "out") == []


@pytest.mark.parametrize("grows", [True, False])
def test_last_step_can_be_retried_after_the_job_has_ended(
    grows: bool, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    if grows:
        sample.grow()
    first = WriteMetadata.process

    def twice(step: WriteMetadata, *arguments: Any) -> Iterator[Any]:
        (made,) = first(step, *arguments)
        assert not (sample.output / ".tpudata-claim").exists()
        (again,) = first(step, *arguments)
        assert dataclasses.replace(again, labels_crc32c=made.labels_crc32c, tfds=made.tfds) == made
        yield again

    monkeypatch.setattr(WriteMetadata, "process", twice)
    # As on an engine whose jobs outlive the process: the step removes the claim.
    monkeypatch.setattr("beam_jobs.conversion_run.ends_with_process", lambda _options: False)
    assert sample.convert("--append") == 0
    assert defects(sample.output) == []

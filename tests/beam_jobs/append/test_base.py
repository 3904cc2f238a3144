"""Adding to a dataset, from end to end: `python -m beam_jobs.images --append`."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import tpudata
from beam_jobs.append.base import Base
from beam_jobs.images import run
from beam_jobs.steps.write_metadata import WriteMetadata
from tests.beam_jobs.test_images import digests, make_pictures
from tests.beam_jobs.test_kill import ROOT, SERVER
from tpudata.errors import BadRecordError, FeatureError, OutputError, SourceError, UsageError
from tpudata.format import Manifest, open_dataset, verify

FLAGS = ("--split=train=0.7,validation=0.3", "--shard-size=15kB", "--on-bad-record=skip", "--max-bad-records=50%")
REFUSED = ("dog/x.jpg", "eel/y.png")


class Sample(NamedTuple):
    """A folder of pictures, and a dataset made from it."""

    source: Path
    output: Path

    def convert(self, *flags: str, output: Path | None = None) -> int:
        return run(["--input", str(self.source), "--output", str(output or self.output), *FLAGS, *flags])

    def copied(self, folder: Path) -> Sample:
        return Sample(shutil.copytree(self.source, folder / "in"), shutil.copytree(self.output, folder / "out"))

    def grow(self) -> None:
        """Adds nine pictures to two of the classes and a new class, which is the first by name, and takes one away."""
        random = np.random.default_rng(1)
        for number in range(9):
            path = self.source / ("cat", "dog", "ant")[number % 3] / f"new{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(random.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(path)
        (self.source / "cat" / "000.jpg").unlink()

    def records(self, output: Path | None = None) -> dict[str, tuple[str, Any, Any, Any]]:
        """By key: split, label, class name and bytes."""
        dataset = open_dataset(str(output or self.output))
        found: dict[str, tuple[str, Any, Any, Any]] = {}
        for split in dataset.manifest.splits:
            for example in dataset.examples(split):
                (name,) = example["image/filename"]
                assert isinstance(name, bytes)
                assert name.decode() not in found
                label, text = example["image/class/label"][0], example["image/class/text"][0]
                found[name.decode()] = split, label, text, example["image/encoded"][0]
        return found

    def state(self) -> dict[str, tuple[int, bytes]]:
        """Time and content of every file of the dataset."""
        files = (path for path in self.output.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """36 pictures in three classes, converted, and two files that are none, refused."""
    folder = tmp_path_factory.mktemp("first")
    made = Sample(make_pictures(folder / "in", 36), folder / "out")
    for name in REFUSED:
        (made.source / name).write_bytes(b"no picture")
    made.convert()
    return made


@pytest.fixture
def sample(first: Sample, tmp_path: Path) -> Sample:
    return first.copied(tmp_path)


@pytest.fixture(scope="module")
def grown(first: Sample, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The same, grown and appended to."""
    sample = first.copied(tmp_path_factory.mktemp("grown"))
    sample.grow()
    sample.convert("--append")
    return sample


def defects(output: Path) -> list[str]:
    return [str(defect) for defect in verify(str(output))]


def test_new_files_become_shards_of_their_own(
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


def test_manifest_adds_up_to_that_of_a_conversion_of_everything(sample: Sample) -> None:
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
    assert appended["rejected"] == {"no known image": 3}
    assert appended["source"]["ignored_files"] == 1
    assert defects(sample.output) == []


def test_same_bytes_for_any_number_of_workers(grown: Sample, sample: Sample) -> None:
    sample.grow()
    sample.convert("--append", "--workers=2")
    one, two = digests(grown.output), digests(sample.output)
    # The manifest names its input, which differs here on purpose.
    assert one.pop("manifest.json") != two.pop("manifest.json")
    assert one == two


# TFDS 4.9 reads protobuf descriptors in a way that protobuf 6 warns of.
@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
def test_every_reader_reads_what_two_appends_made(grown: Sample, tmp_path: Path) -> None:
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


def test_where_nothing_is_new_nothing_changes(
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


def test_a_file_that_changed_is_named_and_nothing_is_written(sample: Sample) -> None:
    sample.grow()
    path = sample.source / "cat" / "003.png"
    path.write_bytes(path.read_bytes() + b"\0")
    before = sample.state()
    for flags in ((), ("--dry-run",), ("--workers=2",)):
        with pytest.raises(SourceError, match=rf"{path}: {sample.output} has a record of 'cat/003.png' already"):
            sample.convert("--append", *flags)
        assert sample.state() == before


def test_a_refused_file_is_tried_again_only_where_it_changed(sample: Sample) -> None:
    # Without skipping, a refused file that is looked at again would end the run.
    flags = ["--input", str(sample.source), "--output", str(sample.output), *FLAGS[:2], "--append"]
    before = sample.state()
    run(flags)
    assert sample.state() == before
    Image.new("L", (5, 6)).save(sample.source / REFUSED[0], "JPEG")
    run(flags)
    assert REFUSED[0] in sample.records()
    assert open_dataset(str(sample.output)).manifest.rejected == {"no known image": 2}
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
        (["--layout=raw"], "has the layout 'imagenet', and what would be added 'raw'"),
    ],
)
def test_other_options_are_refused_by_name(sample: Sample, flags: list[str], message: str) -> None:
    before = sample.state()
    with pytest.raises(OutputError, match=message):
        sample.convert("--append", *flags)
    assert sample.state() == before


def test_options_that_are_not_passed_are_those_of_the_dataset(tmp_path: Path) -> None:
    source = make_pictures(tmp_path / "in", 40)
    flags = ["--split=test=0.3,train=0.3,a=0.4", "--seed=3", "--label-offset=1", "--compression=gzip", "--jpeg-only"]
    flags += ["--resize-shorter=20", "--quality=80", "--shard-size=15kB", "--check=decode"]

    def convert(output: str, *flags: str) -> None:
        run(["--input", str(source), "--output", str(tmp_path / output), *flags])

    convert("out", *flags)
    shutil.copytree(tmp_path / "out", tmp_path / "repeated")
    make_pictures(source / "new", 30, seed=1)
    convert("out", "--append")
    convert("repeated", "--append", *flags)
    assert digests(tmp_path / "out") == digests(tmp_path / "repeated")
    assert list((tmp_path / "out").glob("*-a001-*"))
    with pytest.raises(OutputError, match="jpeg_only = True, and now it is False; quality = 80, and now it is 70"):
        convert("out", "--append", "--quality=70", "--no-jpeg-only")
    # Its shares are the same, but would go to other records.
    with pytest.raises(OutputError, match="split_order = "):
        convert("out", "--append", "--split=a=0.4,test=0.3,train=0.3")


def test_without_a_dataset_there_is_nothing_to_append_to(sample: Sample) -> None:
    with pytest.raises(OutputError, match=r"has no manifest\.json, .* Leave --append out to make one"):
        sample.convert("--append", output=sample.output.parent / "other")
    (sample.output / "manifest.json").unlink()
    with pytest.raises(OutputError, match="Pass --resume to carry on a killed run there"):
        sample.convert("--append")
    for other in ("--resume", "--overwrite"):
        with pytest.raises(UsageError, match="choose one"):
            sample.convert("--append", other)


def test_a_dataset_without_keys_cannot_be_added_to(sample: Sample) -> None:
    path = sample.output / "manifest.json"
    value = json.loads(path.read_bytes())
    del value["keys"], value["rejects"]
    path.write_text(json.dumps(value))
    with pytest.raises(OutputError, match=r"does not say what it was made from \(index/\*\.keys\)"):
        sample.convert("--append")


def test_overwrite_takes_what_was_appended_away(grown: Sample, tmp_path: Path) -> None:
    sample = grown.copied(tmp_path)
    # What a killed append leaves is nobody's: it is named before anything is removed.
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


def test_resume_says_to_append(sample: Sample) -> None:
    sample.grow()
    with pytest.raises(
        OutputError, match=r"the input has changed since\. Pass --overwrite to replace it, --append to add"
    ):
        sample.convert("--resume")


def test_verify_finds_what_is_wrong_with_keys(grown: Sample, tmp_path: Path) -> None:
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
        "the checksum of the keys does not fit",
        "the keys of another shard",
        "is missing",
    ]


class Killer:
    """Runs the job in processes that can be killed once the output has a number of shards."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SERVER, "beam_jobs.images"]
        self._server = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, sample: Sample, *flags: str, shards: int | None = None) -> int:
        """The exit status, negative where the job was killed."""
        argv = ["--input", str(sample.source), "--output", str(sample.output), *FLAGS, *flags]
        job = {
            "argv": argv,
            "kill_after": None if shards is None else 0,
            "shards": shards,
            "output": str(sample.output),
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps({**job, 'group': True})}\n")
        self._server.stdin.flush()
        return int(json.loads(self._server.stdout.readline())["status"])

    def close(self) -> None:
        with self._server:
            assert self._server.stdin is not None
            self._server.stdin.close()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    started = Killer()
    yield started
    started.close()


def test_killed_append_leaves_the_old_dataset_and_ends_as_if_undisturbed(
    sample: Sample, tmp_path: Path, killer: Killer
) -> None:
    flags = ("--append", "--num-shards=6")
    sample.grow()
    for number in range(20):
        Image.new("RGB", (60, 50), (number, 0, 0)).save(sample.source / "eel" / f"more{number}.png")
    (sample.source / "eel" / "bad.png").write_bytes(b"no picture again")
    records, before, old = sample.records(), sample.state(), len(list(sample.output.glob("*.tfrecord")))
    undisturbed = Sample(sample.source, shutil.copytree(sample.output, tmp_path / "undisturbed"))
    undisturbed.convert(*flags)
    due = digests(undisturbed.output)
    kept: dict[str, tuple[int, bytes]] = {}
    kills = 0
    for shards in (1, 5, 9):
        if killer.run(sample, *flags, shards=old + shards) != -signal.SIGKILL:
            # It was done before the kill came.
            break
        kills += 1
        state = sample.state()
        assert {path: state[path] for path in before} == before
        # Shards that were whole at the last kill are kept.
        assert {path: state[path] for path in kept} == kept
        # Its keys are the last that is written of a shard.
        whole = {path.removesuffix(".keys") for path in state if "-a001-" in path and path.endswith(".keys")}
        kept = {path: file for path, file in state.items() if path.removesuffix(".index") in whole}
        assert sample.records() == records
        strays = [defect for defect in defects(sample.output) if "should not be there" not in defect]
        assert all("rejected inputs" in stray for stray in strays), strays
    assert kills
    assert killer.run(sample, *flags) == 0
    assert digests(sample.output) == due
    assert defects(sample.output) == []


def test_killed_at_the_very_end_it_is_the_old_dataset_still(first: Sample, grown: Sample, tmp_path: Path) -> None:
    due = digests(grown.output)
    written = ("labels.txt", "dataset_info.json", "features.json", "manifest.json")
    for done in range(len(written)):
        sample = Sample(grown.source, tmp_path / str(done))
        shutil.copytree(grown.output, sample.output)
        for name in written[done:]:
            shutil.copy(first.output / name, sample.output / name)
        (sample.output / ".tpudata-known-0123").write_bytes(b"")
        assert open_dataset(str(sample.output)).labels() == ("cat", "dog", "eel")
        assert sample.records() == first.records()
        if done in (0, 3):
            sample.convert("--append")
            assert digests(sample.output) == due
    # Names that are no continuation of what the manifest was written with are not taken for one.
    (sample.output / "manifest.json").write_bytes((first.output / "manifest.json").read_bytes())
    (sample.output / "labels.txt").write_text("dog\ncat\neel\nant\n")
    with pytest.raises(Exception, match="has 4 names, the manifest counts 3 classes"):
        open_dataset(str(sample.output)).labels()


def test_killed_append_of_another_plan_is_named(sample: Sample) -> None:
    sample.grow()
    for name in ("train-a001-00000-of-00007", "validation-a001-00000-of-00009"):
        (sample.output / f"{name}.tfrecord").write_bytes(b"whole")
    before = sample.state()
    with pytest.raises(OutputError, match=r"2 shards of another run, such as train-a001-.* their files in index/"):
        sample.convert("--append")
    assert sample.state() == before


def write_list(path: Path, *rows: str, head: str = "path,label") -> None:
    path.write_text("\n".join((head, *rows, "")))


def convert_list(folder: Path, *flags: str) -> int:
    return run(["--input", str(folder / "list.csv"), "--output", str(folder / "out"), *flags])


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    for number in range(6):
        Image.new("RGB", (20 + number, 30)).save(tmp_path / f"{number}.png")
    return tmp_path


def test_a_listed_file_that_was_missing_is_added_once_it_is_there(listed: Path) -> None:
    flags = ("--on-bad-record=skip", "--max-bad-records=50%", "--append")
    write_list(listed / "list.csv", "0.png,cat", "gone.png,cat", "1.png,dog")
    convert_list(listed, *flags[:2])
    before = digests(listed / "out")
    convert_list(listed, *flags)
    assert digests(listed / "out") == before
    # A row more, and one more that is missing: it is listed in rejects/ beside the old one.
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
    with pytest.raises(BadRecordError, match=r"list\.csv line 4: rejected: it lists what is not there: absent\.png"):
        convert_list(listed, "--append")
    # And overwriting takes all lists away.
    write_list(listed / "list.csv", "0.png,cat", "1.png,dog")
    convert_list(listed, "--overwrite")
    assert not list((listed / "out" / "rejects").iterdir())
    assert defects(listed / "out") == []


def test_a_row_that_was_refused_is_known_wherever_it_comes_to(listed: Path, tmp_path: Path) -> None:
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
    # One of another name is another one.
    write_list(moved / "list.csv", "1.png,dog", "0.png,cat", "lost.png,cat", "2.png,dog")
    convert_list(moved, *flags, "--append")
    assert open_dataset(str(moved / "out")).manifest.rejected == {"it lists what is not there": 2}
    assert defects(moved / "out") == []


def test_missing_keys_are_named_and_what_to_do(listed: Path) -> None:
    write_list(listed / "list.csv", "0.png,cat")
    convert_list(listed)
    (path,) = (listed / "out" / "index").glob("*.keys")
    path.unlink()
    with pytest.raises(OutputError, match=rf"{path} is missing, .* or pass --overwrite"):
        convert_list(listed, "--append")


def test_of_two_appends_at_once_the_later_one_is_refused(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    sample.grow()
    merged, path = Base.merged, sample.output / "manifest.json"

    def other_job(self: Base, added: Manifest) -> Manifest:
        path.write_bytes(dataclasses.replace(self.manifest, created_by="the other job").to_bytes())
        return merged(self, added)

    monkeypatch.setattr(Base, "merged", other_job)
    with pytest.raises(OutputError, match=rf"another job has changed {sample.output} since this one began"):
        sample.convert("--append")
    assert b"the other job" in path.read_bytes()


def test_a_label_or_a_split_that_changed_is_no_silent_matter(listed: Path) -> None:
    write_list(listed / "list.csv", "0.png,cat,train", "1.png,dog,test", head="path,label,split")
    convert_list(listed)
    for row in ("1.png,cat,test", "1.png,dog,train"):
        write_list(listed / "list.csv", "0.png,cat,train", row, head="path,label,split")
        with pytest.raises(
            SourceError, match=r"has a record of '1\.png' already, and its size, class, split or columns"
        ):
            convert_list(listed, "--append")


def test_whole_numbers_stay_labels(listed: Path) -> None:
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
    write_list(listed / "list.csv", "0.png,0", "4.png,7", "5.png,cat")
    with pytest.raises(SourceError, match=r"line 4: label 'cat' is no whole number from 0"):
        convert_list(listed, "--append")
    write_list(listed / "list.csv", "0.png,0", "4.png,700000")
    with pytest.raises(SourceError, match=r"label 700000 makes 700,001 classes"):
        convert_list(listed, "--append")
    assert dataset.labels() == ("0", "1", "2", "3", "4")
    write_list(listed / "list.csv", "0.png,cat")
    convert_list(listed, "--overwrite")
    write_list(listed / "list.csv", "5.png,5")
    with pytest.raises(OutputError, match="classes of the input are whole numbers"):
        convert_list(listed, "--append")


def test_a_file_of_labels_may_only_grow(listed: Path) -> None:
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


def test_other_columns_are_refused_by_name(listed: Path) -> None:
    write_list(listed / "list.csv", "0.png,cat,3", head="path,label,age")
    convert_list(listed)
    for head, row, message in (
        ("path,label,age", "1.png,cat,3.5", "feature 'age' of .* is int64, and in what would be added it is float32"),
        ("path,label", "1.png,cat", "feature 'age' of .* is int64, and in what would be added it is not there"),
        (
            "path,label,age,zip",
            "1.png,cat,3,1",
            "feature 'zip' of .* is not there, and in what would be added it is int64",
        ),
    ):
        write_list(listed / "list.csv", row, head=head)
        with pytest.raises(OutputError, match=message):
            convert_list(listed, "--append")
    write_list(listed / "list.csv", "1.png,cat,4", head="path,label,age")
    convert_list(listed, "--append")
    assert [example["age"] for example in open_dataset(str(listed / "out")).examples("train")] == [[3], [4]]


def test_shapes_become_what_all_have_in_common(tmp_path: Path) -> None:
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
    with pytest.raises(FeatureError, match=r"have shape \(5, 7, 1\), those to be added \(5, 9, 3\)"):
        convert("raw", "--append")
    assert open_dataset(str(tmp_path / "raw")).manifest.records == 2


def test_a_split_and_a_tar_that_are_new(tmp_path: Path) -> None:
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
def test_what_a_tar_was_refused_for_is_known_where_the_tar_has_moved(
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
def test_a_last_step_that_is_tried_again_after_its_job_has_ended(
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
    monkeypatch.setattr("beam_jobs.pipeline.ends_with_process", lambda _options: False)
    assert sample.convert("--append") == 0
    assert defects(sample.output) == []

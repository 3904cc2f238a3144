"""The image job from end to end, on real files: `python -m beam_jobs.images`."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_jobs.images import run
from tests.helpers import forked
from tests.helpers.forked import Forked
from tests.helpers.pictures import CLASSES, digests, make_pictures
from tpudata.cli import main
from tpudata.errors import BadRecordError, SourceError, StorageError, UsageError
from tpudata.format import open_dataset, verify


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def splits(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures in two splits of some shards."""
    output = tmp_path_factory.mktemp("splits") / "out"
    assert convert(pictures, output, "--split", "train=0.7,validation=0.3", "--shard-size", "20kB") == 0
    return output


def convert(source: Path, output: Path, *flags: str) -> int:
    return run(["--input", str(source), "--output", str(output), *flags])


def test_stores_each_file_once_with_its_bytes_and_label(pictures: Path, splits: Path) -> None:
    dataset = open_dataset(str(splits))
    assert dataset.labels() == CLASSES
    found = {}
    for split in ("train", "validation"):
        for example in dataset.examples(split):
            (name,) = example["image/filename"]
            assert isinstance(name, bytes)
            assert name.decode() not in found
            found[name.decode()] = example
    files = {str(path.relative_to(pictures)): path for path in pictures.rglob("*.*")}
    assert found.keys() == files.keys()
    for key, example in found.items():
        data = files[key].read_bytes()
        with Image.open(files[key]) as picture:
            assert example == {
                "image/encoded": [data],
                "image/format": [str(picture.format).encode()],
                "image/width": [picture.width],
                "image/height": [picture.height],
                "image/channels": [len(picture.getbands())],
                "image/colorspace": [b"grayscale" if picture.mode == "L" else b"RGB"],
                "image/class/label": [CLASSES.index(key.split("/")[0])],
                "image/class/text": [key.split("/")[0].encode()],
                "image/filename": [key.encode()],
            }


def test_manifest_matches_the_files_on_disk(pictures: Path, tmp_path: Path) -> None:
    convert(pictures, tmp_path / "out", "--shard-size", "15kB", "--seed", "3", "--label-offset", "1")
    dataset = open_dataset(str(tmp_path / "out"))
    assert {example["image/class/label"][0] for example in dataset.examples("train")} == {1, 2, 3}
    split = dataset.manifest.split("train")
    assert [shard.name for shard in split.shards] == sorted(path.name for path in (tmp_path / "out").glob("*.tfrecord"))
    assert split.records == 60
    for shard in split.shards:
        assert (tmp_path / "out" / shard.name).stat().st_size == shard.bytes
        assert dataset.index(shard).records == shard.records
    decoded = 0
    for path in pictures.rglob("*.*"):
        with Image.open(path) as picture:
            decoded += picture.width * picture.height * len(picture.getbands())
    assert split.decoded_bytes == decoded
    assert dataset.manifest.feature("image/encoded").shape == (None, None, 3)
    assert dataset.manifest.options["seed"] == 3
    assert dataset.manifest.source.bytes == sum(path.stat().st_size for path in pictures.rglob("*.*"))


def test_shards_differ_from_their_mean_by_less_than_13_kilobytes(tmp_path: Path) -> None:
    make_pictures(tmp_path / "in", 200)
    size = sum(path.stat().st_size for path in (tmp_path / "in").rglob("*.*"))
    convert(tmp_path / "in", tmp_path / "out", "--shard-size", str(size // 10))
    shards = open_dataset(str(tmp_path / "out")).manifest.split("train").shards
    assert len(shards) >= 10
    mean = sum(shard.bytes for shard in shards) / len(shards)
    # A shard of 20 pictures cannot be cut finer than a picture, so the tolerance here is one of the largest of them.
    assert all(abs(shard.bytes - mean) < 13_000 for shard in shards)


def test_workers_and_the_order_of_the_disk_change_no_byte(pictures: Path, tmp_path: Path) -> None:
    # The second copy is written in another order, so that listing it raw would differ.
    source, other = Path(shutil.copytree(pictures, tmp_path / "in")), tmp_path / os.fsdecode(b"copy\xff")
    # A name that is not UTF-8 gets to workers and back.
    (source / "cat" / "000.jpg").rename(source / "cat" / os.fsdecode(b"caf\xe9.jpg"))
    for path in sorted(source.rglob("*.*"), reverse=True):
        target = other / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    convert(source, tmp_path / "one", "--num-shards", "5")
    convert(other, tmp_path / "two", "--num-shards", "5", "--workers", "2")
    one, two = digests(tmp_path / "one"), digests(tmp_path / "two")
    # The manifest names its input, which differs here on purpose.
    assert one.pop("manifest.json") != two.pop("manifest.json")
    assert one == two


def test_seed_moves_records_but_never_between_splits(pictures: Path, tmp_path: Path) -> None:
    order = {}
    for seed in ("1", "2"):
        convert(pictures, tmp_path / seed, "--split", "train=0.5,test=0.5", "--seed", seed)
        dataset = open_dataset(str(tmp_path / seed))
        order[seed] = {
            split: [example["image/filename"][0] for example in dataset.examples(split)] for split in ("train", "test")
        }
    for split in ("train", "test"):
        assert order["1"][split] != order["2"][split]
        assert sorted(order["1"][split]) == sorted(order["2"][split])


def test_split_folders_become_splits_with_shared_labels(tmp_path: Path) -> None:
    make_pictures(tmp_path / "in" / "train", 9)
    make_pictures(tmp_path / "in" / "validation", 3, seed=1)
    shutil.rmtree(tmp_path / "in" / "validation" / "cat")
    convert(tmp_path / "in", tmp_path / "out")
    dataset = open_dataset(str(tmp_path / "out"))
    assert {name: split.records for name, split in dataset.manifest.splits.items()} == {"train": 9, "validation": 2}
    assert {example["image/class/label"][0] for example in dataset.examples("validation")} == {1, 2}
    with pytest.raises(UsageError, match="has split folders already"):
        convert(tmp_path / "in", tmp_path / "other", "--split", "train=0.5,test=0.5")


def test_recognizes_other_names_of_split_folders(tmp_path: Path) -> None:
    for name in ("Train", "val"):
        make_pictures(tmp_path / "in" / name, 6)
    convert(tmp_path / "in", tmp_path / "out")
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert ({name: split.records for name, split in manifest.splits.items()}, manifest.labels) == (
        {"train": 6, "validation": 6},
        3,
    )
    make_pictures(tmp_path / "in" / "extra", 3)
    with pytest.raises(SourceError, match=r"Train, val, which look like splits, next to extra"):
        convert(tmp_path / "in", tmp_path / "other")


def test_accepts_a_class_called_train_and_infers_a_static_shape(tmp_path: Path) -> None:
    for name in ("car", "train"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("L", (7, 5)).save(tmp_path / "in" / name / "x.png")
    convert(tmp_path / "in", tmp_path / "out")
    dataset = open_dataset(str(tmp_path / "out"))
    assert dataset.labels() == ("car", "train")
    assert dataset.manifest.feature("image/encoded").shape == (5, 7, 1)


# TFDS 4.9 reads protobuf descriptors in a way that protobuf 6 warns of.
@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
def test_tfds_reads_the_dataset(pictures: Path, splits: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(splits))
    manifest = open_dataset(str(splits)).manifest
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        name: split.records for name, split in manifest.splits.items()
    }
    rows = list(builder.as_dataset("train"))
    assert len(rows) == manifest.split("train").records
    for row in rows[:5]:
        key = row["image/filename"].numpy().decode()
        with Image.open(pictures / key) as picture:
            if picture.format == "PNG":
                assert np.array_equal(row["image/encoded"].numpy(), np.asarray(picture.convert("RGB")))
        assert row["image/class/label"].numpy() == CLASSES.index(key.split("/")[0])


def test_names_a_bad_file_and_leaves_no_file(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    bad = source / "dog" / os.fsdecode(b"bad\xe9.jpg")
    bad.write_bytes(b"hello")
    shown = r"bad\udce9.jpg"
    with pytest.raises(BadRecordError) as caught:
        convert(source, tmp_path / "out")
    assert str(caught.value).startswith(f"{source}/dog/{shown}: rejected: unknown image format: it begins with")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.source, error.offset, str(error)) == (f"{source}/dog/{shown}", None, str(caught.value))
    assert error.reason.startswith("unknown image format: it begins with")
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_names_the_reason_for_a_rejection(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    reasons = {
        "empty.png": (b"", "the file is empty"),
        "header.png": (b"\xff\xd8\xff\xe0\x00\x10JFIF", "JPEG cut inside its header"),
        "short.png": (b"\x89PNG\r\n\x1a\n\0\0", "PNG cut: it has no end after 10 bytes"),
        "gif.png": (b"GIF89a........", "GIF that cannot be decoded"),
    }
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    for form in ("jpg", "png"):
        path = tmp_path / "in" / "a" / f"good.{form}"
        Image.fromarray(pixels).save(path)
        whole = path.read_bytes()
        for length in range(0, len(whole) - 1, len(whole) // 4):
            reasons[f"cut{length}.{form}"] = (whole[:length], r"cut|empty|neither")
    for name, (data, _) in reasons.items():
        (tmp_path / "in" / "a" / name).write_bytes(data)
    convert(tmp_path / "in", tmp_path / "out", "--on-bad-record=skip", f"--max-bad-records={len(reasons)}")
    assert open_dataset(str(tmp_path / "out")).manifest.records == 2
    lines = [line for path in (tmp_path / "out" / "rejects").iterdir() for line in path.read_text().splitlines()]
    found = {Path(line["source"]).name: line["reason"] for line in map(json.loads, lines)}
    assert found.keys() == reasons.keys()
    assert not [name for name, (_, reason) in reasons.items() if not re.search(reason, found[name])], found


def test_skip_lists_rejected_files_and_goes_on(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    bad = {
        "cat/empty.png": b"",
        "dog/notes.jpg": b"hello",
        "eel/cut.jpg": (source / "cat" / "000.jpg").read_bytes()[:90],
    }
    for name, data in bad.items():
        (source / name).write_bytes(data)
    (source / "eel" / "nowhere.png").symlink_to(tmp_path / "gone")
    flags = ["--num-shards=3", "--on-bad-record=skip", "--max-bad-records"]
    # tests/beam_jobs/output/test_rejects.py has counts.
    with pytest.raises(
        SourceError, match=r"4 of 64 inputs rejected .*more than --max-bad-records=6%.*run again with --resume"
    ):
        convert(source, tmp_path / "out", *flags, "6%")
    assert not (tmp_path / "out" / "manifest.json").exists()
    convert(source, tmp_path / "out", *flags, "4", "--resume")
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert manifest.records == 60
    assert sum(manifest.rejected.values()) == 4
    lines = [
        json.loads(line) for path in (tmp_path / "out" / "rejects").iterdir() for line in path.read_text().splitlines()
    ]
    assert {line["source"] for line in lines} == {str(source / name) for name in [*bad, "eel/nowhere.png"]}
    assert all(line["reason"] for line in lines)
    names = {example["image/filename"][0] for example in open_dataset(str(tmp_path / "out")).examples("train")}
    assert names == {str(path.relative_to(pictures)).encode() for path in pictures.rglob("*.*")}
    # Overwriting removes the lists, too.
    for name in [*bad, "eel/nowhere.png"]:
        (source / name).unlink()
    convert(source, tmp_path / "out", "--overwrite")
    assert not list((tmp_path / "out" / "rejects").glob("*"))


def test_rejects_an_input_of_only_bad_files(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "x.png").write_bytes(b"")
    with pytest.raises(SourceError, match="1 of 1 input rejected"):
        convert(tmp_path / "in", tmp_path / "out", "--on-bad-record=skip", "--max-bad-records=100%")


def test_rejects_a_pipe_without_waiting_for_it(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "in")
    os.mkfifo(tmp_path / "in" / "cat" / "x.jpg")
    with pytest.raises(StorageError, match=r"cat/x\.jpg: neither a file nor a folder"):
        convert(tmp_path / "in", tmp_path / "out")


def test_rejects_a_class_name_that_is_not_utf8(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    (source / "dog").rename(os.fsdecode(os.fsencode(source) + b"/d\xf6g"))
    with pytest.raises(SourceError, match=r"class name .* not UTF-8"):
        convert(source, tmp_path / "other")


def test_file_names_that_are_not_utf8_pass_through_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = (tmp_path / os.fsdecode(name) for name in (b"in\xff", b"out\xfe"))
    # Of another shape each, so that summaries name files too.
    for number in range(8):
        path = source / "cat" / os.fsdecode(b"caf\xe9%d.png" % number)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9 + number, 7)).save(path, "PNG")
    bad = source / "cat" / os.fsdecode(b"bad\xe9.png")
    bad.write_bytes(b"no picture")
    # As from the command line, which also prints where the output is.
    command = ["convert", "images", "--input", str(source)]
    flags = ("--on-bad-record=skip", "--max-bad-records=50%", "--num-shards=2")
    assert main([*command, "--output", str(output), *flags]) == 0
    manifest = open_dataset(str(output)).manifest
    assert (manifest.records, manifest.source.input) == (8, str(source))
    assert json.loads(next((output / "rejects").iterdir()).read_bytes())["source"] == str(bad)
    names = {example["image/filename"][0] for example in open_dataset(str(output)).examples("train")}
    assert names == {b"cat/caf\xe9%d.png" % number for number in range(8)}
    assert main([*command, "--output", str(output), *flags, "--append"]) == 0
    assert main(["verify", str(output)]) == main(["inspect", str(output)]) == 0
    assert rf"made from {tmp_path}/in\udcff: 9 inputs" in capsys.readouterr().out


def test_rejects_a_file_that_is_too_large_before_reading_it(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "in")
    with (tmp_path / "in" / "cat" / "huge.jpg").open("wb") as file:
        file.truncate(1 << 40)
    convert(tmp_path / "in", tmp_path / "out", "--on-bad-record=skip", "--max-bad-records=5%", "--num-shards=1")
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert (manifest.records, manifest.rejected) == (60, {"too large": 1})


def test_rejects_an_output_inside_the_input(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "in")
    for output in ("in", "in/out", "in/cat/out", "x/../in/out"):
        with pytest.raises(UsageError, match="is inside the input"):
            convert(tmp_path / "in", tmp_path / output)


def test_rejects_a_split_without_records(tmp_path: Path) -> None:
    make_pictures(tmp_path / "in", 3)
    with pytest.raises(SourceError, match=r"no record falls into test"):
        convert(tmp_path / "in", tmp_path / "out", "--split", "train=0.999999,test=0.000001")


def test_writes_a_multiple_of_the_requested_number_of_shards(pictures: Path, tmp_path: Path) -> None:
    convert(pictures, tmp_path / "out", "--shard-size=30kB", "--shards-multiple-of=4")
    assert len(open_dataset(str(tmp_path / "out")).manifest.split("train").shards) in (4, 8)
    with pytest.raises(UsageError, match="not a multiple of 4"):
        convert(pictures, tmp_path / "other", "--num-shards=6", "--shards-multiple-of=4")


def test_ignores_and_counts_hidden_files(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    (source / "cat" / ".DS_Store").write_bytes(b"x")
    (source / "cat" / "Thumbs.db").write_bytes(b"x")
    convert(source, tmp_path / "out")
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert (manifest.records, manifest.source.ignored_files) == (60, 2)


def test_rejects_missing_inputs_and_inputs_without_classes(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        convert(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "flat").mkdir()
    with pytest.raises(SourceError, match="has no subfolders"):
        convert(tmp_path / "flat", tmp_path / "out")
    (tmp_path / "flat" / "class").mkdir()
    with pytest.raises(SourceError, match="no files to convert"):
        convert(tmp_path / "flat", tmp_path / "out")
    (tmp_path / "flat" / "x.png").write_bytes(b"")
    with pytest.raises(SourceError, match=r"has x\.png next to its folders, which is of no class"):
        convert(tmp_path / "flat", tmp_path / "out")
    with pytest.raises(StorageError, match="none://bucket/x: no storage for none://"):
        run(["--input", "none://bucket/x", "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shard-sise=1MB"], "did you mean --shard-size"),
        (["--runer=X"], "did you mean --runner"),
        (["--max-bad-records=5"], "requires --on-bad-record=skip"),
        (["--on-bad-record=ignore"], r"unknown value \(got 'ignore', expected fail or skip\)"),
        (["--max-bad-records=-1"], "expected a count such as 100 or a share"),
        (["--shard-size=1XB"], "'1XB': not a size"),
        (["--split=train=0.5"], "got 0.5"),
        (["--split=train"], "not a share"),
        (["--split=tr-ain=1"], "split name 'tr-ain'"),
        (["--num-shards=61"], "fills 60 of them at most"),
        (["--resume", "--overwrite"], "choose one"),
        (["--runner=NoSuchRunner"], "Unexpected pipeline runner"),
        (["--workers=2", "--runner=PrismRunner"], "--workers is for the local runner"),
        (["--label-offset=-1"], "--label-offset: out of range"),
        (["extra"], "unexpected argument 'extra'"),
    ],
)
def test_rejects_wrong_usage_with_a_hint(pictures: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(pictures, tmp_path / "out", *flags)
    assert not list((tmp_path / "out").rglob("*.tfrecord"))


def test_dry_run_prints_the_plan_and_writes_nothing(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(pictures, tmp_path / "out", "--num-shards", "4", "--dry-run")
    assert capsys.readouterr().out.splitlines()[2].split()[:3] == ["train", "60", "4"]
    assert not (tmp_path / "out").exists()


def test_module_exits_with_the_right_code_and_one_line_errors(pictures: Path, tmp_path: Path) -> None:
    command = ["-m", "beam_jobs.images", "--input", str(pictures), "--output", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, *command, "--num_shards=2"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "60 records, 3 classes" in done.stdout
    rejected = forked.run(*command)
    assert rejected.returncode == 1
    assert rejected.stderr.startswith("tpudata: error: --output ")
    assert rejected.stderr.count("\n") == 1
    assert forked.run(*command, "--no-such-flag").returncode == 2


def test_a_repeated_run_writes_the_same_bytes(pictures: Path, splits: Path, tmp_path: Path) -> None:
    convert(pictures, tmp_path / "out", "--split", "train=0.7,validation=0.3", "--shard-size", "20kB")
    assert digests(tmp_path / "out") == digests(splits)
    assert json.loads((splits / "manifest.json").read_bytes())["format_version"] == 1


def test_plans_and_overwrites_reject_bad_records_and_change_nothing(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list.csv").write_text(f"path,label\n{pictures}/cat/000.jpg,cat\n{tmp_path}/gone.jpg,cat\n")
    convert(pictures, tmp_path / "out")
    before = digests(tmp_path / "out")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for output, flag in (("new", "--dry-run"), ("out", "--overwrite")):
        with pytest.raises(BadRecordError, match=r"gone\.jpg"):
            convert(tmp_path / "list.csv", tmp_path / output, flag)
        assert digests(tmp_path / "out") == before
    # Nor does either leave a folder of the engine.
    assert not list(temporary.iterdir())


# No file may become larger than the bytes that come first.
LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
runpy.run_module("beam_jobs.images", run_name="__main__", alter_sys=True)
"""


def test_reports_a_full_disk_with_a_fix_and_resumes(pictures: Path, tmp_path: Path) -> None:
    flags = ["--input", str(pictures), "--output", str(tmp_path / "out"), "--num-shards=2", "--resume"]
    full = forked.run("-c", LIMITED, "40000", *flags)
    said = full.stderr
    assert (full.returncode, said.count("\n")) == (1, 1)
    assert said.startswith(f"tpudata: error: {tmp_path}/out/train-0000")
    assert "could not be written: File too large. Make the files smaller, or raise the limit" in said
    assert said.endswith(". Then run again with --resume.\n")
    assert not list((tmp_path / "out").rglob(".*"))
    assert run(flags) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_concurrent_runs_into_one_folder_never_mix_their_shards(pictures: Path, tmp_path: Path) -> None:
    command = ["-m", "beam_jobs.images", "--input", str(pictures), "--output", str(tmp_path / "out")]
    with Forked(*command, "--num-shards=11") as one, Forked(*command, "--num-shards=12") as other:
        ends = [(run.stderr, code) for run in (one, other) for code in [run.wait()]]
    for said, code in ends:
        assert code in (0, 1)
        assert said == "" if code == 0 else said.startswith("tpudata: error: ")
        assert "Traceback" not in said
    assert [code for _, code in ends] != [0, 0]
    if 0 not in [code for _, code in ends]:
        # Each saw the other's files. Neither may have left what could be taken for a dataset.
        assert not (tmp_path / "out" / "manifest.json").exists()
        return
    # The one that was done first is whole: shards that the other has left are named by verify, and by nothing else read.
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert [len(split.shards) for split in manifest.splits.values()] in ([11], [12])
    defects = [str(defect) for defect in verify(str(tmp_path / "out"))]
    assert all("should not be there" in defect for defect in defects)

"""Output that is there already: rejected, replaced with --overwrite, continued with --resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from beam_jobs.images import run
from tests.helpers.pictures import digests, make_pictures
from tpudata.errors import OutputError, UsageError
from tpudata.format import open_dataset, write_shard


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures"))


def convert(source: Path, output: Path, *flags: str) -> int:
    return run(["--input", str(source), "--output", str(output), *flags])


def test_rejects_an_output_that_is_not_empty(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for flags in ((), ("--resume",), ("--overwrite",)):
        with pytest.raises(OutputError, match=r"thesis\.txt|no manifest\.json"):
            convert(pictures, tmp_path / "mine", *flags)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    convert(pictures, tmp_path / "out")
    with pytest.raises(OutputError, match=r"holds a dataset\. Pass --overwrite"):
        convert(pictures, tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        convert(pictures, tmp_path / "file")


def test_overwrite_removes_only_files_of_the_manifest(pictures: Path, tmp_path: Path) -> None:
    convert(pictures, tmp_path / "out", "--num-shards", "7")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    convert(pictures, tmp_path / "out", "--num-shards", "2", "--overwrite")
    (tmp_path / "out" / "notes.txt").unlink()
    convert(pictures, tmp_path / "fresh", "--num-shards", "2")
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_resume_writes_only_missing_or_damaged_shards(pictures: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    convert(pictures, output, "--num-shards", "6")
    whole = digests(output)
    times = {path.name: path.stat().st_mtime_ns for path in output.glob("*.tfrecord")}
    # As a killed run leaves it: no manifest, a shard without an index, one missing, one cut, an unfinished file.
    (output / "manifest.json").unlink()
    (output / "index" / "train-00001-of-00006.index").unlink()
    (output / "train-00002-of-00006.tfrecord").unlink()
    shard = output / "train-00003-of-00006.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-10])
    (output / "index" / "train-00004-of-00006.index").write_bytes(b"TPUDIDX1 and then nothing")
    (output / ".tpudata-train-00005-of-00006.tfrecord.0123").write_bytes(b"half")
    convert(pictures, output, "--num-shards", "6", "--resume")
    assert digests(output) == whole
    kept = {path.name for path in output.glob("*.tfrecord") if path.stat().st_mtime_ns == times[path.name]}
    assert kept == {"train-00000-of-00006.tfrecord", "train-00005-of-00006.tfrecord"}


def test_resume_replaces_shards_of_another_writer(pictures: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    write_shard(str(output), "train-00000-of-00001.tfrecord", [b""])
    convert(pictures, output, "--num-shards", "1", "--resume")
    convert(pictures, tmp_path / "fresh", "--num-shards", "1")
    assert digests(output) == digests(tmp_path / "fresh")


def test_resume_of_a_complete_dataset_changes_nothing(pictures: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    shutil.copytree(pictures, source)
    convert(source, output, "--num-shards", "4")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.rglob("*.*")}

    def unchanged() -> bool:
        return before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.rglob("*.*")}

    convert(source, output, "--num-shards", "4", "--resume")
    assert unchanged()
    for flags in (["--num-shards=3"], ["--num-shards=4", "--label-offset=1"], ["--num-shards=4", "--seed=5"]):
        with pytest.raises(OutputError, match=r"was made with (num_shards|label_offset|seed) = "):
            convert(source, output, *flags, "--resume")
        assert unchanged()
    (source / "cat" / "more.png").write_bytes(b"no picture")
    with pytest.raises(OutputError, match="the input has changed since"):
        convert(source, output, "--num-shards", "4", "--resume")
    assert unchanged()


def test_failed_overwrite_keeps_the_old_dataset(pictures: Path, tmp_path: Path) -> None:
    convert(pictures, tmp_path / "out")
    before = digests(tmp_path / "out")
    for flags in (["--num-shards=61"], ["--runner=Nope"], ["--runner=DataflowRunner"], ["--split=train=1e400"]):
        with pytest.raises((UsageError, ValueError)):
            convert(pictures, tmp_path / "out", "--overwrite", *flags)
        assert digests(tmp_path / "out") == before


def test_rejects_a_resume_with_another_plan(pictures: Path, tmp_path: Path) -> None:
    convert(pictures, tmp_path / "out", "--num-shards", "6")
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(OutputError, match="6 shards of another run"):
        convert(pictures, tmp_path / "out", "--num-shards", "5", "--resume")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_resume_converts_a_changed_input_again(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    convert(source, tmp_path / "out", "--num-shards", "3")
    (tmp_path / "out" / "manifest.json").unlink()
    Image.new("RGB", (9, 9), "red").save(source / "cat" / "000.jpg")
    convert(source, tmp_path / "out", "--num-shards", "3", "--resume")
    examples = open_dataset(str(tmp_path / "out")).examples("train")
    data = {example["image/filename"][0]: example["image/encoded"][0] for example in examples}
    assert data[b"cat/000.jpg"] == (source / "cat" / "000.jpg").read_bytes()

"""Output folders with files that no conversion wrote, and what failed runs leave."""

from __future__ import annotations

import errno
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from beam_jobs.images import run
from tests.helpers.pictures import digests, make_pictures
from tpudata.errors import BadRecordError, OutputError, SourceError, TpudataError, UsageError
from tpudata.format import open_dataset

NAMES = ("labels.txt", "dataset_info.json", "features.json")
PLAIN = ("--unlabelled", "--compression=gzip")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_pictures(tmp_path / "in", 9)


def convert(source: Path, *flags: str) -> Path:
    output = source.parent / "out"
    run(["--input", str(source), "--output", str(output), *flags])
    return output


def test_overwrite_keeps_files_that_no_conversion_wrote(source: Path) -> None:
    # Without classes and compressed, a dataset has none of these.
    output = convert(source, *PLAIN)
    for name in NAMES:
        (output / name).write_text("mine")
    (output / "rejects").mkdir()
    (output / "rejects" / "notes.txt").write_text("mine")
    before = digests(output)
    convert(source, *PLAIN, "--overwrite")
    assert digests(output) == before
    # What would be written over them is rejected before anything is removed.
    for flags, name in (
        (["--compression=gzip"], "labels.txt"),
        (["--unlabelled"], "dataset_info.json"),
        ([], "labels.txt"),
    ):
        with pytest.raises(OutputError, match=rf"--overwrite: .* has {name}, which does not belong to its dataset"):
            convert(source, *flags, "--overwrite")
        assert digests(output) == before
    for name in NAMES:
        (output / name).unlink()
    convert(source, "--overwrite")
    assert open_dataset(str(output)).labels() == ("cat", "dog", "eel")
    # Files of the old dataset are removed.
    convert(source, *PLAIN, "--overwrite")
    assert not [name for name in NAMES if (output / name).exists()]
    assert (output / "rejects" / "notes.txt").read_text() == "mine"


def test_a_dry_run_rejects_what_the_run_would_reject(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = source.parent / "out"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    for flags in ([], ["--resume"], ["--overwrite"], ["--append"]):
        with pytest.raises(OutputError, match=r"thesis\.txt|no manifest\.json"):
            convert(source, "--dry-run", *flags)
    (other / "thesis.txt").unlink()
    output = convert(source, "--num-shards=2")
    before = digests(output)
    capsys.readouterr()
    for flags, message in (
        ([], r"holds a dataset\. Pass --overwrite"),
        (["--resume", "--num-shards=3"], "was made with num_shards = 2, and now it is 3"),
    ):
        with pytest.raises(OutputError, match=message):
            convert(source, "--dry-run", *flags)
    for flags in (["--resume", "--num-shards=2"], ["--overwrite", "--num-shards=3"]):
        convert(source, "--dry-run", *flags)
        assert "train" in capsys.readouterr().out
    Image.new("L", (5, 6)).save(source / "cat" / "more.png")
    with pytest.raises(OutputError, match="the input has changed since"):
        convert(source, "--dry-run", "--resume", "--num-shards=2")
    assert digests(output) == before
    (output / "train-00000-of-00009.tfrecord").write_bytes(b"half")
    for flags in (["--overwrite"], ["--append"]):
        with pytest.raises(OutputError, match="1 shard of another run, such as train-00000-of-00009"):
            convert(source, "--dry-run", *flags)
    (output / "manifest.json").unlink()
    with pytest.raises(OutputError, match="shards of another run"):
        convert(source, "--dry-run", "--resume", "--num-shards=3")


@pytest.mark.parametrize("workers", ["2", pytest.param("1", marks=pytest.mark.matrix)])
def test_a_run_that_fails_leaves_no_temporary_files(tmp_path: Path, workers: str) -> None:
    make_pictures(tmp_path / "in", 9)
    # An error comes from other processes with any name.
    (tmp_path / "in" / "cat" / os.fsdecode(b"bad\xe9.jpg")).write_bytes(b"no picture")
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "all.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "in", ".")
    with pytest.raises(BadRecordError, match=r"bad\\udce9\.jpg.*: rejected: unknown image format") as caught:
        convert(tmp_path / "tars", f"--workers={workers}")
    assert caught.value.source.endswith(f" in {tmp_path}/tars/all.tar.gz")
    assert caught.value.reason.startswith("unknown image format: it begins with")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert not list((tmp_path / "out").rglob(".*"))
    with pytest.raises(SourceError, match="more than --max-bad-records=0"):
        convert(tmp_path / "tars", "--on-bad-record=skip", "--max-bad-records=0", "--resume")
    assert not list((tmp_path / "out").rglob(".*"))


def test_label_offset_requires_classes(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--label-offset is 3, and the images have no classes"):
        convert(source, "--label-offset=3", "--unlabelled")
    # The same for a list without labels.
    (tmp_path / "pictures.csv").write_text(f"path\n{source}/cat/000.jpg\n")
    with pytest.raises(UsageError, match="--label-offset is 3"):
        convert(tmp_path / "pictures.csv", "--label-offset=3", "--unlabelled")
    assert not (tmp_path / "out").exists()


def test_disk_errors_at_any_access_name_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = make_pictures(tmp_path / "in", 3), tmp_path / "out"
    real, looks, fails_at = os.stat, 0, 0

    def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
        nonlocal looks
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(str(output)):
            looks += 1
            if looks == fails_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    failed = 0
    while looks >= fails_at:
        looks, fails_at = 0, fails_at + 1
        try:
            run([f"--input={source}", f"--output={output}", "--resume"])
        except TpudataError as error:
            failed += 1
            assert f"{output}" in str(error)  # noqa: PT017
            assert "Input/output error. The disk or the connection to it fails" in str(error)  # noqa: PT017
    assert failed >= 5

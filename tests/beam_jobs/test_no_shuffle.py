"""`--no-shuffle`, from end to end: records in the order in which the input lists them."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest

from beam_jobs.images import run
from tests.helpers.pictures import digests, make_pictures
from tpudata.errors import SourceError, UsageError
from tpudata.format import open_dataset


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures"))


def names(output: Path, split: str = "train") -> list[str]:
    """The file names that the records of a split have, in order."""
    filenames = [example["image/filename"][0] for example in open_dataset(str(output)).examples(split)]
    return [name.decode() for name in filenames if isinstance(name, bytes)]


def convert(source: Path, output: Path, *flags: str) -> Path:
    assert run(["--input", str(source), "--output", str(output), "--no-shuffle", *flags]) == 0
    return output


def test_keeps_class_folders_in_name_order(pictures: Path, tmp_path: Path) -> None:
    output = convert(pictures, tmp_path / "out", "--shard-size", "20kB")
    assert len(open_dataset(str(output)).manifest.split("train").shards) > 3
    assert names(output) == sorted(str(path.relative_to(pictures)) for path in pictures.rglob("*.*"))
    # Another order than without the flag.
    assert run(["--input", str(pictures), "--output", str(tmp_path / "shuffled")]) == 0
    assert names(tmp_path / "shuffled") != names(output)
    assert sorted(names(tmp_path / "shuffled")) == sorted(names(output))


def test_keeps_the_lines_of_a_list_in_order_in_every_split(pictures: Path, tmp_path: Path) -> None:
    paths = sorted(pictures.rglob("*.*"), key=lambda path: path.name[::-1])
    lines = [f"{path},{path.parent.name}" for path in paths]
    (tmp_path / "list.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    output = convert(tmp_path / "list.csv", tmp_path / "out", "--split", "train=0.5,test=0.5", "--num-shards", "3")
    order = [str(path) for path in paths]
    for split in ("train", "test"):
        places = [order.index(name) for name in names(output, split)]
        assert len(places) > 10
        assert places == sorted(places)


def test_keeps_the_members_of_a_tar_in_order(pictures: Path, tmp_path: Path) -> None:
    members = sorted(pictures.rglob("*.*"), key=lambda path: path.name[::-1])
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in members:
            tar.add(path, f"{path.parent.name}/{path.name}")
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    for name in ("a.tar", "a.tar.gz"):
        output = convert(tmp_path / name, tmp_path / f"{name}.out", "--shard-size", "20kB", "--unlabelled")
        assert [found.split("/", 1)[-1] for found in names(output)] == [f"{p.parent.name}/{p.name}" for p in members]


def test_two_workers_and_a_resumed_run_write_the_same_bytes(pictures: Path, tmp_path: Path) -> None:
    flags = ["--shard-size", "20kB", "--compression=gzip"]
    one = convert(pictures, tmp_path / "one", *flags)
    two = convert(pictures, tmp_path / "two", *flags, "--workers", "2")
    assert digests(one) == digests(two)
    (two / "manifest.json").unlink()
    (two / sorted(path.name for path in two.glob("train-*"))[1]).unlink()
    convert(pictures, two, *flags, "--resume")
    assert digests(one) == digests(two)


def test_rejects_two_inputs_with_one_key(pictures: Path, tmp_path: Path) -> None:
    paths = sorted(pictures.rglob("*.*"))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in (*paths, paths[0]):
            tar.add(path, f"{path.parent.name}/{path.name}")
    with pytest.raises(SourceError, match=r"000\.jpg in .*a\.tar and .*000\.jpg in .*a\.tar have the same key"):
        convert(tmp_path / "a.tar", tmp_path / "out", "--unlabelled")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_rejects_a_seed_without_shuffle(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--seed sets the shuffled order"):
        convert(pictures, tmp_path / "out", "--seed", "3")

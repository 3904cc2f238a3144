"""`--dali-index`, from end to end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.images import run
from tests.beam_jobs.examples.flowers import flower, write
from tests.beam_jobs.images import encode
from tests.format.shards.test_dali_index import indexed, walked
from tests.helpers.pictures import digests
from tpudata.cli import main
from tpudata.errors import OutputError, UsageError
from tpudata.format import verify


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for number in range(12):
        path = tmp_path / "in" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(random.integers(0, 256, (5, 5 + number, 3), np.uint8), "PNG"))
    return tmp_path / "in"


@pytest.fixture
def convert(pictures: Path, tmp_path: Path) -> Callable[..., Path]:
    def to(name: str, *flags: str) -> Path:
        assert run([f"--input={pictures}", f"--output={tmp_path / name}", "--num-shards=2", *flags]) == 0
        return tmp_path / name

    return to


def assert_indexed(folder: Path, shards: int) -> None:
    paths = sorted(folder.glob("*.tfrecord"))
    assert len(paths) == shards
    for path in paths:
        assert indexed(folder / "index" / f"{path.stem}.idx") == walked(path)
    assert list(verify(str(folder))) == []


def test_index_is_the_same_when_added_later(convert: Callable[..., Path]) -> None:
    one, other = convert("one", "--dali-index"), convert("other")
    assert_indexed(one, 2)
    assert main(["index", str(other)]) == 0
    assert digests(one) == digests(other)


def test_append_adds_the_index_if_the_dataset_has_one(convert: Callable[..., Path], pictures: Path) -> None:
    convert("with", "--dali-index")
    convert("without")
    shutil.copy(pictures / "cat" / "0.png", pictures / "dog" / "new.png")
    assert_indexed(convert("with", "--append", "--num-shards=1"), 3)
    with pytest.raises(OutputError, match="Run `tpudata index"):
        convert("without", "--append", "--num-shards=1", "--dali-index")
    folder = convert("without", "--append", "--num-shards=1")
    assert list(folder.rglob("*.idx")) == []


@pytest.mark.parametrize(("first", "second"), [([], ["--dali-index"]), (["--dali-index"], [])])
def test_resume_writes_or_removes_the_index_as_asked(
    convert: Callable[..., Path], first: list[str], second: list[str]
) -> None:
    due = digests(convert("due", *second))
    killed = convert("killed", *first)
    (killed / "manifest.json").unlink()
    (killed / "index" / "train-00001-of-00002.index").unlink()
    assert digests(convert("killed", "--resume", *second)) == due


def test_rejects_a_resume_that_would_add_the_index(convert: Callable[..., Path]) -> None:
    convert("out")
    with pytest.raises(OutputError, match="Run `tpudata index"):
        convert("out", "--resume", "--dali-index")
    convert("out", "--overwrite", "--dali-index")
    folder = convert("out", "--overwrite")
    assert list(folder.rglob("*.idx")) == []


def test_rejects_the_index_for_compressed_shards(convert: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="--dali-index: DALI reads no compressed shards"):
        convert("out", "--dali-index", "--compression=gzip")


def test_indexes_examples_of_a_pipeline(tmp_path: Path) -> None:
    write(range(20), tmp_path / "out", flower, num_shards=2, dali_index=True)
    assert_indexed(tmp_path / "out", 2)

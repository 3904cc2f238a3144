"""`--compression gzip`, from end to end."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.images import run
from tests.beam_jobs.images import encode
from tests.beam_jobs.test_images import digests
from tests.beam_jobs.test_write_examples import COUNT, flower, write
from tpudata.cli import main
from tpudata.errors import OutputError, UsageError
from tpudata.format import open_dataset


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 small PNGs in two classes: three blocks of records."""
    folder = tmp_path_factory.mktemp("drawn")
    random = np.random.default_rng(0)
    for number in range(150):
        path = folder / ("cats", "dogs")[number % 2] / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(random.integers(0, 256, (6, 8, 3), np.uint8), "PNG"))
    return folder


@pytest.fixture
def convert(drawn: Path, tmp_path: Path) -> Callable[..., Path]:
    def to(name: str, *flags: str) -> Path:
        # Pixels of noise take more room than their PNG's.
        options = ["--layout=raw", "--num-shards=2", *flags]
        assert run(["--input", str(drawn), "--output", str(tmp_path / name), *options]) == 0
        return tmp_path / name

    return to


def records(folder: Path) -> list[Any]:
    return list(open_dataset(str(folder)).examples("train"))


def test_the_records_are_those_of_shards_that_are_not_compressed(convert: Callable[..., Path]) -> None:
    plain, packed = convert("plain"), convert("packed", "--compression=gzip")
    assert records(packed) == records(plain)
    names = [f"train-0000{number}-of-00002.tfrecord" for number in range(2)]
    for name in names:
        assert gzip.decompress((packed / name).read_bytes()) == (plain / name).read_bytes()
    read = tf.data.TFRecordDataset([str(packed / name) for name in names], compression_type="GZIP")
    assert len(list(read)) == 150
    assert main(["verify", str(packed)]) == 0
    manifest = json.loads((packed / "manifest.json").read_bytes())
    assert (manifest["compression"], manifest["options"]["compression"]) == ("gzip", "gzip")
    assert json.loads((plain / "manifest.json").read_bytes())["compression"] is None
    # TFDS would take the shards for damaged.
    assert not (packed / "dataset_info.json").exists()


def test_the_bytes_do_not_depend_on_the_workers(convert: Callable[..., Path]) -> None:
    one, two = convert("one", "--compression=gzip"), convert("two", "--compression=gzip", "--workers=2")
    assert digests(one) == digests(two)


def test_resume_and_overwrite(convert: Callable[..., Path]) -> None:
    whole = convert("whole", "--compression=gzip")
    due = digests(whole)
    # What a killed run leaves: one shard, and another whose index is not there yet.
    for name in ("manifest.json", "index/train-00001-of-00002.index"):
        (whole / name).unlink()
    kept = (whole / "train-00000-of-00002.tfrecord").stat().st_mtime_ns
    convert("whole", "--compression=gzip", "--resume")
    assert digests(whole) == due
    assert (whole / "train-00000-of-00002.tfrecord").stat().st_mtime_ns == kept
    with pytest.raises(OutputError, match="compression = 'gzip', and now it is None"):
        convert("whole", "--resume")
    # A shard of a killed run that was compressed is no finished one of a run that does not compress.
    (whole / "manifest.json").unlink()
    assert digests(convert("whole", "--resume")) == digests(convert("plain"))
    assert digests(convert("plain", "--compression=gzip", "--overwrite")) == due


def test_inspect_says_so(convert: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = convert("packed", "--compression=gzip")
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 0
    assert "(layout raw, gzip, format version" in capsys.readouterr().out
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compression"] == "gzip"


def test_examples_of_a_pipeline(tmp_path: Path) -> None:
    for name, compression in (("plain", None), ("packed", "gzip")):
        write(range(COUNT), tmp_path / name, flower, num_shards=2, compression=compression)
    assert records(tmp_path / "packed") == records(tmp_path / "plain")
    assert main(["verify", str(tmp_path / "packed")]) == 0
    sizes = [open_dataset(str(tmp_path / name)).manifest.split("train").bytes for name in ("packed", "plain")]
    assert sizes[0] < sizes[1]


def test_other_compressions_are_refused(drawn: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compression='zip': allowed are None and 'gzip'"):
        write([], tmp_path / "out", compression="zip")
    with pytest.raises(UsageError, match="--compression"):
        run(["--input", str(drawn), "--output", str(tmp_path / "out"), "--compression=zip"])

"""`--compression gzip`, from end to end."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf

import tpudata
from beam_jobs.images import run
from tests.beam_jobs.examples.flowers import flower, write
from tests.beam_jobs.images import encode
from tests.helpers.pictures import digests
from tpudata.cli import main
from tpudata.errors import OutputError, UsageError
from tpudata.format import Manifest, open_dataset


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


def test_compressed_shards_hold_the_records_of_plain_shards(
    convert: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    plain, packed = convert("plain"), convert("packed", "--compression=gzip")
    assert records(packed) == records(plain)
    names = [f"train-0000{number}-of-00002.tfrecord.gz" for number in range(2)]
    assert sorted(path.name for path in packed.glob("train-*")) == names
    for name in names:
        assert gzip.decompress((packed / name).read_bytes()) == (plain / name.removesuffix(".gz")).read_bytes()
    read = tf.data.TFRecordDataset([str(packed / name) for name in names], compression_type="GZIP")
    assert len(list(read)) == 150
    assert main(["verify", str(packed)]) == 0
    manifest = json.loads((packed / "manifest.json").read_bytes())
    assert (manifest["compression"], manifest["options"]["compression"]) == ("gzip", "gzip")
    assert json.loads((plain / "manifest.json").read_bytes())["compression"] is None
    # TFDS would take the shards for damaged.
    assert not (packed / "dataset_info.json").exists()
    capsys.readouterr()
    assert main(["inspect", str(packed)]) == 0
    assert "(layout raw, gzip, format version" in capsys.readouterr().out
    assert main(["inspect", str(packed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compression"] == "gzip"


def test_resumes_and_overwrites_compressed_shards(convert: Callable[..., Path]) -> None:
    whole = convert("whole", "--compression=gzip")
    due = digests(whole)
    # What a killed run leaves: one shard, and another whose index is not there yet.
    for name in ("manifest.json", "index/train-00001-of-00002.index"):
        (whole / name).unlink()
    kept = (whole / "train-00000-of-00002.tfrecord.gz").stat().st_mtime_ns
    convert("whole", "--compression=gzip", "--resume")
    assert digests(whole) == due
    assert (whole / "train-00000-of-00002.tfrecord.gz").stat().st_mtime_ns == kept
    with pytest.raises(OutputError, match="compression = 'gzip', and now it is None"):
        convert("whole", "--resume")
    # A shard of a killed run that was compressed is no finished one of a run that does not compress.
    (whole / "manifest.json").unlink()
    with pytest.raises(OutputError, match=r"of another run, such as train-00000-of-00002\.tfrecord\.gz"):
        convert("whole", "--resume")
    plain = convert("plain")
    manifest = (plain / "manifest.json").read_bytes()
    (plain / "manifest.json").unlink()
    with pytest.raises(OutputError, match=r"of another run, such as train-00000-of-00002\.tfrecord:"):
        convert("plain", "--compression=gzip", "--resume")
    (plain / "manifest.json").write_bytes(manifest)
    assert digests(convert("plain", "--compression=gzip", "--overwrite")) == due


def test_beam_reads_compressed_shards_by_their_names(convert: Callable[..., Path], tmp_path: Path) -> None:
    folder = convert("packed", "--compression=gzip")
    pipeline = beam.Pipeline("BundleBasedDirectRunner")
    found = pipeline | beam.io.ReadFromTFRecord(f"{folder}/train-*")
    _ = found | beam.Map(bytes.hex) | beam.io.WriteToText(f"{tmp_path}/read")
    pipeline.run().wait_until_finish()
    lines = [line for path in tmp_path.glob("read-*") for line in path.read_text().splitlines()]
    files = tf.io.gfile.glob(f"{folder}/train-*")
    due = tf.data.TFRecordDataset(files, compression_type="GZIP").as_numpy_iterator()
    assert sorted(lines) == sorted(record.hex() for record in due)


def named_as_before(folder: Path) -> Path:
    """Rename the shards of a dataset as earlier versions did, which wrote no `tfds` either."""
    text = (folder / "manifest.json").read_text()
    manifest = Manifest.from_bytes(text.replace(".tfrecord.gz", ".tfrecord").encode())
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    for path in folder.glob("*.tfrecord.gz"):
        path.rename(path.with_suffix(""))
    return folder


def test_keeps_reading_shards_with_the_names_of_earlier_versions(drawn: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    shutil.copytree(drawn, source)
    flags = ["--input", str(source), "--output", str(output), "--layout=raw", "--num-shards=2", "--compression=gzip"]
    assert run(flags) == 0
    due = records(output)
    named_as_before(output)
    names = sorted(path.name for path in output.glob("train-*"))
    assert names == ["train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"]

    assert records(output) == due
    assert main(["verify", str(output)]) == 0
    input_fn = tpudata.make_input_fn(str(output), "train", training=False)
    assert sum(len(labels) for _, labels in input_fn({"batch_size": 50})) == 150
    assert run([*flags, "--resume"]) == 0

    (output / "index" / "train-00001-of-00002.index").unlink()
    (output / "manifest.json").unlink()
    assert run([*flags, "--resume"]) == 0
    assert sorted(path.name for path in output.glob("train-*")) == names
    assert records(output) == due

    (source / "cats" / "new.png").write_bytes((source / "cats" / "000.png").read_bytes())
    assert run([*flags[:-2], "--compression=gzip", "--num-shards=1", "--append"]) == 0
    assert sorted(path.name for path in output.glob("train-a*")) == ["train-a001-00000-of-00001.tfrecord"]
    assert len(records(output)) == 151
    assert main(["verify", str(output)]) == 0
    assert run([*flags, "--overwrite"]) == 0
    assert sorted(path.name for path in output.glob("train-*")) == [f"{name}.gz" for name in names]


def test_compresses_examples_of_a_pipeline(tmp_path: Path) -> None:
    for name, compression in (("plain", None), ("packed", "gzip")):
        write(range(100), tmp_path / name, flower, num_shards=2, compression=compression)
    assert records(tmp_path / "packed") == records(tmp_path / "plain")
    assert main(["verify", str(tmp_path / "packed")]) == 0
    sizes = [open_dataset(str(tmp_path / name)).manifest.split("train").bytes for name in ("packed", "plain")]
    assert sizes[0] < sizes[1]


def test_rejects_other_compressions(drawn: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"compression: unknown value \(got 'zip', expected None or 'gzip'\)"):
        write([], tmp_path / "out", compression="zip")
    with pytest.raises(UsageError, match="--compression"):
        run(["--input", str(drawn), "--output", str(tmp_path / "out"), "--compression=zip"])

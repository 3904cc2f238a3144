from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from PIL import Image

import tpudata
from beam_jobs.images import run
from tests.beam_jobs.sources.inputs import jpeg, write_files
from tpudata import RecordSource, open_dataset
from tpudata.cli import main
from tpudata.errors import UsageError


@pytest.mark.parametrize(
    ("flags", "stored"),
    [
        ([], ["imagenet", "header", None, None, False]),
        (
            ["--check=decode", "--resize_shorter", "6", "--quality", "80", "--jpeg-only"],
            ["imagenet", "decode", 6, 80, True],
        ),
        (["--layout", "raw"], ["raw", "header", None, None, False]),
    ],
)
def test_manifest_stores_the_options_of_images(flags: list[str], stored: list[Any], tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"cat/0.jpg": jpeg(0)})
    assert main(["convert", "images", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *flags]) == 0
    options = open_dataset(str(tmp_path / "out")).manifest.options
    assert [options[name] for name in ("layout", "check", "resize_shorter", "quality", "jpeg_only")] == stored


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--layout", "tiles"), "got 'tiles', expected imagenet or raw"),
        (("--check", "all"), "got 'all', expected header or decode"),
        (("--quality", "101"), "got 101, expected 1 to 100"),
        (("--quality", "0"), "not a whole number of 1 or more"),
        (("--resize-shorter", "-3"), "not a whole number of 1 or more"),
        (("--layout", "raw", "--quality", "80"), "--quality is for JPEGs, but layout raw stores pixels"),
        (("--layout", "raw", "--jpeg-only"), "--jpeg-only is for JPEGs"),
    ],
)
def test_rejects_invalid_values_and_contradicting_flags(flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run([f"--input={tmp_path}", f"--output={tmp_path}-out", *flags])


@pytest.mark.parametrize("wrong", [{"resize_shorter": 0}, {"quality": 0}])
def test_rejects_invalid_keyword_values(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"argument .*: '0' is not a whole number of 1 or more"):
        tpudata.convert_images(tmp_path / "in", tmp_path / "out", **wrong)


@pytest.fixture(scope="module")
def for_tpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of JPEG and PNG files, converted for the readers of tensorflow/tpu."""
    folder = tmp_path_factory.mktemp("for")
    for number in range(8):
        path = folder / "pictures" / "ab"[number % 2] / f"{number}.{'jpg' if number < 4 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 10), (20 * number, 0, 0)).save(path)
    flags = ["--split", "train=0.5,validation=0.5", "--for", "tensorflow-tpu"]
    assert (
        main(["convert", "images", "--input", str(folder / "pictures"), "--output", str(folder / "data"), *flags]) == 0
    )
    return folder / "data"


def test_tensorflow_tpu_readers_read_the_dataset(for_tpu: Path) -> None:
    # The keys and defaults of its imagenet_input, which subtracts 1 from the label.
    keys = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string, ""),
        "image/format": tf.io.FixedLenFeature((), tf.string, "jpeg"),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64, -1),
    }
    seen = []
    for split in ("train", "validation"):
        for record in tf.data.TFRecordDataset(tf.io.gfile.glob(f"{for_tpu}/{split}-*")):
            parsed = tf.io.parse_single_example(record, keys)
            picture = tf.image.decode_and_crop_jpeg(parsed["image/encoded"], [0, 0, 10, 12], channels=3)
            red = round(int(picture[5, 5, 0]) / 20)
            seen.append((red, int(parsed["image/class/label"]) - 1))
    assert sorted(seen) == [(number, number % 2) for number in range(8)]


def test_record_source_keeps_the_label_offset(for_tpu: Path) -> None:
    manifest = open_dataset(str(for_tpu)).manifest
    label = manifest.feature("image/class/label")
    assert (label.num_classes, label.label_offset) == (2, 1)
    labels = {record["image/class/label"] for split in manifest.splits for record in RecordSource(for_tpu, split)}
    assert labels == {1, 2}

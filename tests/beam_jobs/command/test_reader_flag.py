"""`--for tensorflow-tpu`: the dataset as tensorflow/tpu's imagenet_input.py reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from beam_jobs.images import run
from tests.beam_jobs.images import encode
from tpudata.errors import UsageError
from tpudata.format import open_dataset

CLASSES = ("ape", "bee", "cow")
# The keys and defaults of its parser; labels are 1 to the number of classes, and it takes 1 off.
KEYS = {
    "image/encoded": tf.io.FixedLenFeature((), tf.string, ""),
    "image/format": tf.io.FixedLenFeature((), tf.string, "jpeg"),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64, -1),
    "image/class/text": tf.io.FixedLenFeature([], tf.string, ""),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine pictures for each split: PNG with transparency, grey and colour JPEG."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    kinds = [((12, 16, 4), "PNG"), ((12, 16), "JPEG"), ((12, 16, 3), "JPEG")]
    for split in ("train", "val"):
        for number in range(9):
            shape, form = kinds[number // 3]
            path = folder / split / CLASSES[number % 3] / f"{number}.{form.lower()}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(random.integers(0, 256, shape, np.uint8), form))
    return folder


def convert(pictures: Path, output: Path, *flags: str) -> Path:
    assert run([f"--input={pictures}", f"--output={output}", "--for=tensorflow-tpu", *flags]) == 0
    return output


def test_tensorflow_tpu_parser_reads_every_record(pictures: Path, tmp_path: Path) -> None:
    folder = convert(pictures, tmp_path / "out", "--num-shards=2")
    for split in ("train", "validation"):
        files = tf.io.gfile.glob(f"{folder}/{split}-*")
        assert len(files) == 2
        labels = []
        for record in tf.data.TFRecordDataset(files):
            parsed = tf.io.parse_single_example(record, KEYS)
            assert tf.io.is_jpeg(parsed["image/encoded"])
            assert tf.io.decode_jpeg(parsed["image/encoded"], channels=3).shape == (12, 16, 3)
            label = int(tf.cast(parsed["image/class/label"], tf.int32)) - 1
            assert parsed["image/class/text"].numpy().decode() == CLASSES[label]
            assert parsed["image/format"] == b"JPEG"
            labels.append(label)
        assert sorted(labels) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_input_fn_keeps_the_label_offset(pictures: Path, tmp_path: Path) -> None:
    folder = convert(pictures, tmp_path / "out")
    manifest = open_dataset(str(folder)).manifest
    label = manifest.feature("image/class/label")
    assert (label.num_classes, label.label_offset) == (3, 1)
    input_fn = tpudata.make_input_fn(str(folder), "train", training=False, images=tpudata.Images(size=(8, 8)))
    ((_, labels),) = input_fn({"batch_size": 9})
    assert sorted(labels.numpy().tolist()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_writes_the_same_dataset_as_the_implied_flags(pictures: Path, tmp_path: Path) -> None:
    one = convert(pictures, tmp_path / "one")
    other = tmp_path / "other"
    assert run([f"--input={pictures}", f"--output={other}", "--label-offset=1", "--jpeg-only"]) == 0
    assert (one / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()
    assert json.loads((one / "manifest.json").read_bytes())["options"]["label_offset"] == 1
    assert convert(pictures, tmp_path / "repeated", "--label-offset=1", "--jpeg-only", "--layout=imagenet")


@pytest.mark.parametrize(
    "flag",
    [
        "--label-offset=0",
        "--no-jpeg-only",
        "--layout=raw",
        "--compression=gzip",
        "--unlabelled",
        "--split=train=0.9,val=0.1",
    ],
)
def test_rejects_contradicting_flags(pictures: Path, tmp_path: Path, flag: str) -> None:
    with pytest.raises(UsageError, match="--for=tensorflow-tpu"):
        convert(pictures, tmp_path / "out", flag)
    assert not (tmp_path / "out").exists()


def test_rejects_images_with_several_labels(pictures: Path, tmp_path: Path) -> None:
    rows = [{"path": f"{pictures}/train/ape/0.png", "labels": ["ape", "bee"]}]
    (tmp_path / "list.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(UsageError, match="any number of labels"):
        run([f"--input={tmp_path}/list.jsonl", f"--output={tmp_path}/out", "--for=tensorflow-tpu"])

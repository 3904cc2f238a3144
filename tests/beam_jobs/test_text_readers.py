"""Other libraries read what a conversion of text writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from grain.experimental import TFRecordIterDataset

import tpudata
from beam_jobs.text import run
from tpudata.format import open_dataset

# tensorflow_datasets 4.9 asks protobuf for a field's label, which protobuf 5 deprecates.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")

TEXTS = [f"line {number} {'x' * (number % 9)}é" for number in range(50)]
NAMES = ("input_ids", "segment_ids", "positions")
PACKED = ["--tokenizer", "bytes", "--sequence-length", "64", "--pack"]
# In a process without TensorFlow's protobuf classes.
TFRECORD = """
import json, sys
from tfrecord.reader import tfrecord_loader
kinds = json.loads(sys.argv[1])
found = [row for path in sys.argv[2:] for row in tfrecord_loader(path, None, kinds)]
print(json.dumps([{name: list(map(int, value)) for name, value in row.items()} for row in found]))
"""


def converted(folder: Path, *flags: str) -> tuple[Path, list[dict[str, Any]]]:
    """A dataset of the texts, two shards, and its records as this project reads them."""
    (folder / "a.txt").write_text("\n".join(TEXTS))
    out = folder / "out"
    assert run(["--input", str(folder / "a.txt"), "--output", str(out), "--num-shards", "2", *flags]) == 0
    return out, list(open_dataset(str(out)).examples("train"))


def shards(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("train-*")))


def from_tfrecord(folder: Path, kind: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", TFRECORD, json.dumps(dict.fromkeys(names, kind)), *shards(folder)]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [{name: bytes(row[name]) if kind == "byte" else row[name] for name in names} for row in rows]


def test_all_readers_read_packed_rows_of_bytes(tmp_path: Path) -> None:
    out, records = converted(tmp_path, *PACKED)
    rows = [{name: np.frombuffer(record[name][0], "<i4") for name in NAMES} for record in records]
    description = {name: tf.io.FixedLenFeature([], tf.string) for name in NAMES}
    batch = next(iter(tf.data.TFRecordDataset(shards(out)).batch(len(rows))))
    for name, stored in tf.io.parse_example(batch, description).items():
        np.testing.assert_array_equal(tf.io.decode_raw(stored, tf.int32), [row[name] for row in rows])
    read = tfds.as_numpy(tfds.builder_from_directory(str(out)).as_dataset(split="train", shuffle_files=False))
    by_tfds = [{name: example[name] for name in NAMES} for example in read]
    assert by_tfds[0]["input_ids"].dtype == np.int32
    assert {tuple(row["input_ids"]) for row in by_tfds} == {tuple(row["input_ids"]) for row in rows}
    assert from_tfrecord(out, "byte", NAMES) == [{name: record[name][0] for name in NAMES} for record in records]
    by_grain = [tf.train.Example.FromString(row) for path in shards(out) for row in TFRecordIterDataset(path)]
    assert [list(one.features.feature["positions"].bytes_list.value) for one in by_grain] == [
        record["positions"] for record in records
    ]


def test_all_readers_read_packed_rows_of_lists(tmp_path: Path) -> None:
    out, records = converted(tmp_path, *PACKED, "--int64-lists")
    description = {name: tf.io.FixedLenFeature([64], tf.int64) for name in NAMES}
    batch = next(iter(tf.data.TFRecordDataset(shards(out)).batch(len(records))))
    for name, values in tf.io.parse_example(batch, description).items():
        np.testing.assert_array_equal(values, [record[name] for record in records])
    read = tfds.as_numpy(tfds.builder_from_directory(str(out)).as_dataset(split="train"))
    assert {tuple(row["input_ids"]) for row in read} == {tuple(record["input_ids"]) for record in records}
    assert from_tfrecord(out, "int", NAMES) == records


def test_tfds_reads_tokens_and_text(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    out, records = converted(tmp_path / "one", "--tokenizer", "bytes")
    read = tfds.as_numpy(tfds.builder_from_directory(str(out)).as_dataset(split="train"))
    assert sorted(bytes(row["input_ids"].astype(np.uint8)).decode() for row in read) == sorted(TEXTS)
    assert from_tfrecord(out, "int", ("input_ids",)) == records
    (tmp_path / "two").mkdir()
    out, records = converted(tmp_path / "two")
    read = tfds.as_numpy(tfds.builder_from_directory(str(out)).as_dataset(split="train"))
    assert sorted(row["text"].decode() for row in read) == sorted(TEXTS)
    assert [[row["text"]] for row in from_tfrecord(out, "byte", ("text",))] == [record["text"] for record in records]


def write_reviews(folder: Path) -> Path:
    """The layout of SST-2: TSV with a sentence and a label, and a score next to them."""
    path = folder / "train.tsv"
    path.write_text("sentence\tlabel\tscore\na gem\tpos\t0.5\ndull\tneg\t0.25\n")
    return path


def test_tfds_reads_the_names_of_classes(tmp_path: Path) -> None:
    flags = ["--field=sentence", "--label-field=label", "--keep-key"]
    assert run([f"--input={write_reviews(tmp_path)}", f"--output={tmp_path}/out", *flags]) == 0
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    assert isinstance(builder.info.features["label"], tfds.features.ClassLabel)
    assert builder.info.features["label"].names == ["neg", "pos"]
    found = {row["sentence"]: (row["label"], row["key"]) for row in builder.as_dataset("train").as_numpy_iterator()}
    assert found == {b"a gem": (1, b"train.tsv:21"), b"dull": (0, b"train.tsv:35")}


@pytest.mark.parametrize("flags", [[], ["--tokenizer=bytes"]])
def test_input_fn_feeds_labels_next_to_texts(tmp_path: Path, flags: list[str]) -> None:
    rows = ["--field=sentence", "--label-field=label"]
    assert run([f"--input={write_reviews(tmp_path)}", f"--output={tmp_path}/out", *rows, *flags]) == 0
    tokens = tpudata.Tokens(sequence_length=5) if flags else None
    input_fn = tpudata.make_input_fn(f"{tmp_path}/out", "train", training=False, tokens=tokens)
    features, labels = next(iter(input_fn({"batch_size": 2})))
    if flags:
        ids, masks = features["input_ids"].numpy(), features["attention_mask"].numpy()
        texts = [bytes(row[mask > 0].tolist()) for row, mask in zip(ids, masks, strict=True)]
    else:
        texts = features["sentence"].numpy().tolist()
    assert dict(zip(texts, labels.numpy().tolist(), strict=True)) == {b"a gem": 1, b"dull": 0}


def test_input_fn_feeds_a_float_column_as_label(tmp_path: Path) -> None:
    rows = ["--field=sentence", "--field=score:float"]
    assert run([f"--input={write_reviews(tmp_path)}", f"--output={tmp_path}/out", *rows]) == 0
    input_fn = tpudata.make_input_fn(
        f"{tmp_path}/out",
        "train",
        training=False,
        extra_features=["score"],
        transform=lambda features: (features, features.pop("score")),
    )
    features, labels = next(iter(input_fn({"batch_size": 2})))
    found = dict(zip(features["sentence"].numpy().tolist(), labels.numpy().tolist(), strict=True))
    assert found == {b"a gem": 0.5, b"dull": 0.25}

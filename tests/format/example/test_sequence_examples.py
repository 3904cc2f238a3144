"""SequenceExamples, which begin as an Example does: every reader rejects them by name, and only `parse=` reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from beam_jobs.reshard import run as reshard
from tpudata import CorruptionError, RecordSource, SourceError, TFRecordFiles, as_numpy, make_input_fn
from tpudata.cli import main
from tpudata.format import Feature, Manifest, Source, Split, encode_example, write_metadata, write_shard

IS_ONE = "is a tf.train.SequenceExample"
FEATURES = (Feature("x", "int64", "int64"),)
NAME = "train-00000-of-00001.tfrecord"


def sequence_example(x: int) -> bytes:
    steps = tf.train.FeatureList(feature=[tf.train.Feature(int64_list=tf.train.Int64List(value=[x + 1]))])
    data: bytes = tf.train.SequenceExample(
        context=tf.train.Features(feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=[x]))}),
        feature_lists=tf.train.FeatureLists(feature_list={"steps": steps}),
    ).SerializeToString()
    return data


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A dataset that a program wrote with the public writers, taking them for Examples."""
    shard = write_shard(str(tmp_path / "dataset"), NAME, [sequence_example(x) for x in range(4)])
    splits = {"train": Split((shard,))}
    write_metadata(str(tmp_path / "dataset"), Manifest("", splits, FEATURES, Source("memory", 4, 0, "0"), "tests"))
    return str(tmp_path / "dataset")


def parse(records: tf.Tensor) -> dict[str, tf.Tensor]:
    context, lists, _ = tf.io.parse_sequence_example(
        records, {"x": tf.io.FixedLenFeature([], tf.int64)}, {"steps": tf.io.FixedLenSequenceFeature([], tf.int64)}
    )
    return {"x": context["x"], "step": tf.ensure_shape(lists["steps"], [None, 1])}


def test_readers_reject_sequence_examples_in_a_dataset(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", folder]) == 1
    assert capsys.readouterr().out.count(IS_ONE) == 4
    with pytest.raises(CorruptionError, match=IS_ONE):
        RecordSource(folder, "train")[0]
    with pytest.raises(CorruptionError, match=IS_ONE) as caught:
        next(as_numpy(make_input_fn(folder, "train", training=False), 2))
    assert caught.value.path == f"{folder}/{NAME}"
    assert RecordSource(folder, "train", decode=None)[3] == sequence_example(3)
    (batch,) = as_numpy(make_input_fn(folder, "train", training=False, parse=parse), 4)
    assert (batch["x"].tolist(), batch["step"].tolist()) == ([0, 1, 2, 3], [[1], [2], [3], [4]])


def test_readers_reject_sequence_examples_in_other_files(tmp_path: Path) -> None:
    path = str(tmp_path / "in" / "some.tfrecord")
    Path(path).parent.mkdir()
    with tf.io.TFRecordWriter(path) as writer:
        for x in range(4):
            writer.write(sequence_example(x))
    with pytest.raises(CorruptionError, match=rf"{IS_ONE}.*Pass parse= to make_input_fn"):
        make_input_fn(TFRecordFiles(path, FEATURES), training=False)
    (batch,) = as_numpy(make_input_fn(TFRecordFiles(path), training=False, parse=parse), 4)
    assert batch["step"].tolist() == [[1], [2], [3], [4]]
    with pytest.raises(SourceError, match=rf"{path} at byte 0: .*{IS_ONE}"):
        reshard([path, "--output", str(tmp_path / "out")])


def test_reshard_skips_a_sequence_example_among_examples(tmp_path: Path) -> None:
    path = str(tmp_path / "in" / "some.tfrecord")
    Path(path).parent.mkdir()
    with tf.io.TFRecordWriter(path) as writer:
        for x in range(30):
            writer.write(sequence_example(x) if x == 9 else encode_example({"x": x}))
    out = tmp_path / "out"
    assert reshard([path, "--output", str(out), "--on-bad-record=skip", "--max-bad-records=1"]) == 0
    assert [int(record["x"]) for record in RecordSource(str(out), "train")] == [*range(9), *range(10, 30)]
    (rejects,) = (out / "rejects").iterdir()
    assert IS_ONE in rejects.read_text()

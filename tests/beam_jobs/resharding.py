"""Datasets and files to reshard, and what of them arrives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from beam_jobs.reshard import run
from tests.helpers.datasets import write_dataset
from tpudata.format import Feature, open_dataset, verify
from tpudata.format.manifest.manifest import Manifest

NUMBER = Feature("n", "int64", "int64")


BLOB = Feature("blob", "bytes", "string", (None,))


def records_of(folder: Path, split: str | None = None) -> list[bytes]:
    """Return the records that readers have, in order, read by TensorFlow."""
    dataset = open_dataset(str(folder))
    names = [split] if split else list(dataset.manifest.splits)
    paths = [str(folder / shard.name) for name in names for shard in dataset.manifest.splits[name].shards]
    compression = "GZIP" if dataset.manifest.compression else None
    return [record.numpy() for record in tf.data.TFRecordDataset(paths, compression)]


def manifest(folder: Path) -> Manifest:
    return open_dataset(str(folder)).manifest


def numbered(
    folder: Path, counts: dict[str, int], *, shards: int = 2, compression: str | None = None, first: int = 0
) -> Path:
    """Write a dataset of numbered records of many sizes."""
    rng = np.random.default_rng(first)
    numbers = iter(range(first, first + sum(counts.values())))

    def record() -> dict[str, Any]:
        return {"n": next(numbers), "blob": [rng.bytes(int(size)) for size in rng.integers(0, 200, rng.integers(0, 3))]}

    splits = {name: [record() for _ in range(count)] for name, count in counts.items()}
    write_dataset(str(folder), splits, [NUMBER, BLOB], layout="examples", shards=shards, compression=compression)
    return folder


def write_files(folder: Path, examples: dict[str, list[dict[str, Any]]], compression: str = "") -> Path:
    """Write files of Examples with TensorFlow's writer and its protobufs."""
    folder.mkdir(parents=True, exist_ok=True)

    def feature(values: list[Any]) -> tf.train.Feature:
        if not values:
            return tf.train.Feature()
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    for name, records in examples.items():
        with tf.io.TFRecordWriter(str(folder / name), compression) as writer:
            for record in records:
                features = tf.train.Features(feature={key: feature(values) for key, values in record.items()})
                writer.write(tf.train.Example(features=features).SerializeToString())
    return folder


def reshard(*argv: Any) -> int:
    return run([str(word) for word in argv])


def assert_whole(folder: Path) -> None:
    assert list(verify(str(folder))) == []

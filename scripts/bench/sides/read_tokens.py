"""The case `tokens` of read.py: rows of 512 tokens, packed from documents, next to TensorFlow's readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tpudata
from beam_jobs.text_records.int_examples import IntLists, encode_int_examples
from beam_jobs.text_records.sequences import Documents, pack_rows
from sides.side_by_side import Side
from tpudata.format import (
    Feature,
    Manifest,
    Source,
    Split,
    encode_example,
    open_dataset,
    shard_name,
    write_metadata,
    write_shard,
)
from tpudata.format.example.value_positions import find_value_positions

LENGTH = 512
NAMES = ("input_ids", "segment_ids", "positions")
# Rows that fit the shuffle's window, once taken apart, and rows that do not.
_FEW, _MANY = 40_960, 131_072
_SHARDS = 4
_VOCABULARY = 32_000


def pipelines(folder: Path, batch: int) -> Iterator[tuple[str, dict[str, Side]]]:
    """Yield a title and the pipelines by name, for each way to store tokens and each number of rows."""
    for kind in ("int64 lists", "int32 bytes"):
        for records in (_FEW, _MANY):
            is_raw = kind == "int32 bytes"
            data = packed(folder / f"tokens-{kind.split()[0]}-{records}", records, is_raw=is_raw)
            size = sum(path.stat().st_size for path in data.glob("train-*"))
            # A window of 41,000 rows is filled, and filled anew.
            sides = {
                name: Side(partial(build, data, batch), _MANY // batch, 80)
                for name, build in _SIDES.items()
                if is_raw or build is not _least
            }
            yield f"tokens: {records:,} rows of {LENGTH} tokens as {kind}, {size / 1e6:.0f} MB", sides


def _raw(data: Path, batch: int) -> tf.data.Dataset:
    return _records(data).batch(batch).prefetch(2)


def _shuffled(data: Path, batch: int) -> tf.data.Dataset:
    # What training does: a window of as many rows as ours.
    return _records(data).repeat().shuffle(_FEW).batch(batch).prefetch(2)


def _parsed(data: Path, batch: int) -> tf.data.Dataset:
    is_raw = open_dataset(str(data)).manifest.features[0].encoding == "raw"
    return _records(data).batch(batch).map(_parser(is_raw=is_raw), num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def _least(data: Path, batch: int) -> tf.data.Dataset:
    # The least that makes tensors of bytes of int32: it knows where the values are, and checks nothing.
    first = next(iter(_records(data))).numpy()
    places = find_value_positions(first)
    assert places is not None

    def cut(records: tf.Tensor) -> dict[str, tf.Tensor]:
        matrix = tf.ensure_shape(tf.io.decode_raw(records, tf.uint8), [None, len(first)])
        parts = {name: matrix[:, places[name].begin : places[name].end] for name in NAMES}
        return {name: tf.bitcast(tf.reshape(part, [-1, LENGTH, 4]), tf.int32) for name, part in parts.items()}

    return _records(data).batch(batch).map(cut, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def _ours(data: Path, batch: int, *, training: bool, targets: bool = False) -> tf.data.Dataset:
    return tpudata.make_input_fn(str(data), "train", seed=1, training=training, tokens=tpudata.Tokens(targets=targets))(
        {"batch_size": batch}
    )


_SIDES: dict[str, Callable[[Path, int], tf.data.Dataset]] = {
    "raw: TFRecordDataset, batch": _raw,
    "raw, shuffled": _shuffled,
    "batch, parse_example": _parsed,
    "least: batch, decode_raw, slices": _least,
    "tpudata, training": partial(_ours, training=True),
    "tpudata, training, targets": partial(_ours, training=True, targets=True),
    "tpudata, evaluation": partial(_ours, training=False),
}


def _records(data: Path) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(sorted(str(path) for path in data.glob("train-*")))


def packed(folder: Path, records: int, *, is_raw: bool) -> Path:
    """Write packed documents of random tokens, unless they exist."""
    if (folder / "manifest.json").exists():
        return folder

    def part(seed: int) -> Iterator[bytes]:
        random = np.random.default_rng(seed)
        left = records // _SHARDS
        while left:
            # As in text: small ids are frequent, and documents of any length.
            sizes = random.geometric(1 / 300, 4096)
            documents = [np.minimum(random.zipf(1.2, size), _VOCABULARY - 1).astype(np.int32) for size in sizes]
            (rows,) = pack_rows([Documents.of(documents)], LENGTH, 0)
            columns = {"input_ids": rows.input_ids, "segment_ids": rows.segment_ids, "positions": rows.positions}
            kept = {name: values[:left] for name, values in columns.items() if values is not None}
            count = len(kept["input_ids"])
            if is_raw:
                for row in range(count):
                    yield encode_example({name: values[row].astype("<i4").tobytes() for name, values in kept.items()})
            else:
                yield from encode_int_examples({name: IntLists.from_rows(values) for name, values in kept.items()})
            left -= count

    shards = [write_shard(str(folder), shard_name("train", n, _SHARDS), part(n)) for n in range(_SHARDS)]
    kind, dtype, encoding = ("bytes", "int32", "raw") if is_raw else ("int64", "int64", None)
    manifest = Manifest(
        layout="packed",
        splits={"train": Split(tuple(shards))},
        features=tuple(Feature(name, kind, dtype, (LENGTH,), encoding) for name in NAMES),
        source=Source("random", records, 0, "0"),
        created_by=tpudata.__version__,
    )
    write_metadata(str(folder), manifest)
    return folder


def _parser(*, is_raw: bool) -> Any:
    stored = tf.io.FixedLenFeature([], tf.string) if is_raw else tf.io.FixedLenFeature([LENGTH], tf.int64)

    def parse(records: tf.Tensor) -> Any:
        found = tf.io.parse_example(records, dict.fromkeys(NAMES, stored))
        if is_raw:
            return {name: tf.reshape(tf.io.decode_raw(value, tf.int32), (-1, LENGTH)) for name, value in found.items()}
        return {name: tf.cast(value, tf.int32) for name, value in found.items()}

    return parse

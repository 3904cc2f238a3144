"""The case `tokens` of read.py: rows of 512 tokens, packed from documents, beside TensorFlow's readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tpudata
from beam_jobs.text_examples import IntLists, encode_int_examples
from beam_jobs.text_sequences import Documents, packed_rows
from tpudata.format import Feature, Manifest, Source, Split, encode_example, shard_name, write_metadata, write_shard

LENGTH = 512
NAMES = ("input_ids", "segment_ids", "positions")
# Rows that fit the shuffle's window, once taken apart, and rows that do not.
_FEW, _MANY = 40_960, 131_072
_SHARDS = 4
_VOCABULARY = 32_000


def pipelines(folder: Path, batch: int) -> Iterator[tuple[str, dict[str, tuple[tf.data.Dataset, int]]]]:
    """Yields, for each way to store tokens and each number of rows, a title and the pipelines.

    A pipeline is, by its name, a dataset and how many batches to take.
    """
    for kind in ("int64 lists", "int32 bytes"):
        for records in (_FEW, _MANY):
            data = packed(folder / f"tokens-{kind.split()[0]}-{records}", records, is_raw=kind == "int32 bytes")
            files = sorted(str(path) for path in data.glob("train-*"))
            size = sum(path.stat().st_size for path in data.glob("train-*"))
            batches = _FEW // batch
            raw = tf.data.TFRecordDataset(files).batch(batch)
            parsed = raw.map(_parser(kind), num_parallel_calls=tf.data.AUTOTUNE)
            # What training does: a window of as many rows as ours.
            shuffled = tf.data.TFRecordDataset(files).repeat().shuffle(_FEW).batch(batch)
            found = {
                "raw: TFRecordDataset, batch": (raw.prefetch(2), batches),
                "raw, shuffled": (shuffled.prefetch(2), batches),
                "batch, parse_example": (parsed.prefetch(2), batches),
            }
            for name, training, targets in (
                ("training", True, False),
                ("training, targets", True, True),
                ("evaluation", False, False),
            ):
                input_fn = tpudata.make_input_fn(str(data), "train", seed=1, training=training, targets=targets)
                found[f"tpudata, {name}"] = input_fn({"batch_size": batch}), batches
            yield f"tokens: {records:,} rows of {LENGTH} tokens as {kind}, {size / 1e6:.0f} MB", found


def packed(folder: Path, records: int, *, is_raw: bool) -> Path:
    """Writes documents of random tokens, packed, unless they are there."""
    if (folder / "manifest.json").exists():
        return folder

    def part(seed: int) -> Iterator[bytes]:
        random = np.random.default_rng(seed)
        left = records // _SHARDS
        while left:
            # As in text: small ids are frequent, and documents of any length.
            sizes = random.geometric(1 / 300, 4096)
            documents = [np.minimum(random.zipf(1.2, size), _VOCABULARY - 1).astype(np.int32) for size in sizes]
            (rows,) = packed_rows([Documents.of(documents)], LENGTH, 0)
            columns = {"input_ids": rows.input_ids, "segment_ids": rows.segment_ids, "positions": rows.positions}
            kept = {name: values[:left] for name, values in columns.items() if values is not None}
            count = len(kept["input_ids"])
            if is_raw:
                for row in range(count):
                    yield encode_example({name: values[row].astype("<i4").tobytes() for name, values in kept.items()})
            else:
                yield from encode_int_examples({name: IntLists.of_rows(values) for name, values in kept.items()})
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


def _parser(kind: str) -> Any:
    is_raw = kind == "int32 bytes"
    stored = tf.io.FixedLenFeature([], tf.string) if is_raw else tf.io.FixedLenFeature([LENGTH], tf.int64)

    def parse(records: tf.Tensor) -> Any:
        found = tf.io.parse_example(records, dict.fromkeys(NAMES, stored))
        if is_raw:
            return {name: tf.reshape(tf.io.decode_raw(value, tf.int32), (-1, LENGTH)) for name, value in found.items()}
        return {name: tf.cast(value, tf.int32) for name, value in found.items()}

    return parse

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
# Rows that fit the shuffle's window once they are parsed, and rows that do not.
_FEW, _MANY = 40_960, 131_072
_SHARD_COUNT = 4
_VOCABULARY = 32_000


def list_sides(folder: Path, batch_size: int) -> Iterator[tuple[str, dict[str, Side]]]:
    """Yield a title and the sides by name, for each way to store tokens and each number of rows.

    Args:
        folder: folder of the datasets, which are written unless they exist.
        batch_size: rows in a batch.
    """
    for kind in ("int64 lists", "int32 bytes"):
        for record_count in (_FEW, _MANY):
            is_raw = kind == "int32 bytes"
            data = write_packed(folder / f"tokens-{kind.split()[0]}-{record_count}", record_count, is_raw=is_raw)
            size = sum(path.stat().st_size for path in data.glob("train-*"))
            # Rounds in which a window of 41,000 rows is filled several times. `_read_least` needs rows that are bytes.
            sides = {
                name: Side(partial(build, data, batch_size), batch_count=_MANY // batch_size, warm_up=80)
                for name, build in _SIDES.items()
                if is_raw or build is not _read_least
            }
            yield f"tokens: {record_count:,} rows of {LENGTH} tokens as {kind}, {size / 1e6:.0f} MB", sides


def _read_raw(data: Path, batch_size: int) -> tf.data.Dataset:
    return _read_records(data).batch(batch_size).prefetch(2)


def _read_raw_shuffled(data: Path, batch_size: int) -> tf.data.Dataset:
    # A window of as many rows as ours in training.
    return _read_records(data).repeat().shuffle(_FEW).batch(batch_size).prefetch(2)


def _read_and_parse(data: Path, batch_size: int) -> tf.data.Dataset:
    """Return batches of rows, parsed by TensorFlow's `parse_example`; the manifest says how they are stored."""
    is_raw = open_dataset(str(data)).manifest.features[0].encoding == "raw"
    batches = _read_records(data).batch(batch_size)
    return batches.map(_make_parser(is_raw=is_raw), num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def _read_least(data: Path, batch_size: int) -> tf.data.Dataset:
    """Return a dataset with the least work that makes tensors of bytes of int32: it slices them at known positions."""
    first = next(iter(_read_records(data))).numpy()
    places = find_value_positions(first)
    assert places is not None

    def slice_records(records: tf.Tensor) -> dict[str, tf.Tensor]:
        # All records have the length of the first, and each value at the same place.
        matrix = tf.ensure_shape(tf.io.decode_raw(records, tf.uint8), [None, len(first)])
        slices = {name: matrix[:, places[name].begin : places[name].end] for name in NAMES}
        return {name: tf.bitcast(tf.reshape(part, [-1, LENGTH, 4]), tf.int32) for name, part in slices.items()}

    batches = _read_records(data).batch(batch_size)
    return batches.map(slice_records, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def _read_ours(data: Path, batch_size: int, *, training: bool, has_targets: bool = False) -> tf.data.Dataset:
    """Return batches from our reader, with shifted ids as labels if `has_targets`."""
    tokens = tpudata.Tokens(targets=has_targets)
    input_fn = tpudata.make_input_fn(str(data), "train", seed=1, training=training, tokens=tokens)
    return input_fn({"batch_size": batch_size})


_SIDES: dict[str, Callable[[Path, int], tf.data.Dataset]] = {
    "raw: TFRecordDataset, batch": _read_raw,
    "raw, shuffled": _read_raw_shuffled,
    "batch, parse_example": _read_and_parse,
    "least: batch, decode_raw, slices": _read_least,
    "tpudata, training": partial(_read_ours, training=True),
    "tpudata, training, targets": partial(_read_ours, training=True, has_targets=True),
    "tpudata, evaluation": partial(_read_ours, training=False),
}


def _read_records(data: Path) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(sorted(str(path) for path in data.glob("train-*")))


def write_packed(folder: Path, record_count: int, *, is_raw: bool) -> Path:
    """Write packed documents of random tokens, unless they exist; return their folder.

    Args:
        folder: folder of the dataset.
        record_count: number of rows.
        is_raw: whether rows are stored as bytes of int32 instead of lists of int64.
    """
    if (folder / "manifest.json").exists():
        return folder

    def make_records(seed: int) -> Iterator[bytes]:
        # The records of a shard: batches of documents are packed until there are enough rows.
        random = np.random.default_rng(seed)
        missing_count = record_count // _SHARD_COUNT
        while missing_count:
            # As in text, small ids are frequent, and documents have any length.
            lengths = random.geometric(1 / 300, 4096)
            documents = [np.minimum(random.zipf(1.2, length), _VOCABULARY - 1).astype(np.int32) for length in lengths]
            (rows,) = pack_rows([Documents.of(documents)], LENGTH, pad_id=0)
            all_columns = {"input_ids": rows.input_ids, "segment_ids": rows.segment_ids, "positions": rows.positions}
            columns = {name: values[:missing_count] for name, values in all_columns.items() if values is not None}
            count = len(columns["input_ids"])
            if is_raw:
                for row in range(count):
                    yield encode_example(
                        {name: values[row].astype("<i4").tobytes() for name, values in columns.items()}
                    )
            else:
                yield from encode_int_examples({name: IntLists.from_rows(values) for name, values in columns.items()})
            missing_count -= count

    shards = [
        write_shard(str(folder), shard_name("train", number, _SHARD_COUNT), make_records(number))
        for number in range(_SHARD_COUNT)
    ]
    kind, dtype, encoding = ("bytes", "int32", "raw") if is_raw else ("int64", "int64", None)
    manifest = Manifest(
        layout="packed",
        splits={"train": Split(tuple(shards))},
        features=tuple(Feature(name, kind, dtype, (LENGTH,), encoding) for name in NAMES),
        source=Source("random", record_count, bytes=0, fingerprint="0"),
        created_by=tpudata.__version__,
    )
    write_metadata(str(folder), manifest)
    return folder


def _make_parser(*, is_raw: bool) -> Any:
    """Return a function that parses batches of records into int32 [batch, 512] by name."""
    stored = tf.io.FixedLenFeature([], tf.string) if is_raw else tf.io.FixedLenFeature([LENGTH], tf.int64)

    def parse(records: tf.Tensor) -> Any:
        parsed = tf.io.parse_example(records, dict.fromkeys(NAMES, stored))
        if is_raw:
            return {name: tf.reshape(tf.io.decode_raw(rows, tf.int32), (-1, LENGTH)) for name, rows in parsed.items()}
        return {name: tf.cast(rows, tf.int32) for name, rows in parsed.items()}

    return parse

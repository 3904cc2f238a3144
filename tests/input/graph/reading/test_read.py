"""Ranges of records equal those of other readers; unreadable ranges are errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tpudata import FixedLengthRecordFiles, Reading, TextLineFiles, TFRecordFiles, TpudataError, as_numpy, make_input_fn
from tpudata.format import Dataset, Feature, ShardIndex, index_name, open_dataset

TEXTS = [b"", b"a", "zwölf".encode(), bytes(3000), *(b"%d" % number * (number % 50) for number in range(96))]


def written(folder: Path, kind: str) -> tuple[Any, list[bytes]]:
    """Return the arguments of make_input_fn for files of a kind, and their records as another reader has them."""
    if kind in ("shards", "gzip"):
        records = [{"x": text} for text in TEXTS]
        compression = "gzip" if kind == "gzip" else None
        path = write_dataset(
            str(folder), {"train": records}, [Feature("x", "bytes", "string")], layout="", compression=compression
        )
        files = sorted(str(file) for file in folder.glob("*.tfrecord"))
        options = "GZIP" if compression else ""
        return (path, "train"), list(tf.data.TFRecordDataset(files, options).as_numpy_iterator())
    files = [str(folder / name) for name in "abc"]
    if kind == "tfrecord":
        for number, file in enumerate(files):
            with tf.io.TFRecordWriter(file) as writer:
                for text in TEXTS[number::3]:
                    writer.write(text)
        return (TFRecordFiles(files),), [text for n in range(3) for text in TEXTS[n::3]]
    if kind == "lines":
        for number, file in enumerate(files):
            Path(file).write_bytes(b"".join(b"%d %s\r\n" % (number, text[:90]) for text in TEXTS[number::3]) + b"end")
        expected = list(tf.data.TextLineDataset(files).as_numpy_iterator())
        return (TextLineFiles(files),), expected
    for file in files:
        Path(file).write_bytes(b"head" + np.arange(40, dtype="<i4").tobytes() + b"foot!")
    expected = list(tf.data.FixedLengthRecordDataset(files, 8, 4, 5).as_numpy_iterator())
    dtype = np.dtype([("x", "<i4", 2)])
    return (FixedLengthRecordFiles(files, dtype, header_bytes=4, footer_bytes=5),), expected


KINDS = ["shards", "gzip", "tfrecord", "lines", "fixed"]


def records_of(dataset: tf.data.Dataset) -> list[bytes]:
    return [bytes(record) for batch in dataset.as_numpy_iterator() for record in batch["record"]]


@pytest.mark.parametrize("kind", KINDS)
def test_any_range_of_the_files_equals_other_readers(tmp_path: Path, kind: str) -> None:
    data, expected = written(tmp_path, kind)
    # A read has a few records; of a block of gzip it needs all before them.
    options: Any = {"parse": lambda records: {"record": records}, "reading": Reading(chunk_bytes=50)}
    evaluation = make_input_fn(*data, training=False, **options)
    for size, host, hosts, start in ((7, 0, 1, 0), (5, 1, 3, 2), (1, 0, 1, len(expected) - 1)):
        context = tf.distribute.InputContext(hosts, host, hosts)
        batches = range(start * size * hosts + host * size, len(expected), size * hosts)
        want = [record for first in batches for record in expected[first : first + size]]
        assert records_of(evaluation({"batch_size": size}, context, start))[: len(want)] == want

    # Ranges with gaps: of some records, in a window of a few.
    def is_chosen(features: Any) -> Any:
        return tf.strings.to_hash_bucket_fast(features["record"], 3) > 0

    chosen = [record for record in expected if is_chosen({"record": record})]
    assert 0 < len(chosen) < len(expected)
    in_order = make_input_fn(*data, training=False, filter=is_chosen, **options)
    assert records_of(in_order({"batch_size": 4}, start_step=3))[: len(chosen) - 12] == chosen[12:]
    shuffled = make_input_fn(*data, training=True, seed=1, shuffle=4, num_epochs=1, filter=is_chosen, **options)
    assert sorted(records_of(shuffled({"batch_size": 1}))) == sorted(chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_rejects_a_truncated_file(tmp_path: Path, kind: str) -> None:
    data, expected = written(tmp_path, kind)
    input_fn = make_input_fn(*data, training=False, parse=lambda records: {"record": records})
    path = min(path for path in tmp_path.iterdir() if path.is_file() and path.suffix != ".json")
    for size in (path.stat().st_size - 9, 3, 0):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(tf.errors.OpError):
            list(input_fn({"batch_size": len(expected)}))


@pytest.mark.parametrize("kind", ["shards", "gzip", "tfrecord"])
def test_rejects_a_flipped_bit(tmp_path: Path, kind: str) -> None:
    data, expected = written(tmp_path, kind)
    input_fn = make_input_fn(*data, training=False, parse=lambda records: {"record": records})
    path = min(path for path in tmp_path.iterdir() if path.is_file() and path.suffix != ".json")
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(tf.errors.OpError):
        list(input_fn({"batch_size": len(expected)}))


def numbered(folder: Path, compression: str | None) -> tuple[Dataset, ShardIndex]:
    """Return a dataset of 90 equally large records in one shard, and the shard's index."""
    records = [{"x": bytes([number]) * 20} for number in range(90)]
    features = [Feature("x", "bytes", "uint8", (20,), "raw")]
    path = write_dataset(str(folder), {"train": records}, features, layout="", shards=1, compression=compression)
    dataset = open_dataset(path)
    (shard,) = dataset.manifest.split("train").shards
    return dataset, dataset.index(shard)


def replace_offsets(dataset: Dataset, index: ShardIndex, offsets: npt.NDArray[np.uint64]) -> None:
    """Write the index with other offsets and a right checksum."""
    (shard,) = dataset.manifest.split("train").shards
    file = Path(dataset.path, index_name(shard.name))
    file.write_bytes(dataclasses.replace(index, offsets=offsets).to_bytes())


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("filter", [None, lambda _: tf.constant(True)], ids=["all", "filtered"])
def test_rejects_an_index_with_offsets_of_other_records(tmp_path: Path, compression: str | None, filter: Any) -> None:
    dataset, index = numbered(tmp_path, compression)
    offsets = index.offsets.copy()
    # Record 64 begins where record 63 does, so that it would be read twice, and the last one never. A read has 32 records.
    offsets[64] = offsets[63]
    offsets[33:64] = offsets[32:63] + 16
    replace_offsets(dataset, index, offsets)
    reading = Reading(chunk_bytes=400)
    input_fn = make_input_fn(dataset.path, "train", training=False, filter=filter, reading=reading)
    with pytest.raises(TpudataError, match="an index does not match its shard"):
        list(as_numpy(input_fn, 30))


@pytest.mark.parametrize("beyond", [0, 1, 7, 8, 11, 30])
def test_rejects_an_index_whose_last_record_ends_beyond_its_block(tmp_path: Path, beyond: int) -> None:
    dataset, index = numbered(tmp_path, "gzip")
    offsets = index.offsets.copy()
    # The last record begins where its block ends, or some bytes before.
    offsets[-2] = offsets[-1] - np.uint64(beyond)
    offsets[-1] += np.uint64(16)
    replace_offsets(dataset, index, offsets)
    with pytest.raises(TpudataError, match="an index does not match its shard"):
        list(as_numpy(make_input_fn(dataset.path, "train", training=False), 30))

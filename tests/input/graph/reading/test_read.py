"""Ranges of records read in a graph equal those of other readers; unreadable ranges are errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tpudata import FixedLengthRecordFiles, TextLineFiles, TFRecordFiles, TpudataError, as_numpy, make_input_fn
from tpudata.format import Dataset, Feature, ShardIndex, index_name, open_dataset, read_records
from tpudata.input.files.open_data import open_data
from tpudata.input.files.shards import open_shards
from tpudata.input.files.split_files import SplitFiles
from tpudata.input.graph.reading.read import RecordReader
from tpudata.input.graph.reading.segments import Segments, cut_into_segments

TEXTS = [b"", b"a", "zwölf".encode(), bytes(3000), *(b"%d" % number * (number % 50) for number in range(96))]


def written(folder: Path, kind: str) -> tuple[SplitFiles, list[bytes]]:
    """Return files of a kind, and their records as another reader has them."""
    if kind in ("shards", "gzip"):
        records = [{"x": text} for text in TEXTS]
        compression = "gzip" if kind == "gzip" else None
        path = write_dataset(
            str(folder), {"train": records}, [Feature("x", "bytes", "string")], layout="", compression=compression
        )
        files = sorted(str(file) for file in folder.glob("*.tfrecord"))
        options = "GZIP" if compression else ""
        return open_data(path, "train"), list(tf.data.TFRecordDataset(files, options).as_numpy_iterator())
    files = [str(folder / name) for name in "abc"]
    if kind == "tfrecord":
        for number, file in enumerate(files):
            with tf.io.TFRecordWriter(file) as writer:
                for text in TEXTS[number::3]:
                    writer.write(text)
        return open_data(TFRecordFiles(files), None), [text for n in range(3) for text in TEXTS[n::3]]
    if kind == "lines":
        for number, file in enumerate(files):
            Path(file).write_bytes(b"".join(b"%d %s\r\n" % (number, text[:90]) for text in TEXTS[number::3]) + b"end")
        expected = list(tf.data.TextLineDataset(files).as_numpy_iterator())
        return open_data(TextLineFiles(files), None), expected
    for file in files:
        Path(file).write_bytes(b"head" + np.arange(40, dtype="<i4").tobytes() + b"foot!")
    expected = list(tf.data.FixedLengthRecordDataset(files, 8, 4, 5).as_numpy_iterator())
    dtype = np.dtype([("x", "<i4", 2)])
    return open_data(FixedLengthRecordFiles(files, dtype, header_bytes=4, footer_bytes=5), None), expected


KINDS = ["shards", "gzip", "tfrecord", "lines", "fixed"]


@pytest.mark.parametrize("kind", KINDS)
def test_any_range_of_a_file_equals_other_readers(tmp_path: Path, kind: str) -> None:
    files, expected = written(tmp_path, kind)
    rng = np.random.default_rng(0)
    ends = np.cumsum([shard.records for shard in files.shards])
    cuts = sorted(rng.choice(len(expected), 9, replace=False).tolist())
    segments = cut_into_segments(files.dataset, files.split, cuts)
    assert segments.firsts.tolist() == sorted({0, *cuts, *ends.tolist()})
    read = tf.function(RecordReader(files, segments, has_gaps=False).read)
    for first in range(len(expected)):
        last = int(rng.integers(first + 1, ends[np.searchsorted(ends, first, "right")] + 1))
        assert read(tf.constant(first, tf.int64), tf.constant(last, tf.int64)).numpy().tolist() == expected[first:last]


@pytest.mark.parametrize("kind", KINDS)
def test_reads_ranges_over_several_segments(tmp_path: Path, kind: str) -> None:
    files, expected = written(tmp_path, kind)
    reader = RecordReader(files, cut_into_segments(files.dataset, files.split, range(0, 40, 7)), has_gaps=True)
    for first, last in ((0, 1), (0, 40), (3, 29), (13, 14), (21, len(expected))):
        found = reader.read(tf.constant(first, tf.int64), tf.constant(last, tf.int64))
        assert found.numpy().tolist() == expected[first:last]


def test_segments_of_a_shard_cover_only_their_records(tmp_path: Path) -> None:
    files, _ = written(tmp_path, "shards")
    segments = cut_into_segments(files.dataset, files.split, [5, 17])
    assert isinstance(segments, Segments)
    for number, (file, offset, size) in enumerate(zip(segments.files, segments.offsets, segments.sizes, strict=True)):
        found = [(place, len(record)) for place, record in read_records(segments.paths[file])]
        inside = [place for place, _ in found if offset <= place < offset + size]
        assert len(inside) == segments.firsts[number + 1] - segments.firsts[number]
        assert inside[0] == offset


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("shards", tf.errors.DataLossError),
        ("gzip", tf.errors.OpError),
        ("tfrecord", tf.errors.DataLossError),
    ],
)
def test_rejects_a_flipped_bit(tmp_path: Path, kind: str, error: Any) -> None:
    files, _ = written(tmp_path, kind)
    shard = files.shards[0]
    path = Path(files.dataset.shard_path(shard))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    reader = RecordReader(files, cut_into_segments(files.dataset, files.split, []), has_gaps=False)
    with pytest.raises(error):
        reader.read(tf.constant(0, tf.int64), tf.constant(shard.records, tf.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_rejects_a_truncated_file(tmp_path: Path, kind: str) -> None:
    files, _ = written(tmp_path, kind)
    shard = files.shards[0]
    path = Path(files.dataset.shard_path(shard))
    reader = RecordReader(files, cut_into_segments(files.dataset, files.split, []), has_gaps=False)
    for size in (path.stat().st_size - 9, 3, 0):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(tf.errors.OpError):
            reader.read(tf.constant(0, tf.int64), tf.constant(shard.records, tf.int64))


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


@pytest.mark.parametrize("has_gaps", [False, True])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_rejects_an_index_with_offsets_of_other_records(
    tmp_path: Path, compression: str | None, has_gaps: bool
) -> None:
    dataset, index = numbered(tmp_path, compression)
    offsets = index.offsets.copy()
    # Record 63 begins where record 62 does, so that it would be read twice, and the last one never.
    offsets[63] = offsets[62]
    offsets[1:63] = offsets[:62] + 16
    replace_offsets(dataset, index, offsets)
    segments = cut_into_segments(dataset, "train", [63])
    reader = RecordReader(open_shards(dataset, "train"), segments, has_gaps=has_gaps)
    with pytest.raises(tf.errors.InvalidArgumentError, match="A file has other records than its index says"):
        reader.read(tf.constant(0, tf.int64), tf.constant(63, tf.int64))
    if compression is not None:
        with pytest.raises(TpudataError, match="an index has other places of records than its shard"):
            list(as_numpy(make_input_fn(dataset.path, "train", training=False), 30))


@pytest.mark.parametrize("beyond", [0, 1, 7, 8, 11, 30])
def test_rejects_an_index_whose_last_record_ends_beyond_its_block(tmp_path: Path, beyond: int) -> None:
    dataset, index = numbered(tmp_path, "gzip")
    offsets = index.offsets.copy()
    # The last record begins where its block ends, or some bytes before.
    offsets[-2] = offsets[-1] - np.uint64(beyond)
    offsets[-1] += np.uint64(16)
    replace_offsets(dataset, index, offsets)
    with pytest.raises(TpudataError, match="an index has other places of records than its shard"):
        list(as_numpy(make_input_fn(dataset.path, "train", training=False), 30))

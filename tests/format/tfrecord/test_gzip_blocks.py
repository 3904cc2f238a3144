"""Compressed shards: one gzip member per block, which any reader takes for one file.

Blocks are private: shards are read and written by records.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.errors import CorruptionError
from tpudata.format import RecordWriter, ShardIndex, read_records
from tpudata.format.tfrecord.framing import pack_header
from tpudata.format.tfrecord.gzip_blocks import GzipBlockWriter, unpack_blocks

RECORDS = [
    b"",
    b"a",
    *(b"%d" % number * (number % 90) for number in range(200)),
    np.random.default_rng(0).bytes(70_000),
]


def write(records: list[bytes], block_records: int = 8) -> tuple[bytes, ShardIndex]:
    file = io.BytesIO()
    writer = RecordWriter(file, block_records, "gzip")
    for record in records:
        writer.write(record)
    index = ShardIndex.from_written(writer.finish(), {})
    return file.getvalue(), index


def offsets_of(index: ShardIndex) -> np.ndarray:
    assert index.block_offsets is not None
    return index.block_offsets


def test_tensorflow_beam_and_gzip_read_compressed_shards(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001.tfrecord"
    data, index = write(RECORDS)
    path.write_bytes(data)
    assert list(tf.data.TFRecordDataset(str(path), compression_type="GZIP").as_numpy_iterator()) == RECORDS
    with gzip.open(path) as unpacked:
        assert len(unpacked.read()) == index.offsets[-1]
    assert list(read_records(str(path), "gzip")) == list(zip(index.offsets.tolist(), RECORDS, strict=False))
    with beam.Pipeline("FnApiRunner") as pipeline:
        read = pipeline | beam.io.ReadFromTFRecord(str(path), compression_type=beam.io.filesystem.CompressionTypes.GZIP)
        assert_that(read, equal_to(RECORDS))


def test_every_block_is_a_member_without_a_name_or_a_time() -> None:
    data, index = write(RECORDS)
    members = []
    rest = data
    while rest:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        unpacker.decompress(rest)
        assert unpacker.eof
        members.append(rest[: len(rest) - len(unpacker.unused_data)])
        rest = unpacker.unused_data
    assert [len(member) for member in members] == np.diff(offsets_of(index)).tolist()
    assert {member[3:8] for member in members} == {bytes(5)}
    assert write(RECORDS)[0] == data


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=20), st.integers(1, 6), st.data())
def test_unpacks_any_run_of_blocks_from_its_bytes_alone(
    records: list[bytes], block_records: int, draw: st.DataObject
) -> None:
    data, index = write(records, block_records)
    first = draw.draw(st.integers(0, index.blocks - 1))
    last = draw.draw(st.integers(first, index.blocks - 1))
    run = data[index.file_range(first)[0] : index.file_range(last)[1]]
    start, end = index.block_range(first)[0], index.block_range(last)[1]
    assert gzip.decompress(run) == gzip.decompress(data)[start:end]
    assert unpack_blocks(run, end - start) == gzip.decompress(data)[start:end]


def test_rejects_bytes_that_are_not_a_block_of_the_size() -> None:
    file = io.BytesIO()
    writer = GzipBlockWriter(file)
    writer.write([b"hello " * 20])
    writer.end_block()
    block = file.getvalue()[writer.offsets[0] : writer.offsets[1]]
    assert unpack_blocks(block, 120) == b"hello " * 20
    for data, size, message in (
        (block, 121, "120 of 121 bytes"),
        (block, 119, "more than 119"),
        (block[:4], 120, "of 120"),
    ):
        with pytest.raises(ValueError, match=message):
            unpack_blocks(data, size)
    with pytest.raises(ValueError, match="incorrect header check"):
        unpack_blocks(b"\xff" + block, 120)


def test_detects_every_flipped_bit_that_changes_a_record(tmp_path: Path) -> None:
    path = tmp_path / "file"
    records = [b"", b"abcabcabc" * 5, b"\x00\xff" * 30]
    data, _ = write(records, 2)
    reasons = []
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            found = [record for _, record in read_records(str(path), "gzip")]
        except CorruptionError as error:
            reasons.append(error.reason)
        else:
            assert found == records
    # Seven bytes of a member's header need not change anything: flags, time, level and system.
    assert len(reasons) >= len(data) - 2 * 7
    assert all(reason.endswith("(the offset counts unpacked bytes)") for reason in reasons)


def test_detects_every_truncation_inside_a_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data, index = write([b"abc", b"defg"], 1)
    for length in sorted(set(range(1, len(data))) - set(offsets_of(index).tolist())):
        path.write_bytes(data[:length])
        read: list[tuple[int, bytes]] = []
        with pytest.raises(CorruptionError, match="unpacked bytes") as caught:
            read.extend(read_records(str(path), "gzip"))
        # Where the first record begins that did not come.
        assert caught.value.offset == index.offsets[len(read)]


def test_rejects_a_file_that_is_not_compressed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"a")
    with pytest.raises(CorruptionError, match="Not a gzipped file"):
        list(read_records(str(path), "gzip"))


def test_rejects_a_length_beyond_the_stream_despite_a_valid_checksum(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size, message in ((2**62, f"a record of {2**62:,} bytes is too large"), (2**30, "ends inside a record")):
        path.write_bytes(gzip.compress(pack_header(size) + b"short"))
        with pytest.raises(CorruptionError, match=message):
            list(read_records(str(path), "gzip"))

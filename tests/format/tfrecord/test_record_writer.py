"""Writing records: the file's bytes, and derived offsets and checksums compared with those bytes."""

from __future__ import annotations

import gzip
import io
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.errors import UsageError
from tpudata.format import RecordWriter

# Records around the lengths from which pieces are handed on without a copy, and more than is held back.
LENGTHS = [0, 1, 700, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 300_000, 600_000, 5]


def write(
    records: Sequence[tuple[bytes, ...]], block_records: int, compression: str | None = None
) -> tuple[bytes, Any]:
    file = io.BytesIO()
    writer = RecordWriter(file, block_records, compression)
    for parts in records:
        writer.write(*parts)
    written = writer.finish()
    return file.getvalue(), written


def check(data: bytes, written: Any, records: Sequence[tuple[bytes, ...]], block_records: int) -> None:
    """Compares what is derived with what `data`, the records and their frames, holds."""
    offsets = written.offsets.tolist()
    assert (len(offsets), offsets[0], offsets[-1]) == (len(records) + 1, 0, len(data))
    for parts, start, end in zip(records, offsets[:-1], offsets[1:], strict=True):
        assert data[start + 12 : end - 4] == b"".join(parts)
    starts = range(0, len(records), block_records)
    blocks = [data[offsets[i] : offsets[min(i + block_records, len(records))]] for i in starts]
    assert written.block_crc32c.tolist() == [google_crc32c.value(block) for block in blocks]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.binary(max_size=100), st.binary(max_size=9)), max_size=12), st.integers(1, 5))
def test_offsets_and_checksums_match_the_bytes(records: Sequence[tuple[bytes, ...]], block_records: int) -> None:
    data, written = write(records, block_records)
    check(data, written, records, block_records)
    assert (written.crc32c, written.file_bytes) == (google_crc32c.value(data), len(data))
    assert written.block_offsets is None


@settings(max_examples=40)
@given(st.lists(st.tuples(st.binary(max_size=100), st.binary(max_size=9)), max_size=12), st.integers(1, 5))
def test_offsets_and_checksums_match_the_unpacked_bytes(
    records: Sequence[tuple[bytes, ...]], block_records: int
) -> None:
    packed, written = write(records, block_records, "gzip")
    data = gzip.decompress(packed)
    assert data == write(records, block_records)[0]
    check(data, written, records, block_records)
    assert (written.crc32c, written.file_bytes) == (google_crc32c.value(packed), len(packed))


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("block_records", [1, 4, 64])
def test_writes_records_of_any_length_whole_or_in_parts(
    block_records: int, compression: str | None, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    contents = [random.bytes(length) for length in LENGTHS * 2]
    cuts = [sorted(random.integers(0, len(content) + 1, 3).tolist()) for content in contents]
    parts = [(c[:a], c[a:b], c[b:d], c[d:]) for c, (a, b, d) in zip(contents, cuts, strict=True)]
    data, written = write(parts, block_records, compression)
    assert data == write([(content,) for content in contents], block_records, compression)[0]
    check(gzip.decompress(data) if compression else data, written, parts, block_records)
    assert written.crc32c == google_crc32c.value(data)
    path = tmp_path / "file"
    path.write_bytes(data)
    read = tf.data.TFRecordDataset(str(path), compression_type="GZIP" if compression else "")
    assert list(read.as_numpy_iterator()) == contents


@pytest.mark.parametrize("block_records", [64, 1000, 70_000])
def test_checksums_match_with_70_000_records(block_records: int) -> None:
    records = [(b"%d" % number,) for number in range(70_000)]
    data, written = write(records, block_records)
    check(data, written, records, block_records)
    assert written.crc32c == google_crc32c.value(data)


def test_finish_takes_less_than_35_bytes_per_record() -> None:
    def peak(records: int) -> int:
        with tempfile.TemporaryFile() as file:
            writer = RecordWriter(file, 64)
            for _ in range(records):
                writer.write(b"12345678")
            tracemalloc.start()
            writer.finish()
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return found

    peak(100)
    assert (peak(300_000) - peak(100_000)) / 200_000 < 35


def test_rejects_another_compression() -> None:
    with pytest.raises(UsageError, match=r"compression: unknown value \(got 'zip', expected None or 'gzip'\)"):
        RecordWriter(io.BytesIO(), 2, "zip")
